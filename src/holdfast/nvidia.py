"""The NVIDIA driver of this machine, detected by its files. No library is loaded or called."""

from __future__ import annotations

import glob
import os

SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/nvmap")
"""A container may lack the first. The last two are for WSL and Jetson, from their documentation; not tried there."""


def find_driver() -> str:
    """The file that shows a driver, or ''."""
    return next(filter(os.path.exists, SIGNS), "")


def count_gpus() -> int:
    """Number of GPUs that the driver shows to this node or container."""
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return len(glob.glob("/dev/nvidia[0-9]*"))
