"""Frameworks that the ranks of a job share: its zygote imports them once (`--ft-preload`), and no rank does.

Importing takes most of what a small job costs.
Does not cover: which modules can be imported ahead, and that ranks are the same without it: `tests/launcher/warm`.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ROOT / "tests" / "ptl_resiliency" / "programs" / "without_extras.py"
BARE = f"{EXTRAS.read_text()}\nwith without_extras():\n    import lightning.pytorch\n"
PATH = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}
TRANSFORMERS = "--ft-preload=transformers.trainer,accelerate,holdfast.integrations.transformers"
"""The launcher's option."""


def lightning(folder: Path, *modules: str) -> tuple[str, dict[str, str]]:
    """The launcher's option and the environment for a job with Lightning as `without_extras` has it, and these modules.

    What is imported ahead must be installed, so it is: in this folder, as by `pip install --user`.
    """
    installed = Path(sysconfig.get_path("purelib", "posix_user", {"userbase": str(folder)}))
    installed.mkdir(parents=True, exist_ok=True)
    (installed / "lightning_ahead.py").write_text(BARE)
    names = ",".join(("lightning_ahead", "holdfast.ptl_resiliency", *modules))
    path = f"{PATH['PYTHONPATH']}{os.pathsep}{installed}"
    return f"--ft-preload={names}", {"PYTHONUSERBASE": str(folder), "PYTHONPATH": path}
