"""Jobs of real ranks over gloo: how they are started, what they print, and those with injected slowness."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import Spawned, Spawner
from tests.straggler.programs.injected import culprit

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
RANKS = 4

EXPECTED: dict[str, tuple[str, str | None]] = {
    "busy": ("section", "forward"),
    "data": ("section", "data_loading"),
    "gc": ("host", None),
    "late": ("collective/late arrival", None),
}
"""Kind and section of the verdicts; a host's loss may show in any section, or in none."""
NO_CORE = "waiting for a CPU took "
"""The other true reason for a rank that computes more than the others: on a busy machine it waits for a core."""


@dataclass(frozen=True)
class Rank:
    """One rank of a job that programs/forked.py started."""

    job: Spawned
    number: int
    folder: Path

    def out(self) -> str:
        return (self.folder / f"{self.number}.out").read_text()

    def err(self) -> str:
        return (self.folder / f"{self.number}.err").read_text()

    def has_ended(self) -> bool:
        return (self.folder / f"{self.number}.status").exists()

    def wait(self) -> int:
        """Its exit code, -n when signal n ended it."""
        self.job.wait_for(self.has_ended)
        return int((self.folder / f"{self.number}.status").read_text())


def start(spawn: Spawner, folder: Path, program: str, size: int, *words: str) -> list[Rank]:
    """So many ranks of a program, which gets the address of a store, its rank and these words."""
    # torch makes the folder of its compiler, used or not.
    env = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled"), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    arguments = (str(folder), str(size), str(PROGRAMS / program), *words)
    job = spawn.python(PROGRAMS / "forked.py", *arguments, env=env)
    return [Rank(job, rank, folder) for rank in range(size)]


def printed(ranks: list[Rank]) -> list[list[Any]]:
    """The lines of JSON that each rank printed, when all have ended well."""
    for rank in ranks:
        assert rank.wait() == 0, rank.out() + rank.err()
    return [[json.loads(line) for line in rank.out().splitlines() if line[:1] in '{["'] for rank in ranks]


@dataclass(frozen=True)
class Job:
    """What rank 0 of one job said."""

    kind: str
    culprit: int
    reports: list[tuple[list[dict[str, Any]], list[str]]]
    """Of each: the verdicts, and what was withheld."""

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """All of them, report after report."""
        return [verdict for verdicts, _ in self.reports for verdict in verdicts]

    @property
    def found(self) -> bool:
        """The right rank was named, and most often for the right reason."""
        named = [one for one in self.verdicts if one["rank"] == self.culprit]
        return 2 * sum(self._is_right(one) for one in named) > len(named)

    def _is_right(self, verdict: dict[str, Any]) -> bool:
        kind, section = EXPECTED[self.kind]
        if self.kind == "busy" and verdict["evidence"].startswith(NO_CORE):
            return True
        return bool(verdict["kind"] == kind and section in (None, verdict["section"]))

    @property
    def blamed_others(self) -> list[dict[str, Any]]:
        """Verdicts on ranks that have nothing wrong; to have no core is."""
        named = [one for one in self.verdicts if not one["evidence"].startswith(NO_CORE)]
        return [one for one in named if self.kind == "healthy" or one["rank"] != self.culprit]

    def told(self) -> str:
        """For the message of a test that fails."""
        return f"{self.kind}, rank {self.culprit}:\n" + "\n".join(
            f"{number}: {json.dumps(report)}" for number, report in enumerate(self.reports, 1)
        )


def run(spawn: Spawner, folder: Path, kind: str, seed: int) -> Job:
    """A job with injected slowness, to its end."""
    return run_all(spawn, folder, [kind], seed)[0]


def run_all(spawn: Spawner, folder: Path, kinds: Sequence[str], seed: int) -> list[Job]:
    """The same ranks with one kind after the other, each as a job of its own."""
    store = f"file://{folder / f'{kinds[0]}-{seed}'}"
    env = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}
    job = spawn.python(PROGRAMS / "injected.py", store, str(RANKS), str(seed), *kinds, env=env)
    assert job.wait(240.0) == 0, job.output()
    reports = [json.loads(line) for line in job.out().splitlines() if line.startswith('["')]
    return [
        Job(kind, culprit(seed, RANKS), [(verdicts, why) for of, verdicts, why in reports if of == kind])
        for kind in kinds
    ]
