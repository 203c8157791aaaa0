"""Is there a training script to run? Asked before anything starts, because a typing error is the commonest failure.

Does not cover: modules (``-m``: whether one can be found depends on the rank's own Python), and scripts that exist on
this node and not on another.
"""

from __future__ import annotations

import os
import shutil

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


def _check_file(script: str) -> None:
    if not os.path.exists(script):
        place = "" if os.path.isabs(script) else f" in {os.getcwd()}"
        raise ConfigError(f"there is no training script {script!r}{place}{_similar(script)}")
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise ConfigError(f"the training script {script!r} is a folder without a __main__.py")
    if not os.access(script, os.R_OK):
        raise ConfigError(f"the training script {script!r} cannot be read by this user")


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
