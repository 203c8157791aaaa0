"""Threads that pass on what ranks write: into files, which are followed, and into pipes.

What always holds: a consumer gets all bytes of its source in order, and `end` once after the last ones. What was
written before `finish` is passed on; nothing is waited for beyond that, also where a process holds a pipe open.
Does not cover: a file that is truncated or replaced while it is followed.
"""

from __future__ import annotations

import io
import logging
import os
import select
import threading
from collections.abc import Iterable
from typing import Protocol

from ..writer import Stream

logger = logging.getLogger("holdfast.launcher")
POLL = 0.1
"""Seconds between two reads of a file that is followed."""
CHUNK = 1 << 16
LAST_READS = 16
"""Of each pipe, after its ranks have ended: more than a pipe holds, unless a process still writes."""


class Consumer(Protocol):
    """Takes the bytes of one source. An OSError or ValueError ends the copy of all sources, with a warning."""

    def take(self, chunk: bytes) -> None:
        """The next bytes."""

    def end(self) -> None:
        """There are no more."""


class Following:
    """A thread that reads what is appended to files, until it has to finish.

    Args:
        sources: Paths, which may not exist yet, and the consumer of each.
    """

    def __init__(self, sources: Iterable[tuple[str, Consumer]]) -> None:
        self._sources = list(sources)
        self._files: dict[str, io.FileIO] = {}
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-copy", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """The files are complete: wait until the rest is copied."""
        self._finished.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            is_last = False
            while not is_last:
                is_last = self._finished.wait(POLL)
                for path, consumer in self._sources:
                    self._read(path, consumer)
            for _, consumer in self._sources:
                consumer.end()
        except (OSError, ValueError) as error:  # the stream is closed, or its disk is full
            logger.warning("the ranks' log output could not be completed: %s", error)
        finally:
            for file in self._files.values():
                file.close()

    def _read(self, path: str, consumer: Consumer) -> None:
        if path not in self._files:
            try:
                self._files[path] = io.FileIO(path)
            except FileNotFoundError:
                return
        while chunk := self._files[path].read(CHUNK):
            consumer.take(chunk)


class Pipe:
    """A pipe into which ranks write.

    Args:
        consumer: Must not wait: the ranks would wait too.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.reader, self._writer = os.pipe()
        self.consumer = consumer
        self.held = b""
        """The begin of a line whose rest is still in the pipe."""

    @property
    def path(self) -> str:
        """Opens the writing end, in this process, until the ranks have started."""
        return f"/proc/self/fd/{self._writer}"

    def close_writer(self) -> None:
        """The ranks have it now."""
        writer, self._writer = self._writer, -1
        if writer >= 0:
            os.close(writer)

    def close(self) -> None:
        """Both ends."""
        self.close_writer()
        os.close(self.reader)


class PipeReading:
    """A thread that reads pipes and passes everything on to one stream as well, as it comes.

    A reader of the stream that has stopped holds up the ranks, as it does where they write to it themselves.

    Args:
        stream: None where the output is shown nowhere.
    """

    def __init__(self, pipes: Iterable[Pipe], stream: Stream | None) -> None:
        self._pipes = {pipe.reader: pipe for pipe in pipes}
        self._stream = stream
        for pipe in self._pipes.values():
            pipe.close_writer()
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name="holdfast-pipes", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """The ranks are gone: read what they have left."""
        os.close(self._wake_writer)
        self._thread.join()

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in (self._wake_reader, *self._pipes):
            poll.register(descriptor, select.POLLIN)
        reads_left = LAST_READS
        is_last = False
        while self._pipes and reads_left:
            is_held = any(pipe.held for pipe in self._pipes.values())
            ready = [descriptor for descriptor, _ in poll.poll(0 if is_last or is_held else None)]
            if self._wake_reader in ready:
                is_last = True
                poll.unregister(self._wake_reader)
            for pipe in list(self._pipes.values()):
                if pipe.reader in ready and not self._read(pipe):
                    poll.unregister(pipe.reader)
                    self._end(pipe)
                elif pipe.reader not in ready:
                    self._show(pipe)
            if is_last:
                reads_left = reads_left - 1 if ready else 0
        for pipe in list(self._pipes.values()):
            self._end(pipe)
        os.close(self._wake_reader)

    def _read(self, pipe: Pipe) -> bool:
        """Whether there may be more. No line is shown in two parts only because it did not fit into one read."""
        chunk = os.read(pipe.reader, CHUNK)
        if not chunk:
            return False
        pipe.consumer.take(chunk)
        if self._stream is not None:
            shown, pipe.held = pipe.held + chunk, b""
            if len(chunk) == CHUNK and (cut := shown.rfind(b"\n") + 1):
                shown, pipe.held = shown[:cut], shown[cut:]
            self._stream.append(shown)
        return True

    def _show(self, pipe: Pipe) -> None:
        if self._stream is not None and pipe.held:
            held, pipe.held = pipe.held, b""
            self._stream.append(held)

    def _end(self, pipe: Pipe) -> None:
        self._show(pipe)
        pipe.consumer.end()
        del self._pipes[pipe.reader]
        os.close(pipe.reader)
