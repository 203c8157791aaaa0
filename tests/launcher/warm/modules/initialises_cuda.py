"""Initialises CUDA when it is imported; $CUDA_HERE says where the driver's library is."""

import ctypes
import os

cuda = ctypes.CDLL(os.environ["CUDA_HERE"])
assert cuda.cuInit(0) == 0


def check() -> None:
    assert cuda.fake_cuda_works()
