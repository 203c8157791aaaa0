"""The NVIDIA driver of this machine, by the files that it shows. Nothing of it is loaded or called.

Does not cover: WSL and Jetson, which show neither file.
"""

from __future__ import annotations

import glob
import os

SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl")
"""A container may lack the first, and a driver that no program has used yet the second."""


def driver() -> str:
    """The file that shows that there is a driver ('' where there is none)."""
    return next(filter(os.path.exists, SIGNS), "")


def gpus() -> int:
    """How many GPUs it shows."""
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return len(glob.glob("/dev/nvidia[0-9]*"))
