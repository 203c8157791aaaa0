"""Real jobs for the launcher's tests: a script, `ft_launcher` with a run directory of its own, and what it said.

What always holds: scripts begin with `PRELUDE`, so a rank tells what it does by one whole line each; nothing is
written outside the test's own folders. Scripts import torch only where the case needs it (it takes seconds).
Does not cover: several nodes (`tests/nodes`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.processes import CEILING, Environ, Spawned, Spawner

LAUNCHER = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]

_PATIENCE = """
from holdfast.fault_tolerance.launcher import incident_report
from holdfast.fault_tolerance.launcher.ranks import start
from holdfast.fault_tolerance.launcher.warm import forked, zygotes
forked.FORKS = zygotes.FORKS = start.STARTS = SECONDS
incident_report.AT_THE_END = incident_report.IN_A_HURRY = SECONDS
"""
CONSOLE = f"""
import sys
sys.argv[:] = sys.argv[{len(LAUNCHER)}:]
from holdfast.fault_tolerance.launcher.main import console
console()
"""
"""Code that is `ft_launcher` with the arguments after its command."""


def patience(seconds: float = 60.0) -> str:
    """Code that has a launcher wait so long for forks, standbys and its last report.

    Two seconds are its own limits; on a busy machine it then starts a rank cold, or ends without the report.
    """
    return _PATIENCE.replace("SECONDS", str(seconds))


def patient(seconds: float = 60.0) -> list[str]:
    """What a launcher is started `under` to be so patient."""
    return [sys.executable, "-c", patience(seconds) + CONSOLE]


PRELUDE = '''
import os, signal, subprocess, sys, time
RANK, CYCLE = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def say(*words):
    """One whole line by one write: other ranks write into the same file."""
    os.write(1, (f"rank {RANK} cycle {CYCLE} " + " ".join(map(str, words)) + "\\n").encode())

def wait():
    while True:
        signal.pause()

def told(word):
    """Whether the test has said this word (see Job.tell)."""
    return os.path.exists(os.path.join(os.environ["NOTES"], word))

def until(word):
    while not told(word):
        time.sleep(0.01)

def connect():
    """This rank's client, with which the monitor supervises it."""
    from holdfast.fault_tolerance import RankMonitorClient
    client = RankMonitorClient()
    client.init_workload_monitoring()
    return client

def request(client, action, why):
    from holdfast.fault_tolerance import WorkloadAction, WorkloadControlRequest
    client.send_workload_control_request(WorkloadControlRequest(WorkloadAction[action], why))

def kill_me(number):
    os.kill(os.getpid(), number)
    wait()

def meet(name="here"):
    """All ranks of this cycle have come this far."""
    def note(rank):
        return f"{os.environ['NOTES']}/{name}-{CYCLE}-{rank}"
    open(note(RANK), "w").close()
    while not all(os.path.exists(note(rank)) for rank in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.002)
'''


def records(journal: Path) -> list[dict[str, Any]]:
    """A journal's records, without a last line that is being written."""
    whole, _, _ = journal.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line.strip()]


class Launched:
    """One launcher. `run_dir` is its run directory."""

    def __init__(self, spawned: Spawned, run_dir: Path) -> None:
        self.spawned = spawned
        self.run_dir = run_dir

    @property
    def pid(self) -> int:
        """The launcher's."""
        return self.spawned.pid

    def wait_for(self, what: str, ceiling: float = CEILING) -> re.Match[str]:
        """Wait until the output, standard error included, matches a regular expression (multi-line)."""
        found = self.spawned.wait_for(what, ceiling)
        assert isinstance(found, re.Match)
        return found

    def end(self, code: int, ceiling: float = CEILING) -> str:
        """Wait for the end with this exit code; returns what the launcher and the ranks wrote to standard error."""
        ended = self.spawned.wait(ceiling)
        assert ended == code, f"exit code {ended} instead of {code}:\n{self.spawned.output()[-6000:]}"
        return self.spawned.err()


class Job(Launched):
    """A job of one node, and what is known of its ranks. `notes` is a folder for these."""

    def __init__(self, spawned: Spawned, run_dir: Path, notes: Path) -> None:
        super().__init__(spawned, run_dir)
        self.notes = notes

    def tell(self, word: str) -> None:
        """Say a word to the ranks (`told`, `until` in `PRELUDE`)."""
        (self.notes / word).touch()

    def hear(self, *words: str, ranks: Sequence[int], cycle: int = 0) -> dict[int, str]:
        """Wait until each of these ranks said a line that matches each word; returns rank -> the first word's group 1
        (or the whole line)."""
        told = {}
        for rank in ranks:
            for word in reversed(words):
                found = self.wait_for(rf"^rank {rank} cycle {cycle} {word}")
                told[rank] = found.group(1) if found.groups() else found.group()
        return told

    def lines(self, pattern: str) -> list[str]:
        """The lines of standard output that match, in order."""
        return [line for line in self.spawned.out().splitlines() if re.search(pattern, line)]

    def wait_for_ends_of_ranks(self, count: int) -> None:
        """Wait until this many children of the launcher are zombies: they ended, and it has not looked yet."""

        def ended() -> bool:
            with suppress(psutil.NoSuchProcess):  # reaped meanwhile
                states = [child.status() for child in psutil.Process(self.pid).children()]
                return states.count(psutil.STATUS_ZOMBIE) >= count
            return False

        self.spawned.wait_for(ended)

    def said(self) -> list[str]:
        """The launcher's own lines so far."""
        return [line for line in self.spawned.err().splitlines() if line.startswith("[holdfast]")]

    def journal(self, *kinds: str) -> list[dict[str, Any]]:
        """The journal's records of these kinds (all without any), in order."""
        (path,) = self.run_dir.glob("journal-*.jsonl")
        return [record for record in records(path) if not kinds or record["kind"] in kinds]


class Jobs:
    """Starts jobs."""

    def __init__(self, spawn: Spawner, folder: Path) -> None:
        self._spawn = spawn
        self.folder = folder
        self._count = 0

    def script(self, text: str, name: str = "") -> Path:
        """A file with `PRELUDE` and this program."""
        self._count += 1
        path = self.folder / (name or f"script{self._count}.py")
        path.write_text(PRELUDE + text)
        return path

    def __call__(self, text: str, *flags: str | Path, nproc: int = 2, **options: Any) -> Job:
        """Run this program (see `script`) on `nproc` ranks under `ft_launcher`; `options` are those of `command`."""
        return self.command("--nproc-per-node", str(nproc), *flags, self.script(text), **options)

    def command(self, *arguments: str | Path, env: Environ | None = None, under: Sequence[str] = ()) -> Job:
        """Run `ft_launcher` with these arguments and a fresh run directory; `under` another program, like nohup."""
        run_dir = self.folder / f"run{self._count + 1}"
        job = self.plain("--ft-run-dir", run_dir, *arguments, env=env, under=under)
        job.run_dir = run_dir
        return job

    def plain(self, *arguments: str | Path, env: Environ | None = None, under: Sequence[str] = ()) -> Job:
        """Run `ft_launcher` with these arguments alone; the job's `run_dir` is not known."""
        self._count += 1
        notes = self.folder / f"notes{self._count}"
        notes.mkdir()
        variables = {"NOTES": str(notes), **(env or {})}
        spawned = self._spawn([*under, *LAUNCHER, *arguments], env=variables, cwd=self.folder)
        return Job(spawned, self.folder / "unknown", notes)

    def torchrun(self, *arguments: str | Path, env: Environ | None = None) -> Spawned:
        """Run the installed torch's `torchrun` with these arguments. It leaves a folder in $TMPDIR behind."""
        variables = {"TMPDIR": str(self.folder), **(env or {})}
        return self._spawn([*TORCHRUN, *arguments], env=variables, cwd=self.folder)


@pytest.fixture
def jobs(spawn: Spawner, tmp_path: Path) -> Iterator[Jobs]:
    """`jobs("say('hello')", "--max-restarts", "1")` runs that script on two ranks."""
    yield Jobs(spawn, tmp_path)


# -- twins: ft_launcher and torchrun -------------------------------------------------------------------------


class Twins(NamedTuple):
    """Two finished launchers: ours and torchrun."""

    ours: Spawned
    theirs: Spawned

    def same_output(self) -> list[str]:
        """The lines of standard output, sorted (ranks write in any order), after they were found equal."""
        ours, theirs = (sorted(each.out().splitlines()) for each in self)
        assert ours == theirs
        return ours

    def reports(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """What the ranks reported as one JSON object a line, with a "rank": ours, theirs."""
        outputs = ([json.loads(line) for line in each.out().splitlines()] for each in self)
        ours, theirs = ({one["rank"]: one for one in objects} for objects in outputs)
        return ours, theirs


def run_twins(jobs: Jobs, *arguments: str | Path, code: int = 0, env: Environ | None = None) -> Twins:
    """Run both to their end. `{who}` in an argument is `ours` or `theirs`: a place of its own for each."""
    own = {who: [str(each).replace("{who}", who) for each in arguments] for who in ("ours", "theirs")}
    twins = Twins(jobs.plain(*own["ours"], env=env).spawned, jobs.torchrun(*own["theirs"], env=env))
    for each in twins:
        assert each.wait() == code, each.output()[-4000:]
    return twins


def tree(folder: Path) -> dict[str, str]:
    """Relative path -> text of every file below, with the run's own folder name masked."""
    return {
        re.sub(r"^[^/]+", "RUN", str(path.relative_to(folder))): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
