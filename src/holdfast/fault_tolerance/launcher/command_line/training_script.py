"""Is there a training script to run? Asked before anything starts, because a typing error is the commonest failure.

Of a module (``-m``) only the first part of its name is looked up, as importing the rest would run the user's code in
the launcher; and only where the ranks' Python is this one. In doubt it is for the ranks to say.

Does not cover: a submodule that does not exist, a package without ``__main__``, and scripts that exist on this node
and not on another.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec

from ...config_fields import nearest
from ...errors import ConfigError

__all__ = ["check_script"]


def check_script(script: str | None, *, module: bool, no_python: bool, run_path: bool) -> None:
    """Raise `ConfigError` when `script` cannot be run; the switches are torchrun's."""
    if not script:
        raise ConfigError("no training script: ft_launcher [options] script.py [options of the script]")
    if no_python and module and not run_path:
        raise ConfigError("--no-python and -m/--module exclude each other: a module is run by python")
    if not no_python and not run_path:
        _check_python()
    if no_python and not run_path:
        _check_program(script)
    elif not module or run_path:
        _check_file(script)
    else:
        _check_module(script)


def _check_file(script: str) -> None:
    if not os.path.exists(script):
        place = "" if os.path.isabs(script) else f" in {os.getcwd()}"
        raise ConfigError(f"there is no training script {script!r}{place}{_similar(script)}")
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise ConfigError(f"the training script {script!r} is a folder without a __main__.py")
    if not os.access(script, os.R_OK):
        raise ConfigError(f"the training script {script!r} cannot be read by this user")


def _check_module(module: str) -> None:
    flags = sys.flags
    if "PYTHON_EXEC" in os.environ or flags.ignore_environment or flags.no_site or flags.no_user_site:
        return  # the ranks' Python may look elsewhere
    name = module.partition(".")[0]
    sys.path.insert(0, "")  # as `python -m` has it
    try:
        here, found = os.getcwd(), find_spec(name)
    except Exception:  # an odd name, a finder of somebody's own, a folder that is gone
        return
    finally:
        sys.path.remove("")
    if found is None:
        raise ConfigError(
            f"there is no module {name!r} to run with -m: neither in {here} nor on the paths of "
            f"{sys.executable}{_similar_module(name)}"
        )


def _check_python() -> None:
    """torch takes the ranks' Python from this variable."""
    python = os.environ.get("PYTHON_EXEC")
    if python is not None and not shutil.which(python):
        raise ConfigError(
            f"PYTHON_EXEC: there is no program {python!r} to run the ranks with; unset it or mend it"
        )


def _check_program(program: str) -> None:
    if shutil.which(program):
        return
    if os.path.isfile(program) and os.path.dirname(program):
        raise ConfigError(f"the program {program!r} is not executable: chmod +x {program}")
    raise ConfigError(f"there is no program {program!r} (searched as a shell would, because of --no-python)")


def _similar(script: str) -> str:
    """``; did you mean …`` for the file of the same folder with the most similar name, or nothing."""
    folder, name = os.path.split(script)
    try:
        near = nearest(name, os.listdir(folder or "."))
    except OSError:
        near = None
    return f"; did you mean {os.path.join(folder, near)!r}?" if near else ""


def _similar_module(name: str) -> str:
    """As `_similar`, among what the current folder has to import."""
    try:
        files = [each for each in os.listdir() if each.endswith(".py") or os.path.isdir(each)]
    except OSError:
        files = []
    near = nearest(name, [each.removesuffix(".py") for each in files])
    return f"; did you mean {near!r}?" if near else ""
