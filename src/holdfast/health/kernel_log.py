"""The kernel's log, read record by record.

A record is `level,number,time,flags;text`, and lines of fields after it. Source: Documentation/ABI/testing/dev-kmsg.
Does not cover: a container that may not read it, of which `refused` tells.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

DEVICE = "/dev/kmsg"
MOST = 10_000
"""Records that are read at a time."""
_RECORD = 8192


class KernelLog:
    """The log from its oldest record on, or only what is new."""

    def __init__(self, device: str = DEVICE, *, is_new_only: bool = False) -> None:
        self.refused = ""
        """Why the log cannot be read; empty where it can."""
        self._handle = -1
        try:
            self._handle = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if is_new_only:
                os.lseek(self._handle, 0, os.SEEK_END)
        except OSError as error:
            self.close()
            self.refused = f"{device}: {error.strerror or error}"

    def texts(self) -> Iterator[str]:
        """The texts of the records since the last call."""
        for _ in range(MOST if self._handle >= 0 else 0):
            try:
                record = os.read(self._handle, _RECORD)
            except BrokenPipeError:  # records that were not read are overwritten; the next one is there
                continue
            except OSError:  # nothing more, mostly
                return
            if not record:
                return
            yield record.decode(errors="replace").partition(";")[2].partition("\n")[0]

    def close(self) -> None:
        """Close the log. Safe to call twice."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
