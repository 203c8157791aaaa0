"""What the script has imported, for the next warm start: the names in ``sys.modules``, in order, with their origins.

The rank whose RANK is 0 writes it as JSON, ``[[name, origin or null], …]``, to the file that the launcher names: when
it is told to (after the third step, or when an unhandled exception is kept) and at the interpreter's ordinary end.
Each time the file is whole or as it was before. It imports nothing of Holdfast and never fails.
Does not cover: a rank that is killed before its third step; which of the modules may be imported ahead.
"""

import os
import sys

VARIABLE = "HOLDFAST_MODULES_FILE"


def arm(environ):  # type: ignore[no-untyped-def]
    """Take the file's name out of this environment; returns what writes the list, None where nobody wants it."""
    target = environ.pop(VARIABLE, "")
    if not target or environ.get("RANK") != "0":
        return None
    import atexit

    owner, saved = os.getpid(), set()

    def save(when: str) -> None:
        """Write the list, once for each `when`. A forked child writes none."""
        if os.getpid() == owner and when not in saved:
            saved.add(when)
            try:  # noqa: SIM105 - contextlib would be one import more in every rank
                write(target)
            except Exception:
                pass  # the next start is as it would be without the list

    atexit.register(save, "exit")
    return save


def write(target: str) -> None:
    """Replace the file. Raises OSError."""
    import json

    listed = [[name, _origin(module)] for name, module in list(sys.modules.items()) if type(name) is str]
    aside = f"{target}.new"
    with open(aside, "w") as file:
        file.write(json.dumps(listed))
    os.replace(aside, target)


def _origin(module: object):  # type: ignore[no-untyped-def]
    """The file, `built-in`, `frozen`; None where there is none (`__main__`, a package without a file, a stand-in)."""
    try:
        # Not getattr: a module may load itself, or raise, when it is asked for what it does not have.
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
        origin = None if spec is None else object.__getattribute__(spec, "__dict__").get("origin")
    except Exception:
        return None
    return origin if type(origin) is str else None
