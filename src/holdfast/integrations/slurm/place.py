"""Where a process runs, as Slurm's environment tells it, and Slurm's names of nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process runs: which run of which job, on which nodes."""

    job: str
    restarts: int
    nodes: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Place | None:
        """By Slurm's environment; None outside a job."""
        number = environ.get("SLURM_JOB_ID", "")
        restarts = environ.get("SLURM_RESTART_COUNT", "0")
        if not number.isdecimal() or not restarts.isdecimal():
            return None
        return cls(number, int(restarts), environ.get("SLURM_JOB_NODELIST", ""))

    @property
    def run(self) -> str:
        """`4711.2`: the second restart of job 4711."""
        return f"{self.job}.{self.restarts}"

    @property
    def runs_before(self) -> tuple[str, ...]:
        """The earlier runs of the job."""
        return tuple(f"{self.job}.{restarts}" for restarts in range(self.restarts))

    def precedes(self, run: str) -> bool:
        """Whether that is a later run of the same job."""
        job, _, restarts = run.partition(".")
        return job == self.job and restarts.isdecimal() and int(restarts) > self.restarts


def node_name(told: str) -> str:
    """Slurm's name of a node that a launcher calls `n1:4711` (with its pid) or `n1.example.org`."""
    return told.partition(":")[0].partition(".")[0]
