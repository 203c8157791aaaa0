"""What a rank tells of its collectives: from torch's flight recorder, on gloo, with real ranks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.fault_tolerance.launcher.ranks.flight_recorder import flight_recorder
from holdfast.fault_tolerance.launcher.ranks.prologue_path import PROLOGUE
from holdfast.incidents.evidence import Collective
from holdfast.incidents.gathering.answers import answer
from tests.incidents.witnesses import Rank
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
    assert found.stacks_from == "the rank itself", found
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


@pytest.mark.slow
def test_where_they_cannot_be_told_nothing_is_said(spawn: Spawner, tmp_path: Path) -> None:
    waits, _ = (each.ready() for each in pair(spawn, tmp_path, SENDS, TORCH_FR_BUFFER_SIZE="3"))
    found = waits.ask(5.0)
    assert not found.collectives and "cannot be compared" in found.no_collectives and found.stacks


def test_a_recorder_that_is_off(spawn: Spawner, tmp_path: Path) -> None:
    text = "dist.all_reduce(t)\nsay('ready')\nimport time; time.sleep(60)"
    [alone] = pair(spawn, tmp_path, text, size=1, TORCH_FR_BUFFER_SIZE="0")
    found = alone.ready().ask(5.0)
    assert not found.collectives and "TORCH_FR_BUFFER_SIZE=0" in found.no_collectives and found.stacks


@pytest.fixture
def testimony() -> ModuleType:
    spec = importlib.util.spec_from_file_location("testimony_of_a_test", f"{PROLOGUE}/testimony.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entry(number: int, name: str = "nccl:all_reduce", **more: object) -> dict[str, object]:
    return {
        "collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False, "profiling_name": name, "record_id": number,
        "process_group": ["0", "default_pg"], "input_sizes": [[8]], "input_dtypes": ["Float"], "state": "started",
        "time_created_ns": 0, **more,
    }  # fmt: skip


def test_nccls_numbers_are_as_they_are(testimony: ModuleType) -> None:
    """A recorded answer of its form: point-to-point operations have numbers of their own there."""
    sent = entry(0, "nccl:send 0->1", is_p2p=True, p2p_seq_id=7)
    groups, without = testimony._groups({"entries": [entry(5), entry(6), sent]}, {"0": [0, 1]})
    assert not without and [each["sequence"] for each in groups[0]["entries"]] == [5, 6, 7]
    assert [each["operation"] for each in groups[0]["entries"]] == ["all_reduce", "all_reduce", "send 0->1"]


def test_an_answer_stays_small(testimony: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [[1024, 1024]] * 500
    entries = [
        entry(number, process_group=[str(group), "x" * 500], input_sizes=sizes)
        for group in range(100)
        for number in range(50)
    ]
    members = {str(group): list(range(4096)) for group in range(100)}
    told = testimony._groups({"entries": entries}, members)[0]
    monkeypatch.setattr(testimony, "collectives", lambda: (told, ""))
    texts = list(testimony.answers(["00"]))
    assert all(len(text) < 256_000 for text in texts)
    found = answer(texts[-1].encode(), "00", json.loads(texts[-1])["pid"])
    assert found is not None and found.complete and found.collectives


def test_what_the_user_said_of_the_recorder_holds() -> None:
    assert flight_recorder({}) == {"TORCH_FR_BUFFER_SIZE": "2000"}
    assert flight_recorder({"TORCH_FR_BUFFER_SIZE": "0"}) == {}
    assert flight_recorder({"TORCH_NCCL_TRACE_BUFFER_SIZE": "5"}) == {}
