"""Starts a thread that Python does not know: what an extension module may do when it is imported."""

import ctypes
import os

libc = ctypes.CDLL(None)
thread = ctypes.c_ulong()
assert libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(libc.pause, ctypes.c_void_p), None) == 0
libc.pthread_setname_np(thread, b"of an extension")


def check() -> None:
    names = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    assert "of an extension" in names, names
