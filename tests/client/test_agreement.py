"""Learned limits are the same on every rank: real processes, real collectives."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance import environment
from holdfast.fault_tolerance.board import Board, Limits
from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.processes.proc import nvidia_driver
from tests.processes import Spawner

RANK = Path(__file__).with_name("agreeing_rank.py")
FACTOR = 5.0
WAITED = 1.0  # seconds that the ranks wait for the last one, as in `agreeing_rank`

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


def _run(spawn: Spawner, boards: list[Board], backend: str, folder: Path) -> list[dict[str, Any]]:
    processes = [
        spawn.python(
            RANK,
            str(folder / "rendezvous"),
            backend,
            env={
                FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR: board.path,
                environment.FLOOR: "0",
                environment.INITIAL_FLOOR: "0",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(len(boards)),
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank, board in enumerate(boards)
    ]
    for process in processes:
        assert process.wait() == 0, process.output()
    return [json.loads(process.out().splitlines()[-1]) for process in processes]


def _boards(shm: Path, ranks: int) -> list[Board]:
    limits = Limits(3600.0, 2700.0, {"setup": 600.0, "step": 180.0}, 900.0)
    return [Board.create(str(shm / f"{rank}.board"), limits) for rank in range(ranks)]


def test_two_ranks_agree_on_gloo(spawn: Spawner, shm: Path, tmp_path: Path) -> None:
    boards = _boards(shm, 2)
    said = _run(spawn, boards, "gloo", tmp_path)

    assert all("no rank has sent two heartbeats" in one["refused"] for one in said)
    assert [one["skipped"] for one in said] == [False] * 2
    assert [one["learned"] for one in said] == [[True, True]] * 2
    assert [one["learned all"] for one in said] == [True] * 2
    for what in ("after one section", "state", "after waiting"):
        assert [one[what] for one in said] == [said[0][what]] * 2, "the ranks do not agree"

    heartbeat = said[0]["state"]["current_timeouts"]["heartbeat"]
    section = said[0]["state"]["current_timeouts"]["section"]

    def longest(name: str) -> float:
        return max(one["own"].get(name, 0.0) for one in said)

    # Without a launcher's word each rank's clock starts with its client.
    assert heartbeat["initial"] == pytest.approx(FACTOR * longest("initial"))
    # The time since the last heartbeat counts, too.
    assert heartbeat["subsequent"] >= FACTOR * longest("subsequent") * (1 - 1e-9)
    assert heartbeat["subsequent"] > FACTOR * said[0]["own"]["subsequent"], (
        "rank 0 did not learn from the others"
    )
    # "setup" was learned twice from the same observation, which changes nothing; "rare" is only the last rank's.
    assert section["calculated_sections"] == ["rare", "setup", "step"]
    for name in ("rare", "setup", "step"):
        assert section["section"][name] == pytest.approx(FACTOR * longest(name))
    assert section["out_of_section"] >= FACTOR * longest("") * (1 - 1e-9)
    first = said[0]["after one section"]["current_timeouts"]["section"]
    assert first["calculated_sections"] == ["setup"] and first["section"]["step"] == 180.0
    assert (first["out_of_section"], first["is_out_of_section_calculated"]) == (900.0, False)

    assert all("one of 2 ranks, and the default process group is not" in one["alone"] for one in said)
    waited = said[0]["after waiting"]["current_timeouts"]["section"]["section"]
    assert waited["step"] > WAITED, "the limit was passed already when it was set"
    section["section"]["step"] = waited["step"]
    for board in boards:
        limits = board.snapshot().limits
        assert (limits.initial, limits.subsequent) == (heartbeat["initial"], heartbeat["subsequent"])
        assert limits.sections == section["section"] and limits.out_of_section == section["out_of_section"]
        assert board.snapshot().finished
        board.close()


@functools.cache
def _has_gpu() -> bool:
    if not nvidia_driver():
        return False
    code = "import torch, sys; sys.exit(not (torch.cuda.is_available() and torch.distributed.is_nccl_available()))"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_learning_over_nccl(spawn: Spawner, shm: Path, tmp_path: Path, backend: str) -> None:
    """One rank, since NCCL refuses two on one GPU: that the tensors live where the backend can reach them."""
    if not _has_gpu():
        pytest.skip("needs a GPU and NCCL")
    (board,) = _boards(shm, 1)
    (said,) = _run(spawn, [board], backend, tmp_path)
    assert said["learned"] == [True, True] and said["learned all"]
    heartbeat = said["state"]["current_timeouts"]["heartbeat"]
    assert heartbeat["subsequent"] >= FACTOR * said["own"]["subsequent"] * (1 - 1e-9)
    board.close()
