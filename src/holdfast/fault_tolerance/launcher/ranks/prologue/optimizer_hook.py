"""What a rank's optimizer steps are for where its program does not report its own: they are counted, and after the
third one the rank whose LOCAL_RANK is 0 leaves the list of its modules, for the next warm start.

Once torch's optimizers are imported, a hook after each step of any of them is registered. The first step asks Holdfast
for what counts (`holdfast.fault_tolerance.optimizer_steps`), if this interpreter has it. The list is JSON,
``[[name, origin or null], …]`` in the order of ``sys.modules``, in the file that the launcher names; it is also
written when an unhandled exception is kept and at the interpreter's ordinary end, each time whole.
What always holds: nothing here raises, and nothing of Holdfast is imported sooner than at the first step. To
torch.compile the hook is an empty function: no graph break, no new compilation.
Does not cover: steps that no Python code takes (a compiled optimizer, a CUDA graph); the modules of a rank that is
killed before its third step.
"""

import os
import sys

TYPE_CHECKING = False  # `typing` would be an import more in every rank
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "HOLDFAST_OPTIMIZER_STEPS"
MODULES_FILE = "HOLDFAST_MODULES_FILE"
MODULE = "torch.optim.optimizer"
OLDEST = (2, 3)
"""The first torch that has `torch.compiler.is_dynamo_compiling`."""
THIRD = 3
"""After so many steps the program has imported what it needs."""


def arm(environ: "Any", save: "Any" = None) -> None:
    """Count from now on, if this environment asks for it, which it no longer does afterwards. `save` is called after
    the third step. To be called once, before the script begins, whether torch is imported already or not."""
    counts = environ.pop(VARIABLE, "") == "1"
    if not counts and save is None:
        return
    if MODULE in sys.modules:
        _register(sys.modules[MODULE], counts, save)
    else:
        _after_import(MODULE, lambda module: _register(module, counts, save))


def _register(module: "Any", counts: bool, save: "Any") -> None:
    """Never raises: this torch may be another than the ones that we know."""
    try:
        torch = sys.modules["torch"]  # perhaps not whole yet
        if tuple(map(int, torch.__version__.split(".")[:2])) >= OLDEST:
            module.register_optimizer_step_post_hook(_Steps(torch, counts, save).hook)
    except Exception:
        pass


def _nothing(optimizer: object, args: object, kwargs: object) -> None:
    """There is nothing to count."""


class _Steps:
    """Begins the counting at the first step, and has the modules saved at the third. The hook stays registered: torch
    may be going over its hooks at any moment, and raises if one disappears meanwhile."""

    def __init__(self, torch: "Any", counts: bool, save: "Any") -> None:
        self._counts, self._save, self._calls = counts, save, 0
        self._owner = os.getpid()
        self._count: Any = _nothing

        def hook(optimizer: object, args: object, kwargs: object) -> None:
            # First, and with no global name in it: this makes it an empty function to torch.compile.
            if torch.compiler.is_dynamo_compiling():
                return
            self._step(optimizer, args, kwargs)

        self.hook = hook

    def _step(self, optimizer: object, args: object, kwargs: object) -> None:
        self._calls += 1
        try:
            if self._calls == 1 and self._counts and os.getpid() == self._owner:
                self._count = self._begin() or _nothing
            self._count(optimizer, args, kwargs)
            if self._calls == THIRD and self._save is not None:
                self._save("step")
        except Exception:
            self._retire()  # Holdfast is not here, or another one

    def _begin(self) -> "Any":
        before = set(sys.modules)
        from holdfast.fault_tolerance import optimizer_steps

        hook = optimizer_steps.begin(self._retire)
        if self._save is not None:
            self._save.hidden |= {name for name in sys.modules if name.startswith("holdfast")} - before
        return hook

    def _retire(self) -> None:
        """The program reports by itself where it is, or nothing can be counted."""
        self._count = _nothing


def _after_import(name: str, then: "Any") -> None:
    """Call `then` with this module once it is imported; leaves no trace afterwards."""

    class Finder:
        """First on `sys.meta_path`, until the module has run without an error."""

        @staticmethod
        def find_spec(wanted: str, path: "Any" = None, target: "Any" = None) -> "Any":
            if wanted != name:
                return None
            for finder in sys.meta_path:
                if finder is not Finder and hasattr(finder, "find_spec"):
                    spec = finder.find_spec(wanted, path, target)
                    if spec is not None:
                        return _with(spec, done)
            return None

    def done(module: "Any") -> None:
        # A new list: another thread may be going over the old one, and would pass over a finder.
        sys.meta_path = [each for each in sys.meta_path if each is not Finder]
        then(module)

    sys.meta_path.insert(0, Finder)


def _with(spec: "Any", done: "Any") -> "Any":
    """The spec, with something to be done after its module has run."""
    loader = spec.loader
    try:
        inner = loader.exec_module

        def exec_module(module: "Any") -> None:
            del loader.exec_module
            inner(module)
            done(module)

        loader.exec_module = exec_module
    except Exception:
        pass  # a loader of another kind
    return spec


# -- the list of modules --------------------------------------------------------------------------------------


class Save:
    """Writes the list when it is called, once for each `when`. In a forked child it writes none."""

    def __init__(self, target: str) -> None:
        self.hidden: set[str] = set()
        """Modules that the script has not imported."""
        self._target, self._owner = target, os.getpid()
        self._saved: set[str] = set()

    def __call__(self, when: str) -> None:
        if os.getpid() == self._owner and when not in self._saved:
            self._saved.add(when)
            try:  # noqa: SIM105 - contextlib would be one import more in every rank
                self._write()
            except Exception:
                pass  # the next start is as it would be without the list

    def _write(self) -> None:
        import json

        modules = [(name, module) for name, module in list(sys.modules.items()) if type(name) is str]
        listed = [[name, _origin(module)] for name, module in modules if name not in self.hidden]
        aside = f"{self._target}.new"
        with open(aside, "w") as file:
            file.write(json.dumps(listed))
        os.replace(aside, self._target)


def save_modules(environ: "Any") -> "Any":
    """Take the file's name out of this environment; returns what writes the list, None where it is not wanted."""
    target = environ.pop(MODULES_FILE, "")
    if not target or environ.get("LOCAL_RANK") != "0":
        return None
    import atexit

    save = Save(target)
    atexit.register(save, "exit")
    return save


def _origin(module: object) -> "Any":
    """The file, `built-in`, `frozen`; None where there is none (`__main__`, a package without a file, a stand-in)."""
    try:
        # Not getattr: a module may load itself, or raise, when it is asked for what it does not have.
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
        origin = None if spec is None else object.__getattribute__(spec, "__dict__").get("origin")
    except Exception:
        return None
    return origin if type(origin) is str else None
