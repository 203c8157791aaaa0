"""The command line of `holdfast`, and where results and errors go.

What always holds: results go to standard output, and an error, also one of standard output itself, is one line on
standard error with exit code 2.

Does not cover: starting ranks; that is `ft_launcher`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from .. import __version__
from ..fault_tolerance.errors import HoldfastError
from .options import encodable

COMMANDS = [
    "autoresume",
    "diagnose",
    "doctor",
    "goodput",
    "incidents",
    "nodes",
    "replay",
    "slurm",
    "stragglers",
    "top",
]
"""Each a module of this package, with `add`, its part of the command line, and `run`."""
USAGE = 2


def console() -> int:
    """The entry point; returns the exit code."""
    try:
        try:
            code = main(sys.argv[1:])
        except SystemExit as stop:  # argparse: --help, --version, or an error that it has printed
            code = stop.code if isinstance(stop.code, int) else 0
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where its error can still be reported
        return code
    except BrokenPipeError:  # `holdfast incidents … | head`: the reader has closed the pipe
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        print(f"holdfast: error: standard output: {error.strerror}; the result is lost", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return 130


def main(argv: Sequence[str]) -> int:
    """Run one command; returns the exit code, and raises SystemExit for a wrong command line.

    A command returns its text, bytes that are printed as they are, or an exit code. An `OSError` is one of standard
    output.
    """
    arguments = _parser().parse_args(argv)
    try:
        result: str | bytes | int | tuple[str, int] = arguments.run(arguments)
    except HoldfastError as error:
        print(f"holdfast: error: {error}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"holdfast: error: {_reason(error)}", file=sys.stderr)
        return USAGE
    if isinstance(result, int):  # the exit code of a command that prints by itself
        return result
    text, code = result if isinstance(result, tuple) else (result, 0)
    if sys.stdout is None:
        print("holdfast: error: standard output is closed; the result is lost", file=sys.stderr)
        return USAGE
    if isinstance(text, bytes):
        sys.stdout.buffer.write(text)
    else:
        sys.stdout.write(encodable(text))
    return code


def _reason(error: OSError) -> str:
    from ..fault_tolerance.launcher.command_line.checks import check_folder

    try:
        check_folder()
    except HoldfastError as gone:
        return str(gone)
    return f"{error.filename}: {error.strerror or error}" if error.filename else error.strerror or str(error)


def _drop_output() -> None:
    """Or the interpreter would try once more to flush it at its end, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """Abbreviated options are refused: one may be a misspelt other option."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="holdfast",
        description="Start a training again until it is finished, show what jobs of ft_launcher recorded, and check "
        "whether this machine can run one.",
    )
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    commands: Any = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (import_module(f".{name}", __package__) for name in COMMANDS):
        command.add(commands).set_defaults(run=command.run)
    return parser
