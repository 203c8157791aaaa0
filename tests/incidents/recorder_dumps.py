"""Made-up dumps of torch's flight recorder, as NCCL's process groups leave them."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

from holdfast.fault_tolerance.launcher.ranks.rank_environment import PROLOGUE
from holdfast.incidents.capture.stack_request import read_answer
from holdfast.incidents.evidence import Case, Collective, RankEvidence, StackSource, Thread
from holdfast.incidents.rules import judge
from holdfast.incidents.verdict import Judgement
from tests.incidents.cases import board, frames, node, process

Groups = Mapping[str, Sequence[int]]
"""The process groups of a job: the ranks of each, by `name:description` as torch has them: `0:default_pg`, `3:tp`."""
SPINS = (Thread("MainThread", frames("step (train.py:40)\n<module> (train.py:80)"), main=True),)
"""Under `loss.item()` the stack ends in the program's own line, and the processor is busy."""


def _name(key: str) -> str:
    return key.partition(":")[0]


def _desc(key: str) -> str:
    return key.partition(":")[2] or "undefined"


class Recorder:
    """What one rank's recorder has."""

    def __init__(self, rank: int, groups: Groups, backend: str = "nccl") -> None:
        self.rank, self.groups, self.backend = rank, groups, backend
        self.entries: list[dict[str, Any]] = []
        self._collectives: dict[str, int] = {}
        self._p2p: dict[str, int] = {}

    def call(
        self,
        operation: str,
        state: str = "completed",
        group: str = "0:default_pg",
        sizes: object = None,
        **more: Any,
    ) -> Recorder:
        """A collective; `batch`: it has the number of the one before it."""
        if not more.pop("batch", False):
            self._collectives[group] = self._collectives.get(group, 0) + 1
        return self._add(operation, state, group, sizes, False, **more)

    def p2p(
        self,
        operation: str,
        peer: int,
        state: str,
        group: str = "0:default_pg",
        *,
        batch: bool = False,
        **more: Any,
    ) -> Recorder:
        """A send or a receive; peers are numbers within the group."""
        me = list(self.groups[group]).index(self.rank)
        if not batch:
            self._p2p[group] = self._p2p.get(group, 0) + 1
        arrow = "->" if operation == "send" else "<-"
        return self._add(f"{operation} {me}{arrow}{peer}", state, group, None, True, **more)

    def coalesced(self, state: str, group: str = "0:default_pg", *, p2p: bool = True) -> Recorder:
        """The end of a batch."""
        return self._add("coalesced", state, group, None, p2p)

    def _add(self, operation: str, state: str, group: str, sizes: object, p2p: bool, **more: Any) -> Recorder:
        number = len(self.entries)
        created = time.time_ns() - 60 * 10**9 + number * 10**8
        dtype = more.pop("dtype", "Float")
        self.entries.append({
            "record_id": number, "process_group": (_name(group), _desc(group)), "is_p2p": p2p,
            "collective_seq_id": self._collectives.get(group, 0), "p2p_seq_id": self._p2p.get(group, 0),
            "profiling_name": f"{self.backend}:{operation}", "time_created_ns": created,
            "input_sizes": sizes or [[1024]], "input_dtypes": [dtype], "state": state,
            "retired": state == "completed", **more,
        })  # fmt: skip
        return self


def collectives(recorder: Recorder) -> tuple[Collective, ...]:
    """As the helper thread of a rank answers, and as its node reads the answer."""
    module = rank_answer()
    members = {_name(key): list(ranks) for key, ranks in recorder.groups.items() if recorder.rank in ranks}
    dump = json.loads(json.dumps({"entries": recorder.entries}))
    groups, _ = module._groups(dump, members)
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
    spec = importlib.util.spec_from_file_location("rank_answer_of_a_test", f"{PROLOGUE}/rank_answer.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judged(recorders: Sequence[Recorder], world: int | None = None) -> Judgement:
    """By our judge, after a hang: of the ranks nothing is seen but that they use a processor."""
    found = node(*(evidence(each) for each in recorders), world_size=world or len(recorders))
    return judge(Case((found,)))
