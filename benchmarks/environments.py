"""Virtual environments under build/, most of which see the torch that is here: all that is measured has the same."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent / "build"


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
