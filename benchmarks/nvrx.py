"""The peer NVRx 0.4.1, installed beside the torch that is here, in an environment of its own under build/.

``python -m benchmarks.nvrx`` installs it and downloads its wheels, and exits with 1 where that fails.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

from benchmarks import environments

VERSION = "0.4.1"
HOME = f"nvrx-{VERSION}"
WHEELS = ("0.3.0", "0.4.1")
"""Versions of which the wheel itself is kept, for the tests that install it beside Holdfast."""


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


def wheel(version: str) -> Path | None:
    """The wheel for this Python, if `make nvrx` could download it."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return next(
        (environments.BUILD / "nvrx-wheels").glob(f"nvidia_resiliency_ext-{version}-{tag}-*.whl"), None
    )


def download() -> bool:
    """Fetch the wheels that are missing; whether all are there."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    for version in WHEELS:
        if wheel(version) is None:
            where = ["--dest", str(environments.BUILD / "nvrx-wheels"), f"nvidia-resiliency-ext=={version}"]
            subprocess.run([*pip, *where], stdout=sys.stderr)
    return all(map(wheel, WHEELS))


if __name__ == "__main__":
    sys.exit(launcher() is None or not download())
