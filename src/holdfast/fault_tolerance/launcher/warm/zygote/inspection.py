"""Whether ranks may be forked from this process: what imports have changed in it that a fork does not survive.

The process is compared with what it was before the imports: threads, descriptors, children, timers, signals, settings
of the whole process, random seeds, shared memory, temporary folders, CUDA, handlers for forks. Which module is to blame
is not recorded; the launcher finds that out by trying.

Reads of the rank's own variables, which a zygote does not have, are recorded while modules are imported. What a few
known libraries read at their import is read again in each rank (`REPAIRS`).
Source: proc(5).
Does not cover: memory that a module keeps, locks on files, reads of the environment by native code; what a module does
later, at its first use; settings that a script does not notice before it asks for them (warning filters, `sys.path`).
"""

from __future__ import annotations

import _locale
import ctypes
import importlib.util
import os
import re
import resource
import shutil
import signal
import site
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, KeysView, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Any

from .preload import of_a_rank

TASKS = "/proc/self/task"
SETTLES = 0.2
"""Seconds in which a thread that has done its work is gone."""
HANGS = 2.0
"""Seconds for a fork and its handlers."""
DRIVER = re.compile(rb"/.*/libcuda\.so.*")
WRITABLE_AND_SHARED = re.compile(rb"^\S+ rw.s .*", re.MULTILINE)
READS_ARGUMENTS = "it reads sys.argv, which is not yet what the module will have"
NOT_INITIALISED = 3
"""CUDA_ERROR_NOT_INITIALIZED: what every function of the driver returns before cuInit."""
WORDS = 624
"""Numbers that a Mersenne twister draws from its state before it makes another one of it: so that a few drawn at import
are not taken for a seed, but hundreds are."""
LIMITS = [value for name, value in sorted(vars(resource).items()) if name.startswith("RLIMIT_")]


def unfit_from_the_start() -> str:
    """Why no rank should be forked from this interpreter, whatever it imports ('' for no reason)."""
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    monitored = monitoring is not None and any(monitoring.get_tool(tool) for tool in range(6))
    if sys.gettrace() or sys.getprofile() or monitored:
        return "a debugger, a profiler or a coverage tool observes the ranks"
    if site.ENABLE_USER_SITE and importlib.util.find_spec("usercustomize"):
        return "the user has a module usercustomize, which runs later"
    if _more_than_one_thread():
        return "what the site starts in every Python has a thread"
    return ""


class Inspection:
    """Compares this process with what it was when this object was made. Use it as a context manager around imports.

    Args:
        roots: The folders in which modules are installed.
        ignored: Signals that are ignored in a zygote.
    """

    def __init__(self, roots: tuple[str, ...], ignored: Sequence[int]) -> None:
        self._roots, self._ignored = roots, ignored
        self._seen = {what: look() for what, look in LOOKS.items()}
        self._open = _descriptors()
        self._modules = set(sys.modules)
        self._reads: list[str] = []

    def __enter__(self) -> Inspection:
        variables: Any = type(os.environ)
        self._getitem = variables.__getitem__

        def getitem(environment: Any, key: Any) -> Any:
            if of_a_rank(name := os.fsdecode(key)):
                self._note(f"variable {name}")
            return self._getitem(environment, key)

        def keys(environment: Any) -> KeysView[Any]:
            """``dict(os.environ)`` and its like, and `copy`, ask for the keys; a loop over the items does not."""
            self._note("environment as a whole")
            return KeysView(environment)

        variables.__getitem__, variables.keys = getitem, keys
        self._arguments = sys.argv
        if sys.argv[:1] == ["-m"]:
            sys.argv = _Arguments(sys.argv, self._reads)
        return self

    def __exit__(self, *_: object) -> None:
        variables: Any = type(os.environ)
        variables.__getitem__ = self._getitem
        del variables.keys  # of its base class again
        sys.argv = self._arguments

    def _note(self, what: str) -> None:
        """Something of the rank's is read: by a module that is known to do so, or by another one."""
        frame = sys._getframe(2)
        while frame.f_back and frame.f_globals.get("__name__") in ("os", "collections.abc"):
            frame = frame.f_back
        if (reader := frame.f_globals.get("__name__")) not in HARMLESS_READERS:
            self._reads.append(f"it reads the rank's {what}, in {reader}")

    def see_new(self) -> None:
        """To be called after each import: what can be said of a library only now is as it should stay."""
        for what in [what for what, seen in self._seen.items() if seen is None]:
            self._seen[what] = LOOKS[what]()

    def fault(self) -> str:
        """Why no rank may be forked now, in words ('' for no reason)."""
        # OpenBLAS, for one, ends the threads of its pool before a fork, and starts them again when it needs them.
        threads = "it starts a thread"
        return (
            self._change() or _fork_fault() or self._change() or (threads if _more_than_one_thread() else "")
        )

    def _change(self) -> str:
        """What is not as it was, before or after a fork ('' for nothing)."""
        if self._reads:
            return self._reads[0]
        for name in sys.modules.keys() - self._modules:
            if not self._is_installed(sys.modules.get(name)):
                return f"it imports {name}, which is not installed and may be edited"
        for what, look in LOOKS.items():
            if look() != self._seen[what]:
                return what
        if kept := sorted(_descriptors().items() - self._open.items()):
            return f"it keeps {kept[0][1]} open"
        if ignored_signals() & (mask := sum(1 << number - 1 for number in self._ignored)) != mask:
            return "it handles signals"
        return ""

    def _is_installed(self, module: object) -> bool:
        try:
            spec = object.__getattribute__(module, "__dict__").get("__spec__")
            origin = getattr(spec, "origin", None)
        except Exception:  # a stand-in
            return True
        return not (isinstance(origin, str) and origin.startswith("/")) or origin.startswith(self._roots)


# -- reads of what is a rank's own -------------------------------------------------------------------------------


class _Arguments(list[str]):
    """`sys.argv` under ``-m``, where the module's path comes only later."""

    def __init__(self, words: list[str], reads: list[str]) -> None:
        super().__init__(words)
        self._reads = reads

    def __getitem__(self, index: Any) -> Any:
        self._reads.append(READS_ARGUMENTS)
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[str]:
        self._reads.append(READS_ARGUMENTS)
        return super().__iter__()


def _fabric(module: Any) -> None:
    module.rank_zero_only.rank = module._get_rank() or 0


def _torchmetrics(module: Any) -> None:
    module.rank_zero_only.rank = int(os.environ.get("LOCAL_RANK", 0))


REPAIRS: dict[str, Callable[[Any], None]] = {
    "lightning.fabric.utilities.rank_zero": _fabric,
    "lightning_fabric.utilities.rank_zero": _fabric,
    "torchmetrics.utilities.prints": _torchmetrics,
}
"""What the import of these modules has done, done again in each rank; a test compares the two for each library."""

HARMLESS_READERS = {*REPAIRS, "fsspec.config"}
"""Modules that may read what is a rank's own; fsspec goes over all variables for those with a prefix of its own."""

FOLDERS = {
    ("wandb.sdk.data_types._private", "MEDIA_TMP"): "wandb-media",
    ("wandb.sdk.artifacts.artifact", "Artifact._TMP_DIR"): "wandb-artifacts",
}
"""`tempfile.TemporaryDirectory` objects that their library asks for the name at each use; and how the name ends."""


def repair() -> None:
    """For each that was imported. Raises what the library's own code does: then the rank starts cold."""
    for name, again in REPAIRS.items():
        if name in sys.modules:
            again(sys.modules[name])
    for folder, ending in _folders_of_libraries():  # one of the rank's own, under the same object
        folder._finalizer.detach()
        folder.__init__(ending)


def _folders_of_libraries() -> Iterator[tuple[Any, str]]:
    for (module, name), ending in FOLDERS.items():
        with suppress(KeyError, AttributeError):
            yield attrgetter(name)(sys.modules[module]), ending


def remove_folders() -> None:
    """Remove the temporary folders of modules: this process ends without doing so, and each rank has its own."""
    for name in _temporary_folders():
        shutil.rmtree(name, ignore_errors=True)


# -- what can be seen of the process -----------------------------------------------------------------------------


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _torch_seed() -> object:
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    return None if generator is None else generator.initial_seed()


def _numpy_seed() -> object:
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return None
    if numpy.get_state()[2] == WORDS:
        numpy.random_sample()
    return numpy.get_state()[1].tobytes()


def _random_seed() -> object:
    random = sys.modules.get("random")
    if random is None:
        return None
    if random.getstate()[1][WORDS] == WORDS:
        random.random()
    return random.getstate()[1][:WORDS]


def _start_method() -> bool:
    """Whether one was chosen; asking multiprocessing itself would choose."""
    context = getattr(sys.modules.get("multiprocessing.context"), "_default_context", None)
    return getattr(context, "_actual_context", None) is not None


def _hooks() -> object:
    threading = sys.modules.get("threading")
    others = threading is not None and threading.excepthook is not threading.__excepthook__
    return [id(sys.excepthook), id(sys.displayhook), others]


def _maps() -> bytes:
    with open("/proc/self/maps", "rb") as file:
        return file.read()


def _shared_memory() -> list[bytes]:
    """Writable, and one for all forks: of a semaphore, for one."""
    return WRITABLE_AND_SHARED.findall(_maps())


def has_initialised_cuda() -> bool:
    """Whether CUDA is initialised in this process, which no fork survives.

    That the driver's library is loaded says nothing: torch brings libcublasLt, which loads it and calls nothing.
    Source: CUDA driver API, cuInit. A library that cannot be asked counts as initialised.
    """
    count = ctypes.c_int()
    for path in set(DRIVER.findall(_maps())):
        try:
            library = ctypes.CDLL(os.fsdecode(path), mode=os.RTLD_NOLOAD)
            if library.cuDeviceGetCount(ctypes.byref(count)) != NOT_INITIALISED:
                return True
        except (OSError, AttributeError):
            return True
    return False


def _has_children() -> bool:
    """Also those that have ended and were not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _timers() -> bool:
    """Whether an interval timer is set: no child would inherit it."""
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    return any(signal.getitimer(timer)[0] for timer in timers)


def _temporary_folders() -> set[str]:
    """The folders that `tempfile.TemporaryDirectory` objects remove when this process ends."""
    finalizers = [each.peek() for each in list(weakref.finalize._registry)]  # type: ignore[attr-defined]
    owners = [each[0] for each in finalizers if each]
    return {each.name for each in owners if isinstance(each, tempfile.TemporaryDirectory)}


def _shared_folders() -> set[str]:
    """Those that the forks of this process would share, and the first that ends would remove."""
    return _temporary_folders() - {folder.name for folder, _ in _folders_of_libraries()}


def _descriptors() -> dict[int, str]:
    """Open descriptors and what they lead to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that lists this folder is closed by now
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


LOOKS: dict[str, Callable[[], Any]] = {
    # First: it also opens files and starts threads, and no trial may fork.
    "it initialises CUDA": has_initialised_cuda,
    # Then what may be in the way of a trial.
    "it handles signals": lambda: [signal.getsignal(number) for number in signal.valid_signals()],
    "it starts a process": _has_children,
    "it sets a timer": _timers,
    "it changes the working directory": os.getcwd,
    "it changes the umask": _umask,
    "it changes a resource limit": lambda: [resource.getrlimit(limit) for limit in LIMITS],
    "it changes the locale": lambda: _locale.setlocale(_locale.LC_ALL, None),
    "it replaces sys.stdout or sys.stderr": lambda: (id(sys.stdout), id(sys.stderr)),
    "it replaces sys.excepthook or its like": _hooks,
    "it shares memory with its forks": _shared_memory,
    "it chooses how multiprocessing starts processes": _start_method,
    "it seeds torch": _torch_seed,
    "it seeds numpy": _numpy_seed,
    "it seeds random": _random_seed,
    "it keeps a temporary folder": _shared_folders,
}
"""What must be the same before and after the imports; None where it cannot be said yet."""


def ignored_signals() -> int:
    """The kernel's mask, which native code may change: bit n is signal n + 1."""
    with open("/proc/self/status", "rb") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith(b"SigIgn:"))


# -- threads and forks -------------------------------------------------------------------------------------------


def _threads() -> int:
    """How many this process has, except those that are known to survive a fork."""
    count = len(os.listdir(TASKS))
    return count if count == 1 else count - _arrow_threads()


def _arrow_threads() -> int:
    """jemalloc's thread in Arrow, which pandas brings: its own fork handlers take care of it in both processes."""
    names = []
    for task in os.listdir(TASKS):
        with suppress(OSError), open(f"{TASKS}/{task}/comm", "rb") as file:
            names.append(file.read().rstrip())
    count = names.count(b"jemalloc_bg_thd")
    return count if count and b"/libarrow" in _maps() else 0


def _more_than_one_thread() -> bool:
    """Whether others than the main thread stay."""
    until = time.monotonic() + SETTLES
    while _threads() > 1:
        if time.monotonic() > until:
            return True
        time.sleep(0.005)
    return False


def has_started_a_thread() -> bool:
    """Whether there is a thread that was not there when the imports were done, and no fork survives."""
    return _threads() > 1 and bool(_fork_fault() or _more_than_one_thread())


def _fork_fault() -> str:
    """Fork once, in vain: handlers that modules have registered for forks run, in this process and in the child.
    Returns what goes wrong ('' for nothing).

    A handler of Python's that waits for ever in this process is interrupted. An exception in a handler reaches only
    `sys.unraisablehook`; the fork continues.
    """
    raised: list[str] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda found: raised.append(repr(found.exc_value))
    try:
        with _interrupted_after(HANGS):
            child = os.fork()
            if child == 0:
                os._exit(0)
    finally:
        sys.unraisablehook = hook
    until = time.monotonic() + HANGS
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "a forked child hangs in a handler that it registered for forks"
        time.sleep(0.0005)
    if status:
        return f"a forked child ended with status {status}"
    return f"its handler for forks raises {raised[0]}" if raised else ""


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
