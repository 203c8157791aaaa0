"""Files of an incident: written whole, read only where they are what they should be.

What always holds: a file is 0600 and whole, or not there; a link, a pipe or a file of a stranger that stands in its
place is neither followed nor waited for.

Does not cover: power failures (nothing is synced), and filesystems that do not answer.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress

from ...fault_tolerance.errors import HoldfastError

LARGEST = 256 << 20
"""Bytes of one file that are read; a report of 16,384 ranks has less than half of that."""


class FolderError(HoldfastError):
    """An incident's folder or file cannot be used. The message is one line: which, why, what to do."""


def write_file(folder: str, name: str, text: str) -> None:
    """Under another name first: who reads, reads the whole or nothing. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    new = f".{name[:60]}-{secrets.token_hex(8)}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(new, flags, 0o600, dir_fd=descriptor), "wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
        os.rename(new, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
    except BaseException:
        with suppress(OSError):
            os.unlink(new, dir_fd=descriptor)
        raise
    finally:
        os.close(descriptor)


def read_file(folder: str, name: str) -> bytes:
    """A file of an incident. Raises `OSError`, and `FolderError` where it is none of ours."""
    path = os.path.join(folder, name)
    # Not blocking: a pipe that was planted has no other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if problem := _problem(os.fstat(descriptor), os.lstat(folder).st_uid):
            raise FolderError(f"{path} {problem}. Remove it.")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(LARGEST)
    finally:
        os.close(descriptor)


def _problem(found: os.stat_result, owner: int) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "is no file: something else was put there"
    if found.st_uid not in (os.geteuid(), owner):
        return f"belongs to user {found.st_uid}, who does not own its folder"
    if found.st_size > LARGEST:
        return f"has {found.st_size >> 20} MiB, which no report of ours has"
    return ""
