"""A job of two ranks that a fault is done to, under any launcher: started, watched, and whatever it left ended."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.launchers import command, environment

from .contenders import Contender

CEILING = 90.0
MARK = "HOLDFAST_COMPARE"


@dataclass
class Job:
    """A running job of two ranks in a folder of its own, all of whose processes can be found by their environment."""

    process: subprocess.Popen[str]
    folder: Path
    mark: str

    def wait(self, seconds: float = CEILING) -> int | None:
        """The launcher's exit code; None if it still runs after so long."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def until(self, *events: str, seconds: float = CEILING) -> None:
        """Wait for the files that the ranks leave."""
        deadline = time.monotonic() + seconds
        while not all((self.folder / event).exists() for event in events):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"the job did not come to {events}: {self.log()[-2000:]}")
            time.sleep(0.02)

    def has(self, event: str) -> int:
        """How many ranks have left this word."""
        return len(list(self.folder.glob(f"{event}-*")))

    def processes(self) -> list[psutil.Process]:
        """All that it started and that live, with what is asked about them: they may be gone by then."""
        return [
            process
            for process in psutil.process_iter(["environ", "name", "status"])
            if process.info["status"] != psutil.STATUS_ZOMBIE
            and (process.info["environ"] or {}).get(MARK) == self.mark
        ]

    def log(self) -> str:
        """What launcher and ranks said on stderr."""
        return (self.folder / "stderr").read_text(errors="replace")

    def end(self) -> None:
        """Kill all that lives, and what that has started meanwhile."""
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            send(signal.SIGKILL, left)
            time.sleep(0.02)
        self.process.wait()


def send(number: signal.Signals, processes: Iterable[psutil.Process]) -> None:
    """The signal to each of them that still lives."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@contextmanager
def job(
    contender: Contender, what: str, *options: str, files: Mapping[str, str] | None = None
) -> Iterator[Job]:
    """Start it, in a folder with these files; whatever it left is ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="holdfast-compare-", ignore_cleanup_errors=True) as name:
        folder, mark = Path(name), uuid.uuid4().hex
        for file, text in (files or {}).items():
            (folder / file).write_text(text)
        line = command(contender.launcher, 2, "faulty_rank.py", contender.who, what, name, options=options)
        with (folder / "stderr").open("w") as stderr:
            process = subprocess.Popen(
                line,
                env=environment(**{MARK: mark, "XDG_STATE_HOME": name, "TMPDIR": name}),
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                text=True,
                cwd=name,
            )
        started = Job(process, folder, mark)
        try:
            yield started
        finally:
            started.end()
