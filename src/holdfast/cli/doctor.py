"""`holdfast doctor [options] [SCRIPT | -m MODULE] …`: whether this machine can run a training, and what to mend.

Does not cover: what is looked at; that is the room `doctor`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..fault_tolerance.errors import ConfigError
from ..torch_version import require_torch

MOST_RANKS = 10000
EPILOG = """exit codes: 0 no problem was found; 1 at least one; 2 wrong options, no such script, or torch is too old."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser(
        "doctor",
        usage="holdfast doctor [options] [SCRIPT | -m MODULE] ...",
        help="say whether this machine, and a script, are fit for a training, and what to do",
        description="Look at this machine, and at a script if one is named, as ft_launcher would use them: one line "
        "for each check, with a verdict (ok, note, problem) and what to do. Nothing is changed, the script is not run.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--nproc-per-node",
        "--nproc_per_node",
        default="1",
        metavar="N",
        help="how many ranks are to run here: a number, auto, cpu or gpu (default: 1)",
    )
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        help="the job's run directory (ft_launcher --ft-run-dir), where it will not be the default",
    )
    parser.add_argument(
        "--trial",
        action="store_true",
        help="import in a trial what SCRIPT imports, as a zygote does (takes as long as its imports)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as for python -m")
    parser.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def text(arguments: argparse.Namespace) -> tuple[str, int]:
    """What the command prints, and its exit code.

    Raises:
        ConfigError: for a wrong command line.
        UnsupportedTorch: if the torch of this Python is too old.
    """
    with _without_first_path():
        require_torch()
        return _text(arguments)


def _text(arguments: argparse.Namespace) -> tuple[str, int]:
    from .. import __version__
    from ..doctor.examination import Asked, examine
    from ..doctor.finding import PROBLEM, worst
    from ..doctor.script import Script
    from ..doctor.table import as_json, report

    words: list[str] = arguments.script[1:] if arguments.script[:1] == ["--"] else arguments.script
    nproc = _ranks(arguments.nproc_per_node)
    if arguments.module and not words:
        raise ConfigError("-m needs the name of a module: holdfast doctor -m package.train")
    if arguments.run_dir is not None and not arguments.run_dir.strip():
        raise ConfigError("--run-dir is empty")
    script = Script(words[0], arguments.module, tuple(words[1:])) if words else None
    if script is not None:
        _check(script.name, module=script.module)
    if arguments.trial and script is None:
        raise ConfigError("--trial needs a script: holdfast doctor --trial train.py")
    findings = examine(Asked(nproc, script, arguments.run_dir, arguments.trial))
    told = (
        as_json(findings, __version__, nproc, script.name if script else None)
        if arguments.json
        else _encodable(report(findings))
    )
    return told, int(worst(findings) == PROBLEM)


@contextmanager
def _without_first_path() -> Iterator[None]:
    """Without what Python has put in front for this program: with `python -m holdfast` that is the current folder, and
    a file in it that hides a module, which is to be found, would be imported here.
    """
    before = list(sys.path)
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[:1]
    try:
        yield
    finally:
        sys.path[:] = before


def _check(script: str, *, module: bool) -> None:
    """As ft_launcher does at its start; but a wrong PYTHON_EXEC is for the examination to tell."""
    from ..fault_tolerance.launcher.command_line.training_script import check_script

    try:
        os.getcwd()
    except OSError:
        raise ConfigError("the current folder is gone; go to another one") from None
    python = os.environ.get("PYTHON_EXEC")
    if python is not None and module:
        return  # the ranks' Python may know it
    try:
        os.environ.pop("PYTHON_EXEC", None)
        check_script(script, module=module, no_python=False, run_path=False)
    finally:
        if python is not None:
            os.environ["PYTHON_EXEC"] = python


def _ranks(text: str) -> int:
    from ..nvidia import count_gpus

    if text.isdecimal() and 0 < int(text) <= MOST_RANKS:
        return int(text)
    if text in ("auto", "gpu") and (found := count_gpus()):
        return found
    if text in ("auto", "cpu"):
        return os.cpu_count() or 1
    if text == "gpu":
        raise ConfigError(
            "--nproc-per-node gpu: there is no NVIDIA GPU on this node; give a number, cpu or auto"
        )
    raise ConfigError(
        f"--nproc-per-node {text}: give a number of ranks from 1 to {MOST_RANKS}, or auto, cpu or gpu"
    )


def _encodable(text: str) -> str:
    """In signs that standard output can take: names of files may have others."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
