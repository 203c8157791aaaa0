"""What a rank tells of its collectives, from torch's flight recorder; and torch's own analyser on the same dumps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.fault_tolerance.launcher.ranks.rank_environment import flight_recorder
from holdfast.incidents import wire
from holdfast.incidents.capture.stack_request import read_answer
from holdfast.incidents.evidence import Collective, Missing, StackSource
from holdfast.incidents.verdict import HIGH, LOW
from tests.incidents.armed_ranks import Rank, unhurried
from tests.incidents.recorder_dumps import Answer, Groups, Recorder, analysed, judged, rank_answer
from tests.processes import Spawner

__all__ = ["unhurried"]  # a fixture

pytestmark = pytest.mark.usefixtures("unhurried")

MEET = """
import torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["SIZE"])
dist.init_process_group("gloo", init_method="file://" + os.environ["MEET"], rank=rank, world_size=size)
t = torch.ones(4)
"""


def pair(spawn: Spawner, folder: Path, text: str, size: int = 2, **env: str) -> list[Rank]:
    env.update(MEET=str(folder / "meet"), SIZE=str(size))
    return [Rank(spawn, folder / str(rank), MEET + text, RANK=str(rank), **env) for rank in range(size)]


def last(rank: Rank, group: str = "default_pg") -> Collective:
    found = rank.ask()
    assert found.stacks_from is StackSource.RANK, found
    return [each for each in found.collectives if each.group == group][-1]


HANGS = """
mine = dist.new_group([0, 1], group_desc="mine")
for _ in range(20):
    dist.all_reduce(t)
dist.broadcast(torch.ones(2, 3), 0, group=mine)
if rank == 0:
    say("ready")
    dist.all_reduce(t)
def elsewhere():
    import time
    say("ready")
    time.sleep(600)
elsewhere()
"""


@pytest.mark.slow
def test_who_waits_in_which_collective(spawn: Spawner, tmp_path: Path) -> None:
    """On torch's own default of its recorder, and without it."""
    waits, elsewhere = (each.ready() for each in pair(spawn, tmp_path, HANGS))
    waits.process.wait_for(lambda: last(waits).state == "scheduled")
    found = last(waits)
    assert (found.sequence, found.operation, found.sizes, found.dtype) == (21, "all_reduce", "[[4]]", "Float")
    assert found.members == (0, 1) and 0 < found.ago < 600
    before = last(elsewhere)
    assert (before.sequence, before.state) == (20, "completed")
    other = last(waits, "mine (1)")
    assert (other.operation, other.sizes, other.sequence) == ("broadcast", "[[2, 3]]", 1)
    kept = [each for each in waits.ask().collectives if each.group == "default_pg"]
    assert [each.sequence for each in kept] == list(range(6, 22))
    elsewhere.within("elsewhere")


SENDS = """
for number in range(3):
    if rank == 0:
        dist.send(t, 1)
    dist.all_reduce(t) if rank == 1 - 1 else (dist.recv(t, 0), dist.all_reduce(t))
    dist.monitored_barrier()
say("ready")
dist.all_reduce(t) if rank == 0 else __import__("time").sleep(600)
"""


@pytest.mark.slow
def test_point_to_point_operations_do_not_move_the_numbers(spawn: Spawner, tmp_path: Path) -> None:
    waits, elsewhere = (each.ready() for each in pair(spawn, tmp_path, SENDS))
    waits.process.wait_for(lambda: last(waits).sequence == 4)
    assert last(elsewhere).sequence == 3


CALLS = """
ring = dist.new_group([0, 2])
dist.barrier()
say("ready")
if rank == 0:
    dist.recv(t, 1)
elif rank == 2:
    dist.send(t, group=ring, group_dst=0)
dist.all_reduce(t)
"""


@pytest.mark.slow
def test_peer_of_a_blocking_call_is_its_global_rank(spawn: Spawner, tmp_path: Path) -> None:
    ranks = [each.ready() for each in pair(spawn, tmp_path, CALLS, size=3)]
    for rank, peer in ((ranks[0], 1), (ranks[2], 0)):
        rank.process.wait_for(lambda rank=rank: rank.ask().peer is not None)
        assert rank.ask().peer == peer
    assert ranks[1].ask().peer is None


@pytest.mark.slow
def test_where_they_cannot_be_told_nothing_is_said(spawn: Spawner, tmp_path: Path) -> None:
    waits, _ = (each.ready() for each in pair(spawn, tmp_path, SENDS, TORCH_FR_BUFFER_SIZE="3"))
    found = waits.ask()
    assert not found.collectives and found.no_collectives is Missing.NOT_RECORDED and found.stacks
    assert "not comparable" in " ".join(found.notes)


def test_a_recorder_that_is_off(spawn: Spawner, tmp_path: Path) -> None:
    text = "dist.all_reduce(t)\nsay('ready')\nimport time; time.sleep(600)"
    [alone] = pair(spawn, tmp_path, text, size=1, TORCH_FR_BUFFER_SIZE="0")
    found = alone.ready().ask()
    assert not found.collectives and found.no_collectives is Missing.NOT_RECORDED and found.stacks
    assert "TORCH_FR_BUFFER_SIZE=0" in " ".join(found.notes)


def entry(number: int, name: str = "nccl:all_reduce", **more: object) -> dict[str, object]:
    return {
        "collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False, "profiling_name": name, "record_id": number,
        "process_group": ["0", "default_pg"], "input_sizes": [[8]], "input_dtypes": ["Float"], "state": "started",
        "time_created_ns": 0, **more,
    }  # fmt: skip


def answered(entries: list[dict[str, object]], ranks: list[int]) -> list[Collective]:
    """What the asker makes of these entries of a recorder."""
    groups, without = rank_answer()._groups({"entries": entries}, {"0": ranks})
    assert not without
    text = json.dumps({"questions": ["00"], "pid": 1, "complete": True, "threads": [], "groups": groups})
    found = read_answer(text.encode(), "00", 1)
    assert found is not None
    return list(found.collectives)


def send(number: int, name: str = "nccl:send 0->1", **more: object) -> dict[str, object]:
    return entry(0, name, is_p2p=True, p2p_seq_id=number, **{"record_id": number, **more})


def test_nccls_numbers_of_collectives_are_as_they_are() -> None:
    """Sends and receives have numbers of their own there."""
    found = answered([entry(5), entry(6), send(7)], [0, 1])
    assert [each.sequence for each in found] == [5, 6, 7]
    assert [each.operation for each in found] == ["all_reduce", "all_reduce", "send 0->1"]
    assert {each.backend for each in found} == {"nccl"}


def test_sends_count_by_pair_and_have_global_peers() -> None:
    """torch's number counts all peers: a rank with two neighbours is ahead of both."""
    names = ["nccl:recv 1<-0", "nccl:send 1->2", "nccl:recv 1<-0"]
    entries = [send(number, name, record_id=number) for number, name in enumerate(names)]
    found = answered(entries, [8, 9, 10])
    assert sorted((each.operation, each.sequence, each.peer) for each in found) == [
        ("recv 1<-0", 1, 8),
        ("recv 1<-0", 2, 8),
        ("send 1->2", 1, 10),
    ]
    assert all(each.p2p for each in found)


def test_a_batch_of_sends_has_the_state_of_its_end() -> None:
    """torch keeps the state of a batch in the entry `coalesced` alone: its parts seem to wait forever."""
    for state in ("completed", "started"):
        parts = [send(3, "nccl:send 0->1", state="scheduled"), send(3, "nccl:recv 0<-1", state="scheduled")]
        found = answered([*parts, send(3, "nccl:coalesced", state=state)], [0, 1])
        assert {(each.operation, each.state) for each in found} == {
            ("send 0->1", state),
            ("recv 0<-1", state),
        }
    collectives = [entry(4, "nccl:_all_gather_base", state="scheduled") for _ in range(3)]
    (one,) = answered([*collectives, entry(4, "nccl:coalesced", state="completed")], [0, 1])
    operations = "_all_gather_base,_all_gather_base,_all_gather_base"
    assert (one.operation, one.state, one.sequence) == (f"coalesced[{operations}]", "completed", 4)


def test_the_oldest_pending_and_the_newest_are_kept() -> None:
    """NCCL enqueues ahead: the stuck one is far behind the newest."""
    entries = [
        entry(n, state="completed" if n <= 40 else "started" if n == 41 else "scheduled")
        for n in range(1, 201)
    ]
    found = answered(entries, [0, 1])
    assert len(found) == 16 and [each.sequence for each in found][:3] == [40, 41, 42]
    assert found[1].state == "started" and found[-1].sequence == 200
    assert wire.decisive(found) == (found[0], found[1], found[-1])


def test_members_of_thousands_of_ranks_are_all_named() -> None:
    for ranks in (list(range(16_384)), list(range(3, 16_384, 8)), [5], [1, 0, 7], []):
        (found,) = answered([entry(1)], ranks)
        assert list(found.members) == ranks
        assert len(json.dumps(rank_answer()._runs(ranks))) < 50


def test_an_answer_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [[1024, 1024]] * 500
    entries = [
        entry(number, process_group=[str(group), "x" * 500], input_sizes=sizes)
        for group in range(100)
        for number in range(50)
    ]
    members = {str(group): list(range(0, 4096, 3)) for group in range(100)}
    told = rank_answer()._groups({"entries": entries}, members)[0]
    monkeypatch.setattr(rank_answer(), "collectives", lambda: (told, "", ""))
    texts = list(rank_answer().answers(["00"]))
    assert all(len(text) < 256_000 for text in texts)
    found = read_answer(texts[-1].encode(), "00", json.loads(texts[-1])["pid"])
    assert found is not None and found.complete and found.collectives


def test_what_the_user_said_of_the_recorder_holds() -> None:
    assert flight_recorder({}) == {"TORCH_FR_BUFFER_SIZE": "2000"}
    assert flight_recorder({"TORCH_FR_BUFFER_SIZE": "0"}) == {}
    assert flight_recorder({"TORCH_NCCL_TRACE_BUFFER_SIZE": "5"}) == {}


# -- our judge and torch's own analyser of flight-recorder dumps, on the same dumps of NCCL's form


WORLD = Groups({"0:default_pg": range(4)})
PARALLEL = Groups({"0:default_pg": range(4), "1:tp": [0, 1], "2:tp": [2, 3], "3:dp": [0, 2], "4:dp": [1, 3]})
ONE_NAME = Groups({"0:default_pg": range(4), "7:tp": [0, 1], "8:tp": [2, 3]})
Jobs = list[Recorder]


def job(then: Callable[[Recorder, int], object], groups: Groups = WORLD, past: int = 3) -> Jobs:
    """Four ranks: some collectives of all, and then what each of them does."""
    found = []
    for rank in range(4):
        recorder = Recorder(rank, groups)
        for _ in range(past):
            recorder.call("all_reduce")
        then(recorder, rank)
        found.append(recorder)
    return found


def all_but(odd: int, *otherwise: str, past: int = 3, **more: object) -> Jobs:
    """All ranks are in an all_reduce; one is not, or `otherwise`: in another operation, or state."""

    def then(recorder: Recorder, rank: int) -> None:
        if rank != odd:
            recorder.call("all_reduce", "started")
        elif otherwise:
            recorder.call(*otherwise, **more)

    return job(then, past=past)


def ahead(recorder: Recorder, rank: int) -> None:
    """All but 1 have enqueued collectives ahead, each another number of them."""
    if rank != 1:
        recorder.call("all_reduce", "started")
        for _ in range(rank + 1):
            recorder.call("all_reduce", "scheduled")


def other_order(recorder: Recorder, rank: int) -> None:
    operations = ("broadcast", "all_reduce") if rank == 2 else ("all_reduce", "broadcast")
    recorder.call(operations[0], "started").call(operations[1], "scheduled")


def in_dp(recorder: Recorder, rank: int) -> None:
    """3 never came to its tensor-parallel collective; 2 waits for it there, and 0 and 1 for these in theirs."""
    tp, dp = ("1:tp" if rank < 2 else "2:tp"), ("3:dp" if rank % 2 == 0 else "4:dp")
    recorder.call("all_reduce", "completed", tp)
    if rank < 2:
        recorder.call("all_reduce", "completed", tp).call("all_reduce", "started", dp)
    elif rank == 2:
        recorder.call("all_reduce", "started", tp)


def in_one_of_two(recorder: Recorder, rank: int) -> None:
    """Both groups are called `tp`. 3 never came to the second collective of its own; 0 and 1 compute."""
    group = "7:tp" if rank < 2 else "8:tp"
    recorder.call("all_reduce", "completed", group)
    if rank < 2:
        recorder.call("all_reduce", "completed", group)
    elif rank == 2:
        recorder.call("all_reduce", "started", group)


def batch(recorder: Recorder, first: str = "all_reduce") -> None:
    recorder.call(first, "scheduled").call("all_reduce", "scheduled", batch=True)
    recorder.call("allreduce_coalesced", "started", batch=True)


def missing(*ranks: int) -> Answer:
    return Answer(missing=frozenset(ranks))


def errors(how: str, *ranks: int) -> Answer:
    return Answer(errors=frozenset((rank, how) for rank in ranks))


TYPE, SIZE = "COLLECTIVE_TYPE_MISMATCH", "SIZE_OR_SYNTAX_MISMATCH"
DTYPE, STATE = "COLLECTIVE_DTYPE_MISMATCH", "COLLECTIVE_STATE_MISMATCH"
MISMATCH = "mismatched_collective"
AGREES: dict[str, tuple[Jobs, Answer, str]] = {
    "missing rank": (all_but(2), missing(2), "user_code"),
    "missing first rank": (all_but(0), missing(0), "user_code"),
    "missing rank, others ahead": (job(ahead), missing(1), "user_code"),
    "operation": (all_but(2, "broadcast", "started"), errors(TYPE, 2), MISMATCH),
    "size": (all_but(1, "all_reduce", "started", sizes=[[8]]), errors(SIZE, 1), MISMATCH),
    "type": (all_but(1, "all_reduce", "started", dtype="Half"), errors(DTYPE, 1), MISMATCH),
    "order": (job(other_order), errors(TYPE, 2), MISMATCH),
    "GPU that never began": (all_but(3, "all_reduce", "scheduled"), errors(STATE, 3), "missing_collective"),
    "one of two groups of one name": (job(in_one_of_two, ONE_NAME), missing(3), "user_code"),
    "batch of collectives": (job(lambda each, rank: rank != 2 and batch(each)), missing(2), "user_code"),
    "operation in a batch": (
        job(lambda each, rank: batch(each, "broadcast" if rank == 2 else "all_reduce")),
        errors(TYPE, 2),
        MISMATCH,
    ),
}
"""Name: the job, torch's answer, which names one rank, and our kind."""


@pytest.mark.parametrize("name", AGREES)
def test_judge_and_torchs_analyser_agree(name: str) -> None:
    found, answer, kind = AGREES[name]
    verdict = judged(found).verdict

    assert analysed(found) == answer
    assert verdict.kind == kind
    assert {verdict.rank} == answer.missing | {rank for rank, _ in answer.errors}


def chain(recorder: Recorder, rank: int) -> None:
    """A pipeline: each receives from the one before, and 0 never sends."""
    if rank:
        recorder.p2p("recv", rank - 1, "started")


def healthy_chain(recorder: Recorder, rank: int) -> None:
    if rank < 3:
        recorder.p2p("send", rank + 1, "completed")
    if rank:
        recorder.p2p("recv", rank - 1, "completed")


def exchange(recorder: Recorder, rank: int, state: str, to: int | None = None) -> None:
    """A send to the next and a receive in one batch."""
    recorder.p2p("send", (rank + 1) % 4 if to is None else to, "scheduled")
    recorder.p2p("recv", (rank - 1) % 4, "scheduled", batch=True).coalesced(state)


def ring(recorder: Recorder, rank: int) -> None:
    """2 never came."""
    if rank != 2:
        exchange(recorder, rank, "started")


def wrong_ring(recorder: Recorder, rank: int) -> None:
    """2 sends to 1 in place of 3. The batches of 0 and 1 end, and these two wait for the others."""
    exchange(recorder, rank, "completed" if rank < 2 else "started", to=1 if rank == 2 else None)
    if rank < 2:
        recorder.call("all_reduce", "started")


NONE = Answer()
DIFFERS: dict[str, tuple[Jobs, Answer, int | None, str]] = {
    # torch compares all ranks with the first one; we take the majority
    "wrong first rank": (all_but(0, "broadcast", "started"), errors(TYPE, 1, 2, 3), 0, MISMATCH),
    "first GPU that never began": (
        all_but(0, "all_reduce", "scheduled"), errors(STATE, 1, 2, 3), 0, "missing_collective",
    ),
    # torch lists both; we name one as a guess
    "two of four missing": (
        job(lambda each, rank: rank < 2 and each.call("all_reduce", "started")), missing(2, 3), 2, "user_code",
    ),
    # torch names 2, which waits for 3 in another group; we follow the waits to their end
    "victim in another group": (job(in_dp, PARALLEL), missing(2), 3, "user_code"),
    # torch counts the rank as missing from the batch; we compare the operations of one number
    "operation beside a batch": (
        job(lambda each, rank: batch(each) if rank != 2 else each.call("broadcast", "started")),
        missing(2), 2, MISMATCH,
    ),
    # torch compares a receive with the receives of other ranks; we follow the peers
    "pipeline": (job(chain), errors(SIZE, 2, 3), 0, "user_code"),
    "healthy pipeline": (job(healthy_chain), errors(SIZE, 1, 2, 3), None, "slow"),
    # torch has no answer where a batch is missing
    "ring": (job(ring), NONE, 2, "user_code"),
    # the ranks wait for each other, and the number of the missing send is not known
    "wrong ring": (job(wrong_ring), missing(2, 3), None, MISMATCH),
}  # fmt: skip
"""Name: the job, torch's answer, our culprit and kind."""


@pytest.mark.parametrize("name", DIFFERS)
def test_judge_and_torchs_analyser_differ_with_a_reason(name: str) -> None:
    found, answer, culprit, kind = DIFFERS[name]
    verdict = judged(found).verdict

    assert analysed(found) == answer
    assert (verdict.rank, verdict.kind) == (culprit, kind)


def test_of_two_that_are_missing_alike_one_is_a_guess() -> None:
    assert judged(DIFFERS["two of four missing"][0]).verdict.confidence == LOW


def started(operation: str, sizes: list[list[int]], out: int) -> Jobs:
    """All are in it, each with another size."""
    return job(lambda each, rank: each.call(operation, "started", sizes=[sizes[rank]], out=[[out]]))


HEALTHY: dict[str, Jobs] = {
    "completed": job(lambda each, rank: each.call("all_reduce")),
    "all in it": job(lambda each, rank: each.call("all_reduce", "started")),
    "sizes of all to all": started("all_to_all", [[8], [16], [24], [32]], 20),
    "scatter": started("scatter", [[8], [], [], []], 2),
    "ring": job(lambda each, rank: exchange(each, rank, "completed")),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_neither_accuses_a_rank_where_none_differs(name: str) -> None:
    assert analysed(HEALTHY[name]) == NONE
    assert judged(HEALTHY[name]).verdict.rank is None


def test_dump_of_one_rank_missing_leaves_both_undecided() -> None:
    """torch refuses unless it may be incomplete, and then has no answer; we say that the cause may be there."""
    found = job(lambda each, rank: each.call("all_reduce", "started"))[:3]
    with pytest.raises(AssertionError, match="Missing dump files"):
        analysed(found)
    assert analysed(found, incomplete=True) == NONE

    verdict = judged(found, world=4).verdict
    assert (verdict.rank, verdict.kind) == (None, "elsewhere")


def test_recorders_that_wrapped_at_other_entries_agree() -> None:
    """A ring of few entries: what all still have decides."""
    found = all_but(2, past=40)
    for each in found:
        each.entries = each.entries[20 + each.rank :]
    verdict = judged(found).verdict

    assert analysed(found) == missing(2)
    assert (verdict.rank, verdict.confidence) == (2, HIGH)
