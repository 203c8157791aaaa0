"""Watching what a module does to the process while it is imported: a zygote must not carry what no fork survives.

After every module that is executed the process is looked at; what has changed is that module's doing, since it is the
innermost. Whoever started importing it is on the stack. Looking costs tens of microseconds for a module.
Does not cover: what a module does later, at its first use; reads of the environment by native code.
"""

from __future__ import annotations

import importlib.machinery as machinery
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from . import folders, known, process
from .rank_variables import of_a_rank

LOADERS: tuple[Any, ...] = (
    machinery.SourceFileLoader,
    machinery.SourcelessFileLoader,
    machinery.ExtensionFileLoader,
)
COPIES = ("keys", "copy")
Report = Callable[[list[str], str], None]
"""Gets the modules that are being executed, the innermost last, and what is wrong with that one."""


class Environment(dict[bytes, bytes]):
    """The environment's contents; asking for a variable of a rank is noted."""

    noted = ""

    def __getitem__(self, key: bytes) -> bytes:
        self._look_at(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._look_at(key)
        return super().__contains__(key)

    def _look_at(self, key: object) -> None:
        if isinstance(key, bytes) and of_a_rank(name := os.fsdecode(key)):
            self.noted = self.noted or f"variable {name}"


class Arguments(list[str]):
    """`sys.argv` under ``-m``, where the module's path comes only later: looking at it is noted."""

    noted = ""

    def __getitem__(self, index: Any) -> Any:
        self.noted = "sys.argv"
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[str]:
        self.noted = "sys.argv"
        return super().__iter__()


class Watch:
    """Watches while the block runs. `report` is told of the first fault, and should not return; `deaf` are the signals
    that are to stay ignored, `rest` is called after each module."""

    def __init__(
        self, report: Report, roots: tuple[str, ...], deaf: Sequence[int], rest: Callable[[], None]
    ) -> None:
        self._report, self._roots, self._deaf, self._rest = report, roots, list(deaf), rest
        self._ignored = sum(1 << (number - 1) for number in deaf)
        self._stack: list[str] = []
        self._handlers = False
        self._folders = 0  # that every rank can be given anew
        self._finalizers, self._has_folder = -1, False
        self._suspects: dict[str, str] = {}
        self._environment = Environment()
        self._descriptors = process.descriptors()
        self._originals: dict[Any, Any] = {}
        self._register = os.register_at_fork
        self._own = {method: vars(type(os.environ)).get(method) for method in COPIES}

    def __enter__(self) -> Watch:
        self._environment = Environment(os.environ._data)  # type: ignore[attr-defined]
        self._share(self._environment)
        self._arguments = sys.argv
        if sys.argv[:1] == ["-m"]:
            sys.argv = Arguments(sys.argv)
        os.register_at_fork = self._registered
        for method in COPIES:
            setattr(type(os.environ), method, self._copied(method))
        for loader in LOADERS:
            self._originals[loader] = vars(loader).get("exec_module")
            loader.exec_module = self._watched(loader.exec_module)
        return self

    def _copied(self, method: str) -> Callable[..., Any]:
        """``dict(os.environ)`` and its like ask for the keys, which a loop over the items does not."""
        original = getattr(type(os.environ), method)

        def copies(environment: Any) -> Any:
            if environment is os.environ or environment is os.environb:
                self._environment.noted = self._environment.noted or "environment as a whole"
            return original(environment)

        return copies

    def __exit__(self, *_: object) -> None:
        for loader, original in self._originals.items():
            if original is None:
                del loader.exec_module
            else:
                loader.exec_module = original
        sys.argv = self._arguments
        os.register_at_fork = self._register
        for method, own in self._own.items():
            setattr(type(os.environ), method, own) if own else delattr(type(os.environ), method)
        self._share(dict(self._environment))

    @staticmethod
    def _share(contents: dict[bytes, bytes]) -> None:
        """os.environ and os.environb are two views of one dictionary."""
        os.environ._data = os.environb._data = contents  # type: ignore[attr-defined]

    def _registered(self, **handlers: Any) -> None:
        # Those of the standard library are known, and a trial costs as much as importing ten modules.
        ours = bool(self._stack) and self._stack[-1].partition(".")[0] in sys.stdlib_module_names
        self._handlers = self._handlers or not ours
        self._register(**handlers)

    def _watched(self, execute: Callable[[Any, ModuleType], None]) -> Callable[[Any, ModuleType], None]:
        def exec_module(loader: Any, module: ModuleType) -> None:
            self._stack.append(module.__name__)
            try:
                origin = getattr(module.__spec__, "origin", None) or ""
                if not origin.startswith(self._roots):  # before it runs: it is the user's own
                    self._report(self._stack, "it is not installed, so that it may be edited")
                execute(loader, module)
                if fault := self._fault(module):
                    self._report(self._stack, fault)
                self._rest()
            finally:
                self._stack.pop()

        return exec_module

    def _fault(self, module: ModuleType) -> str:
        """What cannot be taken back; what may be, such as an open file, is noted and judged when the import is over."""
        name = module.__name__
        if variable := self._environment.noted:
            self._environment.noted = ""
            if name not in known.REPAIRS and name not in known.LOOKS_ROUND:
                return f"it looks at the rank's {variable}"
        if getattr(sys.argv, "noted", ""):
            sys.argv.noted = ""  # type: ignore[attr-defined]
            return "it looks at sys.argv, which is not yet what the module will have"
        if name in folders.ASK_FOR_THE_NAME:
            self._folders = len(folders.kept())
        for sign, seen in self._signs():
            if seen:
                self._suspects.setdefault(sign, name)
        if self._handlers:
            self._handlers = False
            return self.trial()
        return ""

    def trial(self) -> str:
        """Fork in vain. A handler that raises is heard of only through this hook; the fork goes on."""
        raised: list[str] = []
        before, sys.unraisablehook = sys.unraisablehook, lambda found: raised.append(repr(found.exc_value))
        try:
            fault = process.fork_fault()
        finally:
            sys.unraisablehook = before
        return fault or (f"its handler for forks raises {raised[0]}" if raised else "")

    def _signs(self) -> Iterator[tuple[str, bool]]:
        yield "starts a process", process.has_children()
        yield "starts a thread", process.threads() > 1
        yield "keeps a descriptor open", len(os.listdir("/proc/self/fd")) - 1 > len(self._descriptors)
        yield "keeps a temporary folder", self._keeps_a_folder()
        yield "sets a timer", process.timer_runs()
        yield "handles signals", any(signal.getsignal(number) is not signal.SIG_IGN for number in self._deaf)

    def _keeps_a_folder(self) -> bool:
        count = folders.finalizers()
        if count != self._finalizers:
            self._finalizers = count
            self._has_folder = len(folders.kept()) > self._folders
        return self._has_folder

    def changed(self) -> tuple[str, str] | None:
        """What has changed in the process for good, that a fork does not survive: the module, and what it does."""
        for sign, seen in self._signs():
            if seen and (why := self._confirmed(sign)):
                return self._suspects.get(sign, ""), why
        self._suspects.clear()
        if process.ignored_signals() & self._ignored != self._ignored:  # by native code
            return "", "it handles signals"
        return None

    def _confirmed(self, sign: str) -> str:
        if sign == "starts a thread":
            # OpenBLAS, for one, ends the threads of its pool before a fork, and starts them again when it needs them.
            return self.trial() or ("it starts a thread" if process.more_than_one_thread() else "")
        if sign == "keeps a descriptor open":
            kept = sorted(set(process.descriptors().items()) - set(self._descriptors.items()))
            return f"it keeps {kept[0][1]} open" if kept else ""
        return f"it {sign}"
