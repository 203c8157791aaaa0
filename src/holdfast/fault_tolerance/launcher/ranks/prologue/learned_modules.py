"""What the script has imported, for the next warm start: the names in ``sys.modules``, in order, with their origins.

The rank whose LOCAL_RANK is 0 writes it as JSON, ``[[name, origin or null], …]``, to the file that the launcher names:
when it is told to (after the third step, or when an unhandled exception is kept) and at the interpreter's ordinary
end. Each time the file is whole or as it was before. It imports nothing of Holdfast and never fails.
Does not cover: a rank that is killed before its third step; which of the modules may be imported ahead.
"""

import os
import sys

VARIABLE = "HOLDFAST_MODULES_FILE"


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


def arm(environ):  # type: ignore[no-untyped-def]
    """Take the file's name out of this environment; returns what writes the list, None where nobody wants it."""
    target = environ.pop(VARIABLE, "")
    if not target or environ.get("LOCAL_RANK") != "0":
        return None
    import atexit

    save = Save(target)
    atexit.register(save, "exit")
    return save


def _origin(module: object):  # type: ignore[no-untyped-def]
    """The file, `built-in`, `frozen`; None where there is none (`__main__`, a package without a file, a stand-in)."""
    try:
        # Not getattr: a module may load itself, or raise, when it is asked for what it does not have.
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
        origin = None if spec is None else object.__getattribute__(spec, "__dict__").get("origin")
    except Exception:
        return None
    return origin if type(origin) is str else None
