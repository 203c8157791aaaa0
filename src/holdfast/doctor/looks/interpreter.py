"""The Python of the launcher and that of the ranks, and the torch that they have.

torch itself is not imported: what its package says of itself is enough.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from ..judgements.warm_start import Interpreter

PATIENCE = 2.0
"""Seconds that another interpreter may take to say who it is."""
QUESTION = """
import sys
del sys.path[0]  # the current folder: a file there must not stand in for a module of Python
import json
from importlib.metadata import PackageNotFoundError, version
try:
    torch = version("torch")
except PackageNotFoundError:
    torch = ""
print(json.dumps([sys.executable, sys.version_info[:3], sys.prefix, torch]))
"""


def own() -> Interpreter:
    """This Python."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    return Interpreter(sys.executable, tuple(sys.version_info[:3]), sys.prefix, torch)


def of_ranks(environment: Mapping[str, str] = os.environ) -> Interpreter:
    """The one that PYTHON_EXEC names, from which torch's agent takes it; else this one."""
    wanted = environment.get("PYTHON_EXEC")
    if wanted is None:
        return own()
    if not shutil.which(wanted):
        return Interpreter(wanted, (), "", error="there is no such program")
    try:
        done = subprocess.run(
            [wanted, "-c", QUESTION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        executable, numbers, prefix, torch = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Interpreter(wanted, (), "", error=f"it does not answer ({type(error).__name__})")
    except ValueError:
        return Interpreter(wanted, (), "", error="it is no Python")
    return Interpreter(executable, tuple(numbers), prefix, torch)
