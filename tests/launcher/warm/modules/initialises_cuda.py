"""Initialises CUDA when it is imported, and keeps a file open, like a driver; $CUDA_HERE is the driver's library."""

import ctypes
import os

cuda = ctypes.CDLL(os.environ["CUDA_HERE"])
assert cuda.cuInit(0) == 0
device = os.open("/dev/null", os.O_RDWR)


def check() -> None:
    assert cuda.fake_cuda_works()
