"""A job of a check: a launcher and its ranks, which report by lines `mark {…}` on standard output."""

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

PROGRAMS = Path(__file__).parent / "programs"
MODULES = {"holdfast": "holdfast.fault_tolerance.launcher", "torchrun": "torch.distributed.run"}
STANDBYS = 60.0  # seconds
Mark = dict[str, Any]


class Job:
    """A context manager that starts the job and ends it.

    FOLDER/NAME is its run directory, FOLDER/NAME.err the standard error of launcher and ranks. `marks` has the marks
    that were read.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        program: str,
        *arguments: str,
        launcher: str = "holdfast",
        ranks: int = 1,
        options: tuple[str, ...] = (),
        python: Path | str = sys.executable,
    ) -> None:
        self.run_dir = folder / name
        run_dir = str(self.run_dir)
        # Without --standalone a restarted gloo rank of torchrun may find the address of its predecessor.
        own = ("--ft-run-dir", run_dir) if launcher == "holdfast" else ("--standalone", "--log-dir", run_dir)
        line = [str(python), "-m", MODULES[launcher], f"--nproc-per-node={ranks}", *own, *options]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # without it gloo ranks never restart under torchrun
            "XDG_STATE_HOME": str(folder / "state"),
            # Without network, names of hosts may take seconds to fail.
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
            "RES_OPTIONS": "attempts:1 timeout:1",
            "CHECK_FOLDER": str(folder),
        }
        self._errors = folder / f"{name}.err"
        self._ranks = ranks
        self.marks: list[Mark] = []
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*line, str(PROGRAMS / program), *arguments],
                env=environment,
                cwd=folder,
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

    def read(self, kind: str) -> Iterator[Mark]:
        """Marks of this kind as they come, until the job ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("mark "):
                self.marks.append(json.loads(line[5:]))
                if self.marks[-1]["kind"] == kind:
                    yield self.marks[-1]

    def read_cycles(self) -> Iterator[dict[int, Mark]]:
        """For each cycle, rank -> mark, once all ranks have taken their first step."""
        joined: dict[int, Mark] = {}
        for mark in self.read("first_step"):
            if joined and mark["cycle"] != next(iter(joined.values()))["cycle"]:
                joined = {}
            joined[mark["rank"]] = mark
            if len(joined) == self._ranks:
                yield joined

    def wait(self) -> int:
        """Read all marks and return the launcher's exit code."""
        for _ in self.read(""):
            pass
        return self.process.wait()

    def errors(self, characters: int = 300) -> str:
        """The end of what launcher and ranks wrote to standard error."""
        return self._errors.read_text(errors="replace").strip()[-characters:]

    def error_lines(self) -> list[str]:
        return self._errors.read_text(errors="replace").splitlines()

    def journal(self, kind: str) -> list[dict[str, Any]]:
        """Records of this kind."""
        found = []
        for path in self.run_dir.glob("journal-*.jsonl"):
            for line in path.read_text().splitlines():
                with suppress(ValueError):  # the last line may be incomplete
                    found.append(json.loads(line))
        return [record for record in found if record["kind"] == kind]

    def find_processes(self, title: str) -> list[int]:
        """Pids of the launcher's children with this name: `zygote` or `standby`."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                name = (folder / "comm").read_text().rstrip("\n")
                if int(parent) == self.process.pid and name == f"hf-{title}":
                    found.append(int(folder.name))
        return found

    def wait_for_standbys(self, settled: bool = True) -> None:
        """Wait for one standby per rank; `settled`: and until no second zygote is importing."""
        deadline = time.monotonic() + STANDBYS
        while (found := len(self.find_processes("standby"))) != self._ranks or (
            settled and len(self.find_processes("zygote")) != 1
        ):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{found} of {self._ranks} standbys after {STANDBYS:g} s: {self.errors()}")
            time.sleep(0.05)


def kill(pid: int) -> float:
    """Send SIGKILL and return the time."""
    now = time.time()
    os.kill(pid, signal.SIGKILL)
    return now
