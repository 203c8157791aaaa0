"""Starting a monitor process: the launcher's, and that of a `RankMonitorServer`.

What always holds: nothing that a user installs or sets slows it down or breaks it. Python runs isolated and without
site, what lies beside this package cannot stand in for the standard library, and of the environment the monitor gets
only what the interpreter itself may need (no LD_PRELOAD, no malloc or profiler switches). It has a session of its own
and is deaf to the training's signals from birth.
Does not cover: an LD_LIBRARY_PATH that leads to a broken library; some interpreters are not found without theirs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from .deafness import born_deaf

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PACKAGE_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
KEPT = (
    "LD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
)  # loading, text and time of log lines
OURS = "HOLDFAST_"  # whoever marks all processes of a job with a variable of ours finds the monitor as well


def command(module: str, argument: str) -> list[str]:
    """The command line of a process that runs `main` of this module of ours, which finds its argument in sys.argv."""
    code = f"import sys; sys.path.append({PACKAGE_ROOT!r}); from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", code, argument]


def start(module: str, settings: DataclassInstance, channel: int) -> subprocess.Popen[bytes]:
    """Start a monitor whose `main` is in `module`; it inherits the descriptor `channel`. OSError if that fails."""
    with born_deaf():
        return subprocess.Popen(
            command(module, json.dumps(asdict(settings))),
            env={name: value for name, value in os.environ.items() if name in KEPT or name.startswith(OURS)},
            pass_fds=[channel],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
