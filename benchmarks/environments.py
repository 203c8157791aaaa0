"""Virtual environments under build/ for what is compared, most of which see the torch that is here; NVRx among them.

``python -m benchmarks.environments`` installs NVRx and downloads its wheels, and exits with 1 where that fails.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from functools import cache
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent / "build"
VERSION = "0.4.1"
NVRX = f"NVRx {VERSION}"
WHEELS = ("0.3.0", "0.4.1")
"""Versions of which the wheel itself is kept, for the tests that install it beside Holdfast."""


def beside(name: str, requirements: list[str], *, anew: bool = False, alone: bool = False) -> str:
    """The Python of an environment with these and what they need, installed at the first call, or `anew`.

    Args:
        alone: It sees nothing that is installed here.

    Raises OSError or subprocess.CalledProcessError where that is impossible.
    """
    home = BUILD / name
    python, done = home / "bin" / "python", home / "installed"
    if anew or not done.exists():
        venv.create(home, with_pip=True, clear=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        if not alone:  # it sees what is installed here, and installs what is missing
            site = home / "lib" / version / "site-packages"
            (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements], check=True, stdout=sys.stderr)
        done.touch()
    return str(python)


def has_nvrx() -> bool:
    """Whether `nvrx` has nothing to install."""
    return (BUILD / f"nvrx-{VERSION}" / "installed").exists()


@cache
def nvrx() -> list[str] | None:
    """The command of NVRx's `ft_launcher`, installed at the first call; None where it cannot be installed."""
    try:
        python = beside(f"nvrx-{VERSION}", [f"nvidia-resiliency-ext=={VERSION}"])
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no figures of {NVRX}, which cannot be installed here: {error}", file=sys.stderr)
        return None
    return [python, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher"]


def nvrx_wheel(version: str) -> Path | None:
    """NVRx's wheel for this Python, if `make nvrx` could download it."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return next((BUILD / "nvrx-wheels").glob(f"nvidia_resiliency_ext-{version}-{tag}-*.whl"), None)


def _download() -> bool:
    """Fetch the wheels that are missing; whether all are there."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    for version in WHEELS:
        if nvrx_wheel(version) is None:
            where = ["--dest", str(BUILD / "nvrx-wheels"), f"nvidia-resiliency-ext=={version}"]
            subprocess.run([*pip, *where], stdout=sys.stderr)
    return all(map(nvrx_wheel, WHEELS))


if __name__ == "__main__":
    sys.exit(nvrx() is None or not _download())
