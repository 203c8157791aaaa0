"""Processes that may hang, and are left behind then: one that asks the driver or reads storage, the user's command.

A call that the kernel does not end holds its whole process; so such a call is never made in the launcher. `Probe` is
the launcher's end, `serve` runs in the process and answers requests, each a line of JSON, by lines of JSON.
Always holds: nothing here waits beyond its deadline, and a process that does not answer is killed and not waited for.
Does not cover: a process in the kernel's state D, which stays until the kernel lets go of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from typing import Any

from . import GOOD, SICK, WARNING, Finding

RUNNING: set[int] = set()
"""Pids of the processes that run now: a sweep of what ranks have left behind spares them."""
_starts = threading.Lock()
_paused = threading.Event()
MOST_HUNG = 3
"""Processes of a probe that hang and cannot be ended, before no further one is started."""
_CODE = "import sys; del sys.path[0]\nfrom holdfast.health.probe import serve\nserve()"
_WITH_LAUNCHER = """exec 3<&0 </dev/null
{ read -r _; kill -s KILL -- -$$; } <&3 >/dev/null 2>&1 &
exec 3<&-
exec /bin/sh -c "$1"
"""
"""Runs a command. When the launcher ends, however it does, the pipe closes and the command's group is killed."""
_REAP = 0.1
_OUTPUT = 10_000  # bytes


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
                self._process = _started([sys.executable, "-c", _CODE], stdin=subprocess.PIPE)
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
            _end(process)

    def end(self) -> None:
        """End the process, also one that another thread starts now."""
        self._is_over = True
        self.close()


def end_all() -> None:
    """Kill the processes that run now."""
    for pid in list(RUNNING):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def pause(is_paused: bool) -> None:
    """Start no process meanwhile: a sweep would end one that it does not know of."""
    if is_paused:  # without a lock: a process may take seconds to start
        _paused.set()
    else:
        _paused.clear()


def _started(words: list[str], **more: Any) -> subprocess.Popen[bytes]:
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, **more}
    with _starts:
        if _paused.is_set():
            raise OSError("ranks are being stopped")
        process = subprocess.Popen(words, start_new_session=True, **more)
        RUNNING.add(process.pid)
    if _paused.is_set():
        _end(process)
        raise OSError("ranks are being stopped")
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in process.stdin, process.stdout:
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP)
    if process.returncode is not None:
        RUNNING.discard(process.pid)
    else:  # in the kernel's state D: it is waited for in the background, so that its number is known to be taken
        threading.Thread(target=_wait, args=(process,), daemon=True).start()


def _wait(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    RUNNING.discard(process.pid)


def run_command(command: str, seconds: float) -> Finding:
    """The user's own check: exit code 0 is healthy, and its last line of output is the reason."""
    check = "command"
    with tempfile.TemporaryFile() as output:  # no pipe: what the command leaves behind may keep one open
        try:
            words = ["/bin/sh", "-c", _WITH_LAUNCHER, "sh", command]
            process = _started(words, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)
        except OSError as error:
            return Finding(
                check, WARNING, f"--ft-health-command cannot be started: {error.strerror or error}"
            )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return Finding(check, SICK, f"no answer of --ft-health-command within {seconds:g} s")
        finally:
            _end(process)  # also what it left behind
        output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT))
        text = output.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1].strip()[:300] if lines else ""
    if process.returncode == 0:
        return Finding(check, GOOD, last or "exit code 0")
    return Finding(check, SICK, last or f"exit code {process.returncode} of --ft-health-command")


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
