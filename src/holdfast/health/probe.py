"""A process that may hang, and is left behind then: it asks the driver, or reads storage.

A call that the kernel does not end holds its whole process; so such a call is never made in the launcher. `Probe` is
the launcher's end, `serve` runs in the process and answers requests, each a line of JSON, by lines of JSON.
Always holds: nothing here waits beyond its deadline, and a process that does not answer is killed and not waited for.
Does not cover: a process in the kernel's state D, which stays until the kernel lets go of it.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

from . import programs

MOST_HUNG = 3
"""Processes of a probe that hang and cannot be ended, before no further one is started."""
_CODE = "import sys; del sys.path[0]\nfrom holdfast.health.probe import serve\nserve()"


class Unanswered(Exception):
    """The process has not answered in time, or could not; the reason, in half a sentence."""


class Probe:
    """A process that is started when it is first asked, and anew after it has hung."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._left: list[subprocess.Popen[bytes]] = []  # what hung, and may run still
        self.is_hung = False
        """Whether the last answer did not come in time."""
        self._one_at_a_time = threading.Lock()
        self._is_over = False
        self._has_answered: subprocess.Popen[bytes] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a process runs that has answered once."""
        return self._process is not None and self._process is self._has_answered

    def ask(self, request: str, seconds: float, **arguments: Any) -> list[Any]:
        """All answers to a request. Raises `Unanswered`; its second argument has the answers that came."""
        if not self._one_at_a_time.acquire(timeout=seconds):
            raise Unanswered("it has not answered an earlier question yet", [])
        try:
            return self._ask(request, seconds, arguments)
        finally:
            self._one_at_a_time.release()

    def _ask(self, request: str, seconds: float, arguments: dict[str, Any]) -> list[Any]:
        self._left = [process for process in self._left if process.poll() is None]
        self.is_hung = len(self._left) >= MOST_HUNG
        if self.is_hung:
            raise Unanswered(f"{len(self._left)} processes hang in it", [])
        until = time.monotonic() + seconds
        found: list[Any] = []
        try:
            if self._process is None or self._process.poll() is not None:
                self.close()
                self._process = programs.start([sys.executable, "-c", _CODE], stdin=subprocess.PIPE)
            if self._is_over:
                self.close()
                raise Unanswered("the checks have ended", [])
            assert self._process.stdin is not None and self._process.stdout is not None
            line = json.dumps({"ask": request, **arguments}) + "\n"
            os.write(self._process.stdin.fileno(), line.encode())
            rest, out = b"", self._process.stdout.fileno()
            while True:
                left = until - time.monotonic()
                # `select.select` fails for the descriptors of a launcher with a thousand connections.
                ready = select.poll()
                ready.register(out, select.POLLIN)
                if left <= 0 or not ready.poll(1000 * left):
                    self.is_hung = True
                    self._left.append(self._process)
                    self.close()
                    raise Unanswered(f"no answer within {seconds:g} s", found)
                data = os.read(out, 1 << 16)
                if not data:
                    self.close()
                    raise Unanswered("the process that asks has ended", found)
                *lines, rest = (rest + data).split(b"\n")
                for text in lines:
                    answer = json.loads(text)
                    if answer == "done":
                        self._has_answered = self._process
                        return found
                    found.append(answer)
        except (OSError, ValueError) as error:
            self.close()
            raise Unanswered(str(getattr(error, "strerror", None) or error), found) from None

    def close(self) -> None:
        """End the process; the next question starts another."""
        process, self._process = self._process, None
        if process is not None:
            programs.end(process)

    def end(self) -> None:
        """End the process, also one that another thread starts now."""
        self._is_over = True
        self.close()


# -- in the process -------------------------------------------------------------------------------------------


def serve() -> None:
    """Answer requests until the other end is closed: also where the launcher was killed."""
    reader: Any = None
    writes = threading.Lock()

    def answer(value: Any) -> None:
        with writes:
            os.write(1, (json.dumps(value) + "\n").encode())

    requests: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            requests.put(line)
        os._exit(0)  # a request that waits for storage may never end by itself

    threading.Thread(target=read, daemon=True).start()
    while True:
        request = json.loads(requests.get())
        try:
            if request["ask"] == "storage":
                from . import storage

                storage.check(
                    request["paths"],
                    request["write_path"],
                    distributed=request["distributed"],
                    report=lambda finding: answer(asdict(finding)),
                )
            else:
                if reader is None:
                    from .gpus import Reader

                    reader = Reader()
                answer(getattr(reader, request["ask"])())
        except Exception as error:  # a broken library may raise anything
            answer({"error": str(error) or type(error).__name__})
        answer("done")
