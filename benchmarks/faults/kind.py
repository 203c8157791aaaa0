"""A kind of fault and its truth, as values. Pure.

What always holds: a truth names one kind of verdict, and at most one more where two are equally true. Nobody who writes
a truth looks at the rules that are scored with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from holdfast.incidents.verdict import KINDS as VERDICTS

PHASES = ("import", "init", "step", "collective", "validation", "checkpoint", "shutdown")
TRAINING = ("step", "collective", "validation", "checkpoint")

RANK, NOBODY, NODE = "rank", "nobody", "node"
"""Who is to blame: the one rank that the fault is done to; none, as it is done to all; a whole node."""

CLIENT, COUNTED, SHELL = "client", "counted", "shell"
"""How the program is supervised: by its client's sections and heartbeats; by its counted optimizer steps and one limit;
by its client, the rank being a child of a shell."""


@dataclass(frozen=True)
class Truth:
    """What is true of one scenario."""

    kinds: tuple[str, ...]
    """Of verdicts: the first is the one, another one is equally true."""
    hangs: bool | None
    """Whether nothing ends by itself, so that evidence can be there before anything is killed. None: either may be."""
    blames: str = RANK
    recovers: bool = True


@dataclass(frozen=True)
class Kind:
    """One kind of fault. `verdict` is the truth in every phase, but for what `at`, `ends_in` and `waits` say."""

    name: str
    what: str
    """What happens, in one sentence."""
    how: str
    """How it is done."""
    verdict: str
    phases: tuple[str, ...]
    hangs: bool | None = True
    """None: it depends on what the ranks happen to send each other."""
    turns_in: tuple[str, ...] = ()
    """Phases in which it is the other way round: a hang where `hangs` is False, an end where it is True."""
    also: str = ""
    """A second kind that is equally true."""
    why: str = ""
    """Why two are equally true."""
    at: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """The kinds that are true in some phases instead."""
    waits: bool = False
    """A wait like any other: whoever says only that the rank did not get beyond its start, or its end, is right too."""
    blames: str = RANK
    recovers: bool = True
    later: bool = False
    """Of those that were written last, which whoever wrote the rules had not seen."""
    layouts: tuple[str, ...] = ("2", "3", "4", "2+2", "2", "1+1", "3", "8")
    """Ranks of each node; scenarios take them by turns."""
    variants: tuple[tuple[str, str], ...] = ()
    """More scenarios: a phase, and how the program is supervised there."""
    needs: tuple[str, ...] = ()
    """What the machine must allow: `cgroup`, `fuse`, `ptrace`."""
    workers: int = 0
    """Of the data loader."""
    options: tuple[str, ...] = ()
    """For Holdfast's launcher, all nodes; later ones win."""

    def __post_init__(self) -> None:
        kinds = {self.verdict, *(kind for kinds in self.at.values() for kind in kinds)} | {self.also} - {""}
        if unknown := kinds - set(VERDICTS):
            raise ValueError(f"{self.name}: {', '.join(sorted(unknown))} is no kind of verdict")
        if unknown := {*self.phases, *self.turns_in, *self.at} - set(PHASES):
            raise ValueError(f"{self.name}: {', '.join(sorted(unknown))} is no phase")
        if bool(self.also) != bool(self.why):
            raise ValueError(f"{self.name}: a second truth needs its reason, and a reason a second truth")

    def truth(self, phase: str) -> Truth:
        """What is true when it happens in this phase."""
        hangs = None if self.hangs is None else self.hangs != (phase in self.turns_in)
        return Truth(self._kinds(phase), hangs, self.blames, self.recovers)

    def _kinds(self, phase: str) -> tuple[str, ...]:
        if phase in self.at:
            return self.at[phase]
        if self.waits and phase in ("import", "init"):
            return (self.verdict, "startup")
        if self.waits and phase == "shutdown":
            return (self.verdict, "shutdown")
        return (self.verdict, self.also) if self.also else (self.verdict,)
