"""A file of ours, whole: a reader gets the old one or the new one, and never a part. It is private unless asked.

Does not cover: a file that others write by its name, such as a checkpoint; `checkpoints.whole_file` does. A killed
writer leaves a file whose name begins with a dot and ends in random digits.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress


def write_file(
    folder: str, name: str, content: str | bytes, *, flush: bool = False, mode: int = 0o600
) -> None:
    """Write under another name first, then rename. A link with this name is replaced and not followed.

    Args:
        folder: where; it must not be a symbolic link itself.
        name: of the file in it.
        content: text is written as UTF-8, with what UTF-8 lacks escaped.
        flush: it survives a power cut.
        mode: whatever the umask is.

    Raises:
        OSError: what was there before stays.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    new = f".{name[:60]}-{secrets.token_hex(8)}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(new, flags, 0o600, dir_fd=descriptor), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            if flush:
                os.fsync(file.fileno())
        os.rename(new, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
    except BaseException:
        with suppress(OSError):
            os.unlink(new, dir_fd=descriptor)
        raise
    finally:
        os.close(descriptor)
