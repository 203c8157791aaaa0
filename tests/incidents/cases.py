"""Cases for the tests of the rules: ranks with real stacks, a node of them, several nodes.

The stacks, in fixtures/stacks.txt, are what `py-spy dump` showed of small gloo jobs (torch 2.13, Python 3.11), each
shortened where it repeats; the system calls and wait channels beside them are those of the same moment.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from holdfast.incidents import classify, rules
from holdfast.incidents import evidence as E
from holdfast.incidents.schema_1 import system_call
from holdfast.incidents.verdict import Verdict

TEXT = Path(__file__).with_name("fixtures").joinpath("stacks.txt").read_text()
STACKS = MappingProxyType(
    {name: stack for name, _, stack in (part.partition("\n") for part in TEXT.split("== ")[1:])}
)
_KERNEL = MappingProxyType(
    {
        "sleep": ("clock_nanosleep", "hrtimer_nanosleep"),
        "dataset": ("clock_nanosleep", "hrtimer_nanosleep"),
        "own_import": ("clock_nanosleep", "hrtimer_nanosleep"),
        "init": ("clock_nanosleep", "hrtimer_nanosleep"),
        "atexit": ("clock_nanosleep", "hrtimer_nanosleep"),
        "flock": ("flock /locks/cache (held by pid 4711)", "locks_lock_inode_wait"),
        "child": ("wait4 pid 71", "do_wait"),
        "http": ("recvfrom socket:[9] (to 10.0.0.7:80)", "wait_woken"),
        "socket": ("recvfrom socket:[9] (to 10.0.0.7:80)", "wait_woken"),
        "loader": ("poll", "poll_schedule_timeout.constprop.0"),
        "new_group": ("poll", "poll_schedule_timeout.constprop.0"),
        "asyncio": ("epoll_wait", "do_epoll_wait"),
        "torch_save": ("openat", "wait_for_partner"),
        "torch_load": ("openat", "wait_for_partner"),
        "read": ("read /data/part-7", "folio_wait_bit_common"),
        "pipe": ("read pipe:[77]", "anon_pipe_read"),
        "mp_queue": ("read pipe:[78]", "anon_pipe_read"),
    }
)
_LINE = re.compile(r"^(.+) \((.+):(\d+)\)$")
INSTALLED = "/opt/venv/lib/python3.11/site-packages/"
PYTHON = "/usr/lib/python3.11/"


def frames(text: str) -> tuple[E.Frame, ...]:
    """Of a stack as py-spy prints it, with the files' whole paths."""
    found = (_LINE.match(line) for line in text.splitlines())
    return tuple(E.Frame(match[1], _path(match[2]), int(match[3])) for match in found if match)


def _path(file: str) -> str:
    if file.startswith("<"):
        return file
    own = file.startswith(("train", "dataset", "slow"))
    return ("/home/me/job/" if own else INSTALLED if file.startswith("torch/") else PYTHON) + file


def process(where: str = "all_reduce", **changes: Any) -> E.Process:
    """What the kernel says of a rank that is there."""
    if where in ("busy", "importing"):
        return replace(E.Process(state="R", cpu=0.05, switches=3, sampled_over=0.05), **changes)
    call, channel = _KERNEL.get(where, ("futex", "futex_do_wait"))
    found = system_call(call)
    return replace(
        E.Process(state="S", system_call=found, wait_channel=channel, sampled_over=0.05), **changes
    )


def rank(number: int, where: str = "all_reduce", **changes: Any) -> E.RankEvidence:
    """A rank that is at this place of `STACKS`; '' for one without a stack."""
    threads = (E.Thread("MainThread", frames(STACKS[where]), main=True),) if where else ()
    found = E.RankEvidence(
        rank=number,
        local_rank=number,
        pid=4000 + number,
        node="a",
        board=board(),
        process=process(where),
        stacks=threads,
        stacks_from=E.StackSource.RANK if where else E.StackSource.NONE,
        no_stacks=E.Missing.NOTHING if where else E.Missing.NOT_ARMED,
    )
    return replace(found, **changes)


def board(step: int | None = 10, silent: float = 31.0, **changes: Any) -> E.BoardFacts:
    """A board that is silent, after steps of half a second."""
    events = tuple(
        E.RingEvent("step", silent + 0.5 * back, value=(step or 0) - back) for back in range(4, -1, -1)
    )
    found = E.BoardFacts(True, False, 10, step, silent=silent, age=silent + 60.0, events=events, rhythm=0.5)
    return replace(found, **changes)


def node(*ranks: E.RankEvidence, name: str = "a", node_rank: int = 0, **changes: Any) -> E.NodeEvidence:
    """A node after a hang."""
    placed = tuple(replace(each, node=name) for each in ranks)
    found = E.NodeEvidence(
        name, E.HANG, node_rank=node_rank, world_size=len(ranks), at=1000.0, mono=50.0, ranks=placed
    )
    return replace(found, **changes)


def case(*ranks: E.RankEvidence, **changes: Any) -> E.Case:
    """One node with the evidence of all its ranks; the first has passed the limit, as the innocent may."""
    return E.Case((node(*ranks, **{"accused": ranks[0].rank if ranks else None, **changes}),))


def judge(found: E.Case) -> Verdict:
    """The verdict of the rules."""
    return rules.judge(found).verdict


class Expected(NamedTuple):
    """What a test expects of a verdict."""

    rank: int | None
    kind: str
    confidence: str = ""
    """"": any."""
    says: str = ""
    """A part of the sentence."""
    followers: tuple[int, ...] | None = None
    """None: any."""


def expect(found: E.Case, expected: tuple[Any, ...]) -> None:
    """The verdict on this case is as expected, by the fields of `Expected`."""
    verdict, wanted = judge(found), Expected(*expected)
    assert (verdict.rank, verdict.kind) == (wanted.rank, wanted.kind), verdict
    assert wanted.confidence in ("", verdict.confidence) and wanted.says in verdict.sentence, verdict
    assert wanted.followers in (None, verdict.followers), verdict


def limit(waited: float = 31.0) -> E.PassedLimit:
    """A limit that is passed."""
    return E.PassedLimit("heartbeat", waited, 30.0)


def ended(number: int, status: int, ago: float = 0.1, **changes: Any) -> E.RankEvidence:
    """A rank that has ended."""
    known = {name: changes.pop(name) for name in ("asked", "out_of_memory", "meaning") if name in changes}
    source = known.get("out_of_memory", "")
    counted = bool(source) and not source.startswith("kernel log")
    end = E.Exit(status, ago=ago, oom_killed=bool(source), oom_counted=counted, **known)
    lines = changes.get("last_lines", ())
    gone = E.RankEvidence(
        number, number, 4000 + number, "a", exit=end, stderr=classify.nature_of_lines(lines)
    )
    return replace(gone, **changes)


def raised(number: int, type_: str, message: str, ago: float = 0.2, *, lost: bool = False) -> E.RankEvidence:
    """A rank that an exception ended."""
    error = classify.raised(type_, message, "", ago, lost_peer=lost)
    return ended(number, 1, max(0.0, ago - 0.1), raised=error)


def entry(
    sequence: int, operation: str = "gloo:all_reduce", ago: float = 31.0, **changes: Any
) -> E.Collective:
    """One entry of the flight recorder's, of the default group."""
    return replace(E.Collective(sequence, operation, "0", "[[4]]", "Float", "scheduled", ago), **changes)
