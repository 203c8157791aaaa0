"""The peer NVRx 0.4.1, installed beside the torch that is here, in an environment of its own under build/.

``python -m benchmarks.nvrx`` installs it, and ends with 1 where that cannot be done.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from functools import cache
from pathlib import Path

VERSION = "0.4.1"
HOME = Path(__file__).resolve().parent.parent / "build" / f"nvrx-{VERSION}"
LAUNCHER = [str(HOME / "bin" / "python"), "-m", "nvidia_resiliency_ext.fault_tolerance.launcher"]


def installed() -> bool:
    """Whether it is there."""
    return (HOME / "installed").exists()


@cache
def launcher() -> list[str] | None:
    """The command of its `ft_launcher`, installed at the first call; None where it cannot be installed."""
    if not installed():
        try:
            _install()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"no figures of NVRx {VERSION}, which cannot be installed here: {error}", file=sys.stderr)
            return None
        (HOME / "installed").touch()
    return LAUNCHER


def _install() -> None:
    venv.create(HOME, with_pip=True, clear=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # The same torch for both: the peer's environment sees what is installed here, and installs the rest itself.
    beside = HOME / "lib" / version / "site-packages" / "beside.pth"
    beside.write_text(sysconfig.get_path("purelib") + "\n")
    pip = [str(HOME / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"nvidia-resiliency-ext=={VERSION}"], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(launcher() is None)
