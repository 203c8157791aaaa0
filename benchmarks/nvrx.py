"""The peer NVRx 0.4.1, installed beside the torch that is here, in an environment of its own under build/.

``python -m benchmarks.nvrx`` installs it, and ends with 1 where that cannot be done.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from benchmarks import environments

VERSION = "0.4.1"
HOME = f"nvrx-{VERSION}"


def installed() -> bool:
    """Whether it is there, so that `launcher` has nothing to install."""
    return (environments.BUILD / HOME / "installed").exists()


@cache
def launcher() -> list[str] | None:
    """The command of its `ft_launcher`, installed at the first call; None where it cannot be installed."""
    try:
        python = environments.beside(HOME, [f"nvidia-resiliency-ext=={VERSION}"])
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no figures of NVRx {VERSION}, which cannot be installed here: {error}", file=sys.stderr)
        return None
    return [python, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher"]


if __name__ == "__main__":
    sys.exit(launcher() is None)
