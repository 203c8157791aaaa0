"""Paths that a job needs: whether each exists and can be read, and where asked for, written.

It runs in a process of its own (`probe`), each path in a thread, because a filesystem that hangs keeps both.
Does not cover: quotas; a filesystem that serves the folder from a cache while its server is gone.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Callable, Sequence

from . import ABSENT, GOOD, SICK, WARNING, Finding

CHECK = "storage"
DISTRIBUTED = {"lustre", "nfs", "nfs4"}
LUSTRE = "/sys/fs/lustre/health_check"


def mounts(table: str = "/proc/self/mounts") -> list[str]:
    """Where Lustre and NFS are mounted."""
    with open(table, encoding="utf-8", errors="replace") as file:
        lines = [line.split() for line in file]
    return [words[1].replace("\\040", " ") for words in lines if len(words) > 2 and words[2] in DISTRIBUTED]


def check(
    paths: Sequence[str], write_path: str, *, distributed: bool, report: Callable[[Finding], None]
) -> None:
    """Report one finding for each path, as soon as it is known. Returns when all are."""
    work: list[Callable[[], Finding]] = [lambda path=path: readable(path) for path in paths]  # type: ignore[misc]
    if write_path:
        work.append(lambda: writable(write_path))
    if distributed:
        work.append(lustre)
        work += [lambda path=path: reachable(path) for path in mounts()]  # type: ignore[misc]
    threads = [threading.Thread(target=lambda each=each: report(each()), daemon=True) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def readable(path: str) -> Finding:
    """A folder is listed, of a file one byte is read."""
    try:
        if os.path.isdir(path):
            with os.scandir(path) as entries:
                next(entries, None)
        else:
            with open(path, "rb", buffering=0) as file:
                file.read(1)
    except OSError as error:
        return Finding(CHECK, SICK, f"{path} cannot be read: {error.strerror or error}", what=path)
    return Finding(CHECK, GOOD, f"{path} can be read", what=path)


def writable(folder: str) -> Finding:
    """A file is made in it, written to disk, and removed."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".holdfast-health-", dir=folder) as file:
            file.write(b"health")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Finding(CHECK, SICK, f"{folder} cannot be written: {error.strerror or error}", what=folder)
    return Finding(CHECK, GOOD, f"{folder} can be written", what=folder)


def reachable(mount: str) -> Finding:
    """Whether the server of a mount answers."""
    try:
        os.statvfs(mount)
    except OSError as error:
        is_gone = error.errno in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN)
        text = f"the mount {mount} does not answer: {error.strerror or error}"
        return Finding(CHECK, SICK if is_gone else WARNING, text)
    return Finding(CHECK, GOOD, f"the mount {mount} answers")


def lustre(file: str = LUSTRE) -> Finding:
    """What Lustre reports of itself."""
    try:
        with open(file, encoding="utf-8") as health:
            text = health.read(200).strip()
    except FileNotFoundError:
        return Finding(CHECK, ABSENT, "Lustre: not on this machine")
    except OSError as error:
        return Finding(CHECK, WARNING, f"Lustre: not checked ({file}: {error.strerror})")
    return Finding(CHECK, GOOD if text == "healthy" else SICK, f"Lustre reports {text!r}")
