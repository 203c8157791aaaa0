"""Keeps a file, an eventfd and an inotify instance open from its import on."""

import ctypes
import os
import tempfile

file = tempfile.TemporaryFile()  # noqa: SIM115 - that is what it does
counter = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
watch = ctypes.CDLL(None).inotify_init1(os.O_CLOEXEC)


def check() -> None:
    file.write(b"one")
    assert file.tell() == 3
    os.eventfd_write(counter, 1)
    assert os.eventfd_read(counter) == 1
    assert os.readlink(f"/proc/self/fd/{watch}") == "anon_inode:inotify"
