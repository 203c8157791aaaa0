"""What the retry policy decides: one table for `autoresume.policy` and for the job script of NeMo-Run.

A letter is an attempt: F failed, N cut off with its node, P preempted, p preempted as only its exit code tells,
T time limit, E ended with 0 and without the finished flag. With the default limits, 3 failures or idle ends in a row.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """Attempts, and what follows from them."""

    letters: str
    failures: int
    """In a row, at the end."""
    idle: int = 0
    """Ends that got nowhere, in a row."""
    seconds: tuple[int, ...] = ()
    """How long each ran; 10 where none is given. Of an N it is not known."""
    steps: tuple[int | None, ...] = ()
    """Where each resumed; None where it is not known."""

    @property
    def goes_on(self) -> bool:
        """One more attempt follows."""
        return self.idle < 3 and not (self.failures >= 3 and self.letters[-1] in "FN")

    def __str__(self) -> str:
        return "-".join([self.letters, *map(str, self.seconds), *(f"at{step}" for step in self.steps)])


CASES = [
    Case("F", 1),
    Case("FF", 2),
    Case("FFF", 3),
    Case("FNF", 3),
    Case("NNN", 3),
    # a preemption costs nothing and gives nothing back, unless it outlived the failures
    Case("PPPPP", 0),
    Case("FPFF", 3),
    Case("FFPF", 3, seconds=(50, 60, 55, 50)),
    Case("FFPF", 1, seconds=(50, 60, 90, 50)),
    Case("FFTF", 1, seconds=(50, 60, 3600, 50)),
    Case("NPF", 2, seconds=(0, 200, 50)),
    Case("NPF", 1, seconds=(0, 350, 50)),
    # a clean end gives nothing back unless it was a long one
    Case("FEF", 2, seconds=(50, 90, 50)),
    Case("FEF", 1, seconds=(50, 350, 50)),
    # where steps are reported, only a later step ends a row
    Case("FTF", 2, seconds=(50, 3600, 50), steps=(1, 1, 1)),
    Case("FPF", 1, steps=(1, 1, 500)),
    Case("FFFF", 1, steps=(1, 500, 1000, 1500)),
    Case("FFF", 3, steps=(500, 1, 500)),
    Case("FFF", 3, steps=(1, None, None)),
    # ends that get nowhere are one row, whatever they look like
    Case("E", 0, 1),
    Case("EEE", 0, 3),
    Case("ppp", 0, 3),
    Case("EpE", 0, 3),
    Case("EPEE", 0, 2),
    Case("EFEE", 1, 2),
    Case("EEE", 0, 0, seconds=(350, 350, 350)),
    Case("ppp", 0, 0, seconds=(350, 350, 350)),
    Case("EEEE", 0, 1, steps=(1, 100, 200, 300)),
    Case("EEEE", 0, 3, seconds=(350, 350, 350, 350), steps=(1, 100, 100, 100)),
    Case("TTTT", 0, 0, seconds=(3600, 3600, 3600, 3600)),
    Case("TTT", 0, 3, seconds=(3600, 3600, 3600), steps=(1, 1, 1)),
    Case("TTTT", 0, 1, seconds=(3600, 3600, 3600, 3600), steps=(1, 2, 3, 4)),
]
