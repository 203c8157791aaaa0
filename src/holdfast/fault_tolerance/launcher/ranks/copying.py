"""Threads that pass on what ranks write: into files, which are followed, and into pipes.

What always holds: all bytes of a source are passed on in order, and b"" once after the last ones. What was written
before `finish` is passed on; nothing is waited for beyond that, also where a process holds a pipe open.
Does not cover: a file that is truncated or replaced while it is followed.
"""

from __future__ import annotations

import io
import logging
import os
import select
import threading
from collections.abc import Callable, Iterable

from ..writer import Stream

logger = logging.getLogger("holdfast.launcher")
POLL = 0.1
"""Seconds between two reads of a file that is followed."""
CHUNK = 1 << 16
LAST_READS = 16
"""Of each pipe, after its ranks have ended: more than a pipe holds, unless a process still writes."""
Take = Callable[[bytes], object]
"""Takes the next bytes of one source, b"" after the last ones. An OSError or ValueError ends the copy of all sources,
with a warning."""


class Lines:
    """Makes lines of the bytes of one source.

    Args:
        put: Takes lines without their ends, and what ends each: a line feed, or nothing after the very last one.
        longest: A longer line is cut into several. None: lines have any length, and end as Python's text files have it:
            a carriage return ends one, too.
    """

    def __init__(self, put: Callable[[list[bytes], bytes], object], longest: int | None = None) -> None:
        self._put, self._longest = put, longest
        self._begun = b""  # of a line that has no end yet

    def take(self, chunk: bytes) -> None:
        """The next bytes; b"": there are no more."""
        text, held = self._begun + chunk, b""
        if self._longest is None:
            if chunk and text.endswith(b"\r"):  # a line feed may follow
                text, held = text[:-1], b"\r"
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = (piece for line in text.split(b"\n") for piece in self._cut(line))
        self._begun = rest + held
        if lines:
            self._put(lines, b"\n")
        if rest and not chunk:
            self._put([rest], b"")

    def _cut(self, line: bytes) -> list[bytes]:
        if self._longest is None or len(line) <= self._longest:
            return [line]
        return [line[at : at + self._longest] for at in range(0, len(line), self._longest)]


class Pipe:
    """A pipe into which ranks write, and what takes their bytes; that must not wait, as the ranks would wait too."""

    def __init__(self, take: Take) -> None:
        self.reader, self.writer = os.pipe()
        self.take = take
        self.held = b""
        """The begin of a line whose rest is still in the pipe."""

    @property
    def path(self) -> str:
        """Opens the writing end, in this process, until the ranks have started."""
        return f"/proc/self/fd/{self.writer}"


class Copying:
    """A thread that copies until it has to finish; to be made when the ranks have started.

    Args:
        files: Paths, which may not exist yet, and what takes the bytes of each.
        pipes: They are closed when the thread ends.
        stream: What comes out of the pipes is written to it as well, as it comes; None: it is shown nowhere. A reader
            of the stream that has stopped holds up the ranks, as it does where they write to it themselves.
    """

    def __init__(
        self,
        files: Iterable[tuple[str, Take]] = (),
        pipes: Iterable[Pipe] = (),
        stream: Stream | None = None,
    ) -> None:
        self._files, self._pipes, self._stream = list(files), list(pipes), stream
        self._open: dict[str, io.FileIO] = {}
        for pipe in self._pipes:
            os.close(pipe.writer)  # the ranks have it now
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name="holdfast-copy", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread to be had
            for descriptor in (
                self._wake_writer,
                self._wake_reader,
                *(pipe.reader for pipe in self._pipes),
            ):
                os.close(descriptor)
            raise

    def finish(self) -> None:
        """The ranks are gone: read what they have left."""
        os.close(self._wake_writer)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._copy()
            for _, take in self._files:
                take(b"")
        except (OSError, ValueError) as error:  # the stream is closed, or its disk is full
            logger.warning("the ranks' log output could not be completed: %s", error)
        finally:
            for file in self._open.values():
                file.close()
            for descriptor in (self._wake_reader, *(pipe.reader for pipe in self._pipes)):
                os.close(descriptor)

    def _copy(self) -> None:
        poll = select.poll()
        for descriptor in (self._wake_reader, *(pipe.reader for pipe in self._pipes)):
            poll.register(descriptor, select.POLLIN)
        pause, reads_left, is_last = 1e3 * POLL if self._files else None, LAST_READS, False
        while reads_left and (self._files or self._pipes):
            is_held = any(pipe.held for pipe in self._pipes)
            ready = [descriptor for descriptor, _ in poll.poll(0 if is_last or is_held else pause)]
            if self._wake_reader in ready:
                is_last = True
                poll.unregister(self._wake_reader)
            for path, take in self._files:
                self._read_file(path, take)
            for pipe in list(self._pipes):
                if pipe.reader not in ready:
                    self._show(pipe, b"")
                elif not self._read_pipe(pipe):
                    poll.unregister(pipe.reader)
                    self._end(pipe)
            if is_last:
                reads_left = reads_left - 1 if ready else 0
        for pipe in list(self._pipes):
            self._end(pipe)

    def _read_file(self, path: str, take: Take) -> None:
        if path not in self._open:
            try:
                self._open[path] = io.FileIO(path)
            except FileNotFoundError:
                return
        while chunk := self._open[path].read(CHUNK):
            take(chunk)

    def _read_pipe(self, pipe: Pipe) -> bool:
        """Whether there may be more. No line is shown in two parts only because it did not fit into one read."""
        chunk = os.read(pipe.reader, CHUNK)
        if chunk:
            pipe.take(chunk)
            self._show(pipe, chunk)
        return bool(chunk)

    def _show(self, pipe: Pipe, chunk: bytes) -> None:
        shown, pipe.held = pipe.held + chunk, b""
        if len(chunk) == CHUNK and (cut := shown.rfind(b"\n") + 1):
            shown, pipe.held = shown[:cut], shown[cut:]
        if shown and self._stream is not None:
            self._stream.append(shown)

    def _end(self, pipe: Pipe) -> None:
        self._show(pipe, b"")
        pipe.take(b"")
        self._pipes.remove(pipe)
        os.close(pipe.reader)
