"""What modules print while they are imported here is kept, and printed again by every rank that starts from here.

Does not cover: in which order what went to standard output and to standard error was written.
"""

from __future__ import annotations

import os
import sys

STREAMS = (1, 2)


class Kept:
    """Output between `begin` and `end`, by descriptor."""

    def __init__(self) -> None:
        self._saved: dict[int, int] = {}
        self._files: dict[int, int] = {}
        self.text: dict[int, bytes] = {}

    def begin(self) -> None:
        """From now on it is kept. A stream that is closed stays so."""
        for stream in STREAMS:
            try:
                self._saved[stream] = os.dup(stream)
            except OSError:
                continue
            self._files[stream] = os.memfd_create("output")
            os.dup2(self._files[stream], stream)

    def end(self) -> None:
        """It goes where it went before."""
        _flush()
        for stream, saved in self._saved.items():
            file = self._files[stream]
            self.text[stream] = os.pread(file, os.fstat(file).st_size, 0)
            os.dup2(saved, stream)
            os.close(saved)
            os.close(file)
        self._saved, self._files = {}, {}

    def repeat(self) -> None:
        """Print it, in a rank, to where the rank's output goes."""
        for stream, text in self.text.items():
            while text:
                text = text[os.write(stream, text) :]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
