"""`holdfast doctor [options] [SCRIPT | -m MODULE] …`: whether this machine can run a training, and what to fix.

Does not cover: the checks; see `holdfast.doctor`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .. import __version__
from ..fault_tolerance.errors import ConfigError
from ..lazy import require_torch

MOST_RANKS = 10000
EPILOG = """exit codes: 0 no problem was found; 1 at least one; 2 wrong options, no such script, or torch is too old."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser(
        "doctor",
        usage="holdfast doctor [options] [SCRIPT | -m MODULE] ...",
        help="check whether this machine can run a training, and print what to fix",
        description="Check this machine as ft_launcher would use it: one line for each check, with a verdict (ok, "
        "note, problem) and what to do. Nothing is changed, and SCRIPT is not run.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--nproc-per-node",
        "--nproc_per_node",
        default="1",
        metavar="N",
        help="the number of ranks on this machine: a number, auto, cpu or gpu (default: 1)",
    )
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        help="the job's run directory (ft_launcher --ft-run-dir), if it is not the default",
    )
    parser.add_argument(
        "--trial",
        action="store_true",
        help="import what SCRIPT imports, as a warm start does (takes as long as the imports)",
    )
    parser.add_argument(
        "--storage-path",
        default="",
        metavar="PATH,...",
        help="paths that must exist and be readable (storage_healthcheck_path)",
    )
    parser.add_argument(
        "--health-command",
        default="",
        metavar="COMMAND",
        help="one more check of the node (ft_launcher --ft-health-command)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as for python -m")
    parser.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


@contextmanager
def _without_first_path() -> Iterator[None]:
    """Without the folder that Python has put first on the path.

    With `python -m holdfast` that is the current folder, and a file in it that hides a module would be imported.
    """
    before = list(sys.path)
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[:1]
    try:
        yield
    finally:
        sys.path[:] = before


@_without_first_path()
def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """What the command prints, and its exit code.

    Raises:
        ConfigError: for a wrong command line.
        UnsupportedTorch: if the torch of this Python is too old.
    """
    require_torch()
    from ..doctor.checks import run_checks
    from ..doctor.table import PROBLEM, as_json, report, worst
    from ..fault_tolerance.launcher.warm.plan import Request
    from ..fault_tolerance.processes.proc import nvidia_driver
    from ..health.cards import LINK_DOWN
    from ..health.checks import Wanted

    words: list[str] = arguments.script[1:] if arguments.script[:1] == ["--"] else arguments.script
    nproc = _ranks(arguments.nproc_per_node)
    if arguments.module and not words:
        raise ConfigError("-m needs the name of a module: holdfast doctor -m package.train")
    if arguments.run_dir is not None and not arguments.run_dir.strip():
        raise ConfigError("--run-dir is empty")
    if arguments.trial and not words:
        raise ConfigError("--trial needs a script: holdfast doctor --trial train.py")
    script = None
    if words:
        _check_script(words[0], module=arguments.module)
        script = Request("auto", words[0], tuple(words[1:]), arguments.module, several=nproc > 1)
    paths = tuple(path.strip() for path in arguments.storage_path.split(",") if path.strip())
    command = arguments.health_command
    wanted = Wanted(nvidia_driver(), link_down=LINK_DOWN, storage_paths=paths, command=command)
    findings = run_checks(nproc, script, arguments.run_dir, trial=arguments.trial, wanted=wanted)
    code = int(worst(findings) == PROBLEM)
    if arguments.json:
        return as_json(findings, __version__, nproc, words[0] if words else None), code
    return report(findings), code


def _check_script(script: str, *, module: bool) -> None:
    """As ft_launcher does at its start; but a wrong PYTHON_EXEC is a finding."""
    from ..fault_tolerance.launcher.command_line.checks import check_folder, check_script

    check_folder()
    python = os.environ.get("PYTHON_EXEC")
    if python is not None and module:
        return  # the ranks' Python may have it
    try:
        os.environ.pop("PYTHON_EXEC", None)
        check_script(script, module=module, no_python=False, run_path=False)
    finally:
        if python is not None:
            os.environ["PYTHON_EXEC"] = python


def _ranks(text: str) -> int:
    from ..fault_tolerance.processes.proc import nvidia_gpus

    if text.isdecimal() and 0 < int(text) <= MOST_RANKS:
        return int(text)
    if text in ("auto", "gpu") and (found := nvidia_gpus()):
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
