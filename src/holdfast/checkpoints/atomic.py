"""A checkpoint that is complete or absent: written beside its place, flushed, and then renamed.

What always holds: the name of an unfinished one begins with a dot and ends in `.partial`, which nothing picks up on
resume; the next save of the same checkpoint removes it. Devices, pipes and sockets are never replaced. Does not cover:
places that are no local path (object stores write whole objects).
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SUFFIX = ".partial"


def aside(path: str) -> str:
    """Where a checkpoint is written before it is complete."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}{SUFFIX}")


def is_aside(path: str) -> bool:
    """Whether this is such a place."""
    name = os.path.basename(path)
    return name.startswith(".") and name.endswith(SUFFIX)


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """`with whole_file("step-100.pt") as unfinished: torch.save(state, unfinished)`: at the end of the block the file
    is flushed and gets its name; when an exception ends the block, it is removed, and what was there before stays.

    Makes the folder. Raises OSError; before the block, if something else than a file is there, such as a device: it
    stays what it is. For one writer.
    """
    final = os.path.abspath(os.fspath(path))
    _refuse_devices(final)
    _refuse_folder(final)
    os.makedirs(os.path.dirname(final), exist_ok=True)
    unfinished = aside(final)
    try:
        yield Path(unfinished)
        put_in_place(unfinished, final)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def put_in_place(unfinished: str, final: str, *, replaces_folder: bool = False) -> None:
    """Give a complete file or folder its name, a file so that it survives a power cut. Raises OSError.

    What is there, a damaged one that was skipped for example, is replaced; a folder by a file only with
    `replaces_folder`, since it may hold other checkpoints. Does nothing where nothing was written.
    """
    _refuse_devices(final)
    if os.path.isfile(unfinished):
        if not replaces_folder:
            _refuse_folder(final)
        flush(unfinished)
        if not _is_folder(final):
            os.replace(unfinished, final)
            with suppress(OSError):
                flush(os.path.dirname(final))
            return
    if os.path.lexists(unfinished):
        if os.path.lexists(final):
            exchange(unfinished, final)
        else:
            os.rename(unfinished, final)


def exchange(unfinished: str, final: str) -> None:
    """Where one of them is a folder it takes two steps. Between them the old one has a name that is found as well.

    Raises OSError.
    """
    stem, extension = os.path.splitext(final)
    between, old = f"{stem}-before{extension}", aside(f"{final}.old")
    remove(between)
    remove(old)
    os.rename(final, between)
    os.rename(unfinished, final)
    os.rename(between, old)  # before it is removed piece by piece
    remove(old)


def remove(path: str) -> None:
    """A file, a link or a whole folder; nothing if there is none. Raises OSError."""
    if _is_folder(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _refuse_devices(final: str) -> None:
    """And pipes and sockets: a rename would leave a file in their place. Also where a link leads to one."""
    try:
        mode = os.stat(final).st_mode
    except OSError:  # nothing there, or a link to nowhere, which may be replaced
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "there is something else than a file, which stays", final)


def _refuse_folder(final: str) -> None:
    if _is_folder(final):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), final)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def flush(path: str | os.PathLike[str]) -> None:
    """Put a file on the disk, or the names in a folder. Raises OSError, but not where the filesystem cannot do that."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
