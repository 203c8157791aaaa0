"""A job of a check: a launcher and its ranks, which tell of themselves by lines `mark {…}` on standard output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from .check import Place

PROGRAMS = Path(__file__).parent / "programs"
MODULES = {"holdfast": "holdfast.fault_tolerance.launcher", "torchrun": "torch.distributed.run"}
Mark = dict[str, Any]


class Job:
    """Start it; it is ended when the block is left. Files are FOLDER/NAME, FOLDER/NAME.err and FOLDER/NAME.out."""

    def __init__(
        self,
        place: Place,
        name: str,
        program: str,
        *arguments: str,
        launcher: str = "holdfast",
        ranks: int = 1,
        options: tuple[str, ...] = (),
        variables: dict[str, str] | None = None,
        python: Path | str = sys.executable,
    ) -> None:
        self.run_dir = place.folder / name
        own = ("--ft-run-dir", str(self.run_dir)) if launcher == "holdfast" else ()
        line = [str(python), "-m", MODULES[launcher], f"--nproc-per-node={ranks}", *own, *options]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else ranks on gloo do not meet again under torchrun
            "XDG_STATE_HOME": str(place.folder / "state"),
            "CHECK_FOLDER": str(place.folder),
            **(variables or {}),
        }
        self._errors = place.folder / f"{name}.err"
        self._ranks = ranks
        self.seen: list[Mark] = []
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*line, str(PROGRAMS / program), *arguments],
                env=environment,
                cwd=place.folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()

    def marks(self, what: str) -> Iterator[Mark]:
        """Marks of this kind as they come, until the job ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("mark "):
                mark: Mark = json.loads(line[5:])
                self.seen.append(mark)
                if mark["what"] == what:
                    yield mark

    def cycles(self) -> Iterator[dict[int, Mark]]:
        """Cycle for cycle, the marks of the ranks once all have taken their first step."""
        joined: dict[int, Mark] = {}
        for mark in self.marks("first step"):
            if joined and mark["cycle"] != next(iter(joined.values()))["cycle"]:
                joined = {}
            joined[mark["rank"]] = mark
            if len(joined) == self._ranks:
                yield joined

    def end(self) -> int:
        """Wait for the launcher's end; its exit code."""
        for _ in self.marks(""):
            pass
        return self.process.wait()

    def said(self) -> str:
        """What launcher and ranks wrote to standard error."""
        return self._errors.read_text(errors="replace")

    def journal(self, kind: str) -> list[dict[str, Any]]:
        """The journal's records of this kind."""
        lines = [
            line for path in self.run_dir.glob("journal-*.jsonl") for line in path.read_text().splitlines()
        ]
        found = []
        for line in lines:
            with suppress(ValueError):  # it is just being written
                found.append(json.loads(line))
        return [record for record in found if record["kind"] == kind]

    def reserve(self, what: str) -> list[int]:
        """The launcher's processes that call themselves so: `zygote` or `standby`."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if int(parent) == self.process.pid and title.split()[:2] == ["holdfast:", what]:
                    found.append(int(folder.name))
        return found

    def until_standbys_wait(self, seconds: float = 60.0, settled: bool = True) -> None:
        """Until one waits for each rank; `settled`: and no zygote that is to take the place of theirs."""
        deadline = time.monotonic() + seconds
        while len(self.reserve("standby")) != self._ranks or (settled and len(self.reserve("zygote")) != 1):
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{len(self.reserve('standby'))} of {self._ranks} standbys after {seconds:g} s"
                )
            time.sleep(0.05)


def kill(pid: int) -> float:
    """kill -9; when."""
    now = time.time()
    os.kill(pid, signal.SIGKILL)
    return now
