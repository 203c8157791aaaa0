"""The output of all ranks in one file per cycle: `--ft-per-cycle-applog-prefix`.

`/logs/job.log` and `/logs/job` both give `/logs/job_cycle0.log`, `/logs/job_cycle1.log`, …
A file of an earlier attempt is appended to. Each line is `rank N: ` and the bytes that the rank wrote; a line of more
than `LONGEST` bytes is cut into several.
A stream that would be the launcher's, or shown nowhere, is a pipe that the launcher reads and copies to where it was
going. A stream that goes to a file of `--log-dir` stays there, and the file is followed.

What always holds: the disk of the log never delays a rank. Lines are dropped and counted instead (:mod:`..writer`).
Does not cover: the order between stdout and stderr of one rank where they go to different places; a process that
outlives its rank and the sweep, which can write no more once its cycle is over.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TextIO

from ..writer import AT_THE_END, CAPACITY, AppendedFile, Stream, Writer
from .copying import Following, Pipe, PipeReading

logger = logging.getLogger("holdfast.launcher")
LONGEST = 1 << 16
"""Bytes of a line."""
Paths = tuple[str, str]
"""Where stdout and stderr of a rank go; empty: to the launcher's own stream."""


def file_of(prefix: str, cycle: int) -> str:
    """The file of a cycle; its extension is the prefix's, or `.log`."""
    root, extension = os.path.splitext(prefix)
    return f"{root}_cycle{cycle}{extension or '.log'}"


class RankLines:
    """Makes the lines of one source of a rank, whole and with its number."""

    def __init__(self, rank: int, put: Callable[[bytes], None]) -> None:
        self._prefix, self._put = b"rank %d: " % rank, put
        self._begun = b""

    def take(self, chunk: bytes) -> None:
        """The next bytes, at most `LONGEST`."""
        rest = self._begun + chunk
        while _first_line(rest) > LONGEST:  # the first line alone can be so long
            self._put(self._prefix + rest[:LONGEST] + b"\n")
            rest = rest[LONGEST:]
        whole, newline, self._begun = rest.rpartition(b"\n")
        if newline:
            self._put(self._prefix + whole.replace(b"\n", b"\n" + self._prefix) + b"\n")

    def end(self) -> None:
        """There are no more: the last line has no end."""
        if self._begun:
            self._put(self._prefix + self._begun + b"\n")
            self._begun = b""


def _first_line(text: bytes) -> int:
    end = text.find(b"\n")
    return len(text) if end < 0 else end


class CycleLog:
    """Makes the files of one cycle after the other, written by one thread as long as the launcher runs.

    Args:
        prefix: An absolute path.
        node: The name of this node, for the line on lost lines.
        record: Of the journal.
    """

    def __init__(self, prefix: str, node: str, record: Callable[..., object]) -> None:
        self._prefix, self._node, self._record = prefix, node, record
        self._writer = Writer("holdfast-applog", self._report)

    def open(self, cycle: int, ranks: Mapping[int, int], paths: Mapping[int, Paths]) -> CycleFile:
        """For a cycle whose ranks are about to start. Raises OSError.

        Args:
            ranks: Ranks by local rank.
            paths: Where their output would go, by local rank.
        """
        file = CycleFile(self._writer, AppendedFile(file_of(self._prefix, cycle), self._node))
        try:
            file.place(ranks, paths)
        except OSError:
            file.end()
            raise
        return file

    def close(self) -> None:
        """Write what is left, for a second at most."""
        self._writer.close(AT_THE_END)

    def _report(self, path: str, reason: str) -> None:
        limit = f"lines that do not fit into {CAPACITY >> 20} MiB of memory are lost"
        logger.warning("the ranks' output cannot be appended to %s: %s; %s", path, reason, limit)
        self._record("output_lost", path=path, reason=reason)


class CycleFile:
    """The file of one cycle, and the sources of its lines."""

    def __init__(self, writer: Writer, file: AppendedFile) -> None:
        self._writer, self._file = writer, file
        self._pipes: dict[
            tuple[int, int], Pipe
        ] = {}  # by rank and the launcher's descriptor; 0: shown nowhere
        self._followed: dict[str, RankLines] = {}
        self._threads: list[Following | PipeReading] = []
        self.paths: dict[int, Paths] = {}
        """Where the output of each local rank goes now."""

    def place(self, ranks: Mapping[int, int], paths: Mapping[int, Paths]) -> None:
        """Make the pipes. Raises OSError."""
        self._writer.put(self._file, b"")
        out, err = _own_stream(sys.stdout), _own_stream(sys.stderr)
        if out and err and os.path.samestat(os.fstat(out), os.fstat(err)):
            err = out  # one pipe, so that what a rank writes to both keeps its order
        for local, (to_out, to_err) in paths.items():
            rank = ranks[local]
            self.paths[local] = self._place(rank, to_out, out), self._place(rank, to_err, err)

    def _place(self, rank: int, path: str, own: int) -> str:
        """For a stream of a rank that would go to `path`, or to the descriptor `own` of the launcher."""
        if path and path != os.devnull:
            patient = partial(self._writer.put, self._file, is_patient=True)
            self._followed.setdefault(path, RankLines(rank, patient))
            return path
        shown = 0 if path else own
        if (rank, shown) not in self._pipes:
            self._pipes[rank, shown] = Pipe(RankLines(rank, partial(self._writer.put, self._file)))
        return self._pipes[rank, shown].path

    def begin(self) -> None:
        """The ranks have started."""
        pipes, self._pipes = self._pipes, {}
        for shown in dict.fromkeys(descriptor for _, descriptor in pipes):
            group = [pipe for (_, descriptor), pipe in pipes.items() if descriptor == shown]
            self._threads.append(PipeReading(group, Stream(shown) if shown else None))
        if self._followed:
            self._threads.append(Following(self._followed.items()))

    def end(self) -> None:
        """The ranks are gone: read the rest, and end the file."""
        for pipe in self._pipes.values():  # the ranks did not start
            pipe.close()
        for thread in reversed(self._threads):  # last those that a terminal which is not read may hold
            thread.finish()
        self._writer.end(self._file)


def _own_stream(stream: TextIO | None) -> int:
    """The descriptor of the launcher's stream; 0 if it is closed."""
    try:
        return stream.fileno() if stream is not None else 0
    except (ValueError, io.UnsupportedOperation):
        return 0
