"""One fault as a value: what happens, when, on which rank, in which cycle. Pure; nothing here does any harm.

`Fault` can be written in code or read from text (`holdfast.testing.grammar`). What always holds: a `Fault` that exists
is valid, so arming never fails on its fields. What a kind does is in `deeds.py`; where it applies, in `place.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from holdfast.testing.errors import FaultSpecError

__all__ = ["ALIASES", "KINDS", "Fault", "Kind", "nearest"]

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known about a kind before it happens."""

    summary: str
    options: frozenset[str] = frozenset()
    #: Acts on the training loop itself, so a delayed one must be carried into the main thread.
    in_main_thread: bool = False


KINDS = MappingProxyType(
    {
        "exit": Kind("the process exits at once, with no cleanup", frozenset({"code"})),
        "exception": Kind("InjectedFault is raised in the training loop", frozenset({"message"}), True),
        "kill": Kind("SIGKILL"),
        "stop": Kind("SIGSTOP: every thread stands still, no signal but SIGCONT and SIGKILL helps"),
        "segv": Kind("a read from address 0"),
        "sleep": Kind(
            "the main thread sleeps; other threads and signal handlers run", frozenset({"for"}), True
        ),
        "gil": Kind("a busy loop in C that holds the GIL: no other Python thread runs", frozenset({"for"})),
        "deadlock": Kind(
            "one rank is in an all_reduce in which the others are not", frozenset({"for", "how"}), True
        ),
        "memory": Kind("allocates until a limit it sets itself: MemoryError", frozenset({"limit"}), True),
        "half_save": Kind(
            "the kernel ends the process in the middle of the next file that it writes",
            frozenset({"size"}),
            True,
        ),
        "ignore_term": Kind("SIGTERM is ignored from now on", in_main_thread=True),
        "child": Kind(
            "starts a process in a session of its own and leaves it", frozenset({"for", "ignore_term"})
        ),
        "random": Kind("kill or stop, the same choice on every rank"),
    }
)

#: Other names people use for the same thing. `rank_killed` and `rank_hung` are those of SimulatedFaultParams.
ALIASES = MappingProxyType(
    {
        "hang": "sleep",
        "sigkill": "kill",
        "rank_killed": "kill",
        "sigstop": "stop",
        "rank_hung": "stop",
        "segfault": "segv",
        "sigsegv": "segv",
        "oom": "memory",
        "raise": "exception",
    }
)


#: Option as it is written → field of `Fault` (`for` is a keyword of Python's).
OPTION_FIELDS = MappingProxyType(
    {
        "code": "code",
        "message": "message",
        "for": "duration",
        "how": "how",
        "limit": "limit",
        "size": "size",
        "ignore_term": "ignore_term",
    }
)


@dataclass(frozen=True)
class Fault:
    """A fault, when and where it happens.

    kind: a name from `KINDS` or `ALIASES`. Exactly one of `step` and `after` says when.
    step: the number given to `Faults.at_step`; only that very step, not a later one.
    point: which `at_step` call of the step, when the loop has several; None is the first.
    after: seconds since the fault was armed, plus up to `rand` seconds drawn from `seed`.
    rank: a global rank, "random" (every rank makes the same choice) or "all".
    seed: makes random choices repeatable; without it they differ from job to job. The restart cycle counts as well, so
        with `cycle="each"` another rank may be hit each time.
    cycle: the restart cycle (TORCHELASTIC_RESTART_COUNT) or "each".
    code: exit code of `exit`. message: text of `exception`. limit: bytes that `memory` may add to the process.
    duration: seconds; of `sleep` and `gil` (None: for ever), `child` (None: 600) and the timeout of `deadlock`'s
        collective (None: torch's own default).
    how: `deadlock`: "enter" (this rank is alone in the all_reduce) or "skip" (the others wait in it for this rank).
    size: bytes of a file that are written before `half_save` ends the process.
    ignore_term: the `child` ignores SIGTERM.

    Raises FaultSpecError for anything else.
    """

    kind: str
    step: int | None = None
    after: float | None = None
    rand: float = 0.0
    rank: int | Literal["random", "all"] = "random"
    seed: int | None = None
    cycle: int | Literal["each"] = 0
    point: str | None = None
    code: int = 1
    message: str | None = None
    duration: float | None = None
    how: Literal["enter", "skip"] = "enter"
    limit: int = 256 * MIB
    size: int = 4096
    ignore_term: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", canonical_kind(self.kind))
        problem = _problem(self)
        if problem:
            raise FaultSpecError(f"fault {self.kind!r}: {problem}")

    def __str__(self) -> str:
        from holdfast.testing.grammar import render

        return render(self)


def canonical_kind(name: object) -> str:
    """`SIGKILL` → `kill`, `ignore-term` → `ignore_term`; FaultSpecError with the nearest name otherwise."""
    if not isinstance(name, str):
        raise FaultSpecError(f"a fault's kind is a name such as 'kill', not {name!r}")
    key = name.strip().lower().replace("-", "_")
    key = ALIASES.get(key, key)
    if key not in KINDS:
        known = [*KINDS, *ALIASES]
        raise FaultSpecError(f"unknown fault {name!r}{nearest(key, known)}; known: {', '.join(KINDS)}")
    return key


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'kill'?)`, or nothing when no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _problem(fault: Fault) -> str | None:
    return _when_problem(fault) or _where_problem(fault) or _option_problem(fault)


def _when_problem(fault: Fault) -> str | None:
    if (fault.step is None) == (fault.after is None):
        return "say when, with either step=N or after=SECONDS"
    if fault.step is not None and not _is_count(fault.step):
        return f"step is a whole number from 0, not {fault.step!r}"
    if fault.after is not None and not _is_seconds(fault.after):
        return f"after is a number of seconds from 0, not {fault.after!r}"
    if not _is_seconds(fault.rand):
        return f"rand is a number of seconds from 0, not {fault.rand!r}"
    if fault.rand and fault.after is None:
        return "rand goes with after, not with step"
    if fault.point is not None and fault.step is None:
        return "point names an at_step call, so it goes with step"
    if fault.how == "skip" and fault.step is None:
        return "how=skip needs step: all the other ranks act, so all must agree on the moment"
    return None


def _where_problem(fault: Fault) -> str | None:
    if fault.rank not in ("random", "all") and not _is_count(fault.rank):
        return f"rank is a whole number from 0, 'random' or 'all', not {fault.rank!r}"
    if fault.cycle != "each" and not _is_count(fault.cycle):
        return f"cycle is a whole number from 0 or 'each', not {fault.cycle!r}"
    if fault.kind == "deadlock" and fault.rank == "all":
        return "rank=all is no deadlock: with every rank in the all_reduce it completes"
    return None


def _option_problem(fault: Fault) -> str | None:
    for option, field in OPTION_FIELDS.items():
        if (
            option not in KINDS[fault.kind].options
            and getattr(fault, field) != Fault.__dataclass_fields__[field].default
        ):
            return f"{option} does not belong to it"
    if not _is_count(fault.code) or fault.code > 255:
        return f"code is an exit code from 0 to 255, not {fault.code!r}"
    if fault.duration is not None and not (_is_seconds(fault.duration) and fault.duration > 0):
        return f"for is a number of seconds above 0, not {fault.duration!r}"
    if fault.how not in ("enter", "skip"):
        return f"how is 'enter' or 'skip', not {fault.how!r}"
    if not _is_count(fault.limit) or fault.limit < MIB:
        return f"limit is a number of bytes from 1MiB, not {fault.limit!r}"
    if not _is_count(fault.size) or fault.size < 1:
        return f"size is a number of bytes from 1, not {fault.size!r}"
    return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_seconds(value: object) -> bool:
    # The upper bound (30 years) keeps out infinity, nan and what no timer takes.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e9
