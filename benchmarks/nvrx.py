"""The peer NVRx 0.4.1, installed beside the torch that is here, in an environment of its own under build/."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from benchmarks import environments

VERSION = "0.4.1"


@cache
def launcher() -> list[str] | None:
    """The command of its `ft_launcher`, installed at the first call; None where it cannot be installed."""
    try:
        python = environments.beside(f"nvrx-{VERSION}", [f"nvidia-resiliency-ext=={VERSION}"])
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no figures of NVRx {VERSION}, which cannot be installed here: {error}", file=sys.stderr)
        return None
    return [python, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher"]
