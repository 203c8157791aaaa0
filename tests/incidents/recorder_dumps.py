"""Made-up dumps of torch's flight recorder, as NCCL's process groups leave them, for our judge and torch's analyser."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import pytest

from holdfast.incidents.capture.stack_request import read_answer
from holdfast.incidents.evidence import Case, Collective, RankEvidence, StackSource, Thread
from holdfast.incidents.rules import judge
from holdfast.incidents.verdict import Judgement
from tests.clients import prologue
from tests.incidents.cases import board, frames, node, process

VERSION, WORLD = "2.10", "0:default_pg"
Entry = dict[str, Any]
SPINS = (Thread("MainThread", frames("step (train.py:40)\n<module> (train.py:80)"), main=True),)
"""Under `loss.item()` the stack ends in the program's own line, and the processor is busy."""


@dataclass(frozen=True)
class Groups:
    """The process groups of a job: the ranks of each, and its description."""

    ranks: Mapping[str, Sequence[int]]
    """By `name:description`, as torch names them: `0:default_pg`, `3:tp`."""

    def of(self, rank: int) -> dict[str, dict[str, str]]:
        """As a dump has them."""
        return {
            _name(key): {"name": _name(key), "desc": _desc(key), "ranks": str(list(ranks))}
            for key, ranks in self.ranks.items()
            if rank in ranks
        }


def _name(key: str) -> str:
    return key.partition(":")[0]


def _desc(key: str) -> str:
    return key.partition(":")[2] or "undefined"


class Recorder:
    """What one rank's recorder has."""

    def __init__(self, rank: int, groups: Groups, backend: str = "nccl") -> None:
        self.rank, self.groups, self.backend = rank, groups, backend
        self.entries: list[Entry] = []
        self._collectives: dict[str, int] = {}
        self._p2p: dict[str, int] = {}

    def call(
        self, operation: str, state: str = "completed", group: str = WORLD, sizes: object = None, **more: Any
    ) -> Recorder:
        """A collective; `batch`: it has the number of the one before it."""
        if not more.pop("batch", False):
            self._collectives[group] = self._collectives.get(group, 0) + 1
        out = more.pop("out", sizes)
        return self._add(operation, state, group, sizes, out, False, **more)

    def p2p(
        self, operation: str, peer: int, state: str, group: str = WORLD, *, batch: bool = False, **more: Any
    ) -> Recorder:
        """A send or a receive; peers are numbers within the group."""
        me = list(self.groups.ranks[group]).index(self.rank)
        if not batch:
            self._p2p[group] = self._p2p.get(group, 0) + 1
        arrow = "->" if operation == "send" else "<-"
        return self._add(f"{operation} {me}{arrow}{peer}", state, group, None, None, True, **more)

    def coalesced(self, state: str) -> Recorder:
        """The end of a batch."""
        return self._add("coalesced", state, WORLD, None, None, True)

    def _add(
        self, operation: str, state: str, group: str, sizes: object, out: object, p2p: bool, **more: Any
    ) -> Recorder:
        number = len(self.entries)
        created = time.time_ns() - 60 * 10**9 + number * 10**8
        dtype = more.pop("dtype", "Float")
        self.entries.append({
            "record_id": number, "pg_id": 0, "process_group": (_name(group), _desc(group)),
            "collective_seq_id": self._collectives.get(group, 0), "p2p_seq_id": self._p2p.get(group, 0),
            "op_id": number, "profiling_name": f"{self.backend}:{operation}", "time_created_ns": created,
            "input_sizes": sizes or [[1024]], "input_dtypes": [dtype], "output_sizes": out or sizes or [[1024]],
            "output_dtypes": [dtype], "state": state, "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None, "retired": state == "completed", "timeout_ms": 600000,
            "is_p2p": p2p, "frames": [], **more,
        })  # fmt: skip
        return self

    def dump(self) -> dict[str, Any]:
        """As torch's file of this rank has it; the entries are its own."""
        groups = self.groups.of(self.rank)
        return {"rank": self.rank, "version": VERSION, "pg_config": groups, "entries": self.entries}


@dataclass(frozen=True)
class Answer:
    """What torch's analyser finds first: ranks that are missing, or that differ from the first rank, and how."""

    missing: frozenset[int] = frozenset()
    errors: frozenset[tuple[int, str]] = frozenset()


def analysed(recorders: Sequence[Recorder], *, incomplete: bool = False) -> Answer:
    """By torch. Raises what it raises."""
    from torch.distributed.flight_recorder.components import builder, utils

    with pytest.MonkeyPatch.context() as patch:
        # It prints tables, if installed.
        patch.setattr(utils, "tabulate", lambda rows, **_: rows, raising=False)
        given = {"verbose": False, "just_print_entries": False, "mismatch_cap": 10}
        details = {f"rank{each.rank}": deepcopy(each.dump()) for each in recorders}
        found = builder.build_db(details, Namespace(**given, allow_incomplete_ranks=incomplete), VERSION)
    for each in found.collectives:
        if each.mismatch_collectives:
            errors = each.mismatch_collectives.items()
            names = frozenset((rank, wrong.type_of_mismatch.state.name) for rank, wrong in errors)
            return Answer(errors=names)
        if each.missing_ranks:
            return Answer(missing=frozenset(each.missing_ranks))
    return Answer()


def collectives(recorder: Recorder) -> tuple[Collective, ...]:
    """As the helper thread of a rank answers, and as its node reads the answer."""
    all_groups = recorder.groups.ranks.items()
    members = {_name(key): list(ranks) for key, ranks in all_groups if recorder.rank in ranks}
    groups, _ = rank_answer()._groups(json.loads(json.dumps(recorder.dump())), members)
    text = json.dumps({"pid": 1, "questions": ["q"], "complete": True, "threads": [], "groups": groups})
    answer = read_answer(text.encode(), "q", 1)
    assert answer is not None
    return answer.collectives


def evidence(recorder: Recorder) -> RankEvidence:
    """A rank with this recorder that uses a processor."""
    return RankEvidence(
        recorder.rank, recorder.rank, 4000 + recorder.rank, "a", board=board(), process=process("busy"),
        stacks=SPINS, stacks_from=StackSource.RANK, collectives=collectives(recorder),
    )  # fmt: skip


@cache
def rank_answer() -> ModuleType:
    """The module by which the helper thread of a rank answers."""
    module: ModuleType = prologue("rank_answer")
    return module


def judged(recorders: Sequence[Recorder], world: int | None = None) -> Judgement:
    """By our judge, after a hang: of the ranks nothing is seen but that they use a processor."""
    found = node(*(evidence(each) for each in recorders), world_size=world or len(recorders))
    return judge(Case((found,)))
