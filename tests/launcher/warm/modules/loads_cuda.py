"""Loads the GPU driver's library when it is imported, as torch does; $CUDA_HERE says where one is."""

import ctypes
import os

cuda = ctypes.CDLL(os.environ["CUDA_HERE"])


def check() -> None:
    assert cuda.cuInit(0) == 0
