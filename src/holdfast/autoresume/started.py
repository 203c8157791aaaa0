"""What a command line tells of the `ft_launcher` in it: its run directory, its exit code after a preemption.

What always holds: a command line that cannot be understood tells nothing; `ft_launcher` says itself what is wrong.

Does not cover: an `ft_launcher` that a script starts. It finds the run directory in its environment.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..fault_tolerance.errors import ConfigError
from .outcome import PREEMPTED_CODE

RUN_DIR, PREEMPTED = "PET_FT_RUN_DIR", "PET_FT_PREEMPTED_EXIT_CODE"
"""Where `ft_launcher` looks for what its command line does not say."""

MODULE = ".fault_tolerance.launcher"


@dataclass(frozen=True, slots=True)
class Launcher:
    """What is known of the `ft_launcher` that a command starts."""

    is_launcher: bool = False
    run_dir: str | None = None
    """None where neither command line nor environment names one."""
    preempted_code: int = PREEMPTED_CODE


def launcher_in(command: Sequence[str], environ: Mapping[str, str]) -> Launcher:
    """Read the command (a list of words), and what the environment adds to it."""
    arguments = _arguments(command)
    given = _given(arguments) if arguments is not None else {}
    code = given.get("preempted_exit_code") or environ.get(PREEMPTED, "").strip()
    return Launcher(
        is_launcher=arguments is not None,
        run_dir=given.get("run_dir") or environ.get(RUN_DIR, "").strip() or None,
        preempted_code=int(code) if code.isdecimal() else PREEMPTED_CODE,
    )


def _arguments(command: Sequence[str]) -> Sequence[str] | None:
    """What follows `ft_launcher`, or `-m holdfast.fault_tolerance.launcher`; None where neither is in the command."""
    for index, word in enumerate(command):
        if os.path.basename(word) == "ft_launcher" or (word.endswith(MODULE) and "-m" in command[:index]):
            return command[index + 1 :]
    return None


def _given(arguments: Sequence[str]) -> dict[str, str]:
    from ..fault_tolerance.launcher.command_line.scan import Vocabulary, scan

    try:
        line = scan(arguments, Vocabulary())
    except ConfigError:
        return {}
    return {key: given.value for key, given in line.ft.items() if isinstance(given.value, str)}


def missing(program: str) -> str:
    """Why there is no such program, for people; nothing where there is one."""
    if not program.strip():
        return "the command after -- is an empty word (a variable that is not set?)"
    if shutil.which(program):
        return ""
    if os.path.dirname(program) and os.path.exists(program):
        return f"{program} cannot be executed (is it a file, with mode +x?)"
    return f"{program}: no such program" + ("" if os.path.dirname(program) else " in PATH")
