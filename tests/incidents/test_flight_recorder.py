"""What a rank tells of its collectives: from torch's flight recorder, on gloo, with real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.fault_tolerance.launcher.ranks.rank_environment import flight_recorder
from holdfast.incidents import wire
from holdfast.incidents.capture.stack_request import read_answer
from holdfast.incidents.evidence import Collective, Missing, StackSource
from tests.incidents.armed_ranks import Rank
from tests.incidents.recorder_dumps import rank_answer
from tests.processes import Spawner

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
    found = rank.ask(5.0)
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
    time.sleep(60)
elsewhere()
"""


@pytest.mark.slow
def test_who_waits_in_which_collective(spawn: Spawner, tmp_path: Path) -> None:
    """On torch's own default of its recorder, and without it."""
    waits, elsewhere = (each.ready() for each in pair(spawn, tmp_path, HANGS))
    waits.process.wait_for(lambda: last(waits).state == "scheduled")
    found = last(waits)
    assert (found.sequence, found.operation, found.sizes, found.dtype) == (21, "all_reduce", "[[4]]", "Float")
    assert found.members == (0, 1) and 0 < found.ago < 60
    before = last(elsewhere)
    assert (before.sequence, before.state) == (20, "completed")
    other = last(waits, "mine (1)")
    assert (other.operation, other.sizes, other.sequence) == ("broadcast", "[[2, 3]]", 1)
    kept = [each for each in waits.ask(5.0).collectives if each.group == "default_pg"]
    assert [each.sequence for each in kept] == list(range(6, 22))
    assert elsewhere.functions(elsewhere.ask())[0] == "elsewhere"


SENDS = """
for number in range(3):
    if rank == 0:
        dist.send(t, 1)
    dist.all_reduce(t) if rank == 1 - 1 else (dist.recv(t, 0), dist.all_reduce(t))
    dist.monitored_barrier()
say("ready")
dist.all_reduce(t) if rank == 0 else __import__("time").sleep(60)
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
        rank.process.wait_for(lambda rank=rank: rank.ask(5.0).peer is not None)
        assert rank.ask(5.0).peer == peer
    assert ranks[1].ask(5.0).peer is None


@pytest.mark.slow
def test_where_they_cannot_be_told_nothing_is_said(spawn: Spawner, tmp_path: Path) -> None:
    waits, _ = (each.ready() for each in pair(spawn, tmp_path, SENDS, TORCH_FR_BUFFER_SIZE="3"))
    found = waits.ask(5.0)
    assert not found.collectives and found.no_collectives is Missing.NOT_RECORDED and found.stacks
    assert "not comparable" in " ".join(found.notes)


def test_a_recorder_that_is_off(spawn: Spawner, tmp_path: Path) -> None:
    text = "dist.all_reduce(t)\nsay('ready')\nimport time; time.sleep(60)"
    [alone] = pair(spawn, tmp_path, text, size=1, TORCH_FR_BUFFER_SIZE="0")
    found = alone.ready().ask(5.0)
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
