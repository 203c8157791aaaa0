"""Two ranks that come to `listening` when a stop was asked for already, or of which one has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.stop.page import ASKED, PageFile, page_path, write
from holdfast.fault_tolerance.stop.rules import WITHDRAW, Word
from tests.processes import Spawner

ROOT = Path(__file__).resolve().parents[2]
RANK = """
import json, logging, os, sys
import torch.distributed as dist
from holdfast.callbacks.signals import Notices
from holdfast.side_group import CollectiveFailed
from holdfast.callbacks.preemption import find_way

logging.basicConfig()
folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)

def listening(case):
    os.environ["BOARD"] = f"{folder}/{case}-{rank}.board"
    way = find_way(Notices(set()))
    if case == "ended" and rank == 1:
        os._exit(0)
    try:
        answer = way.listening()
    except CollectiveFailed:
        answer = "disagreement"
    groups = len(dist.distributed_c10d._world.pg_map)
    goes_on = [way.begin(), way.after_batch(1), way.in_validation(1, 1), way.after_batch(2)]
    way.close()
    os.write(1, (json.dumps([case, rank, type(way).__name__, answer, groups, goes_on]) + chr(10)).encode())

for case in ("all know", "one knows", "withdrawn", "one has no page", "ended"):
    listening(case)
os._exit(0)
"""


@pytest.fixture
def pages(tmp_path: Path) -> Any:
    """By case and rank, where the ranks find them."""
    made = {}
    for case in ("all know", "one knows", "withdrawn", "one has no page", "ended"):
        for rank in (0, 1):
            if (case, rank) != ("one has no page", 1):
                made[case, rank] = PageFile.create(page_path(str(tmp_path / f"{case}-{rank}.board")))
    yield made
    for page in made.values():
        page.close()


def test_what_the_ranks_know_when_they_listen(
    spawn: Spawner, tmp_path: Path, pages: dict[tuple[str, int], PageFile]
) -> None:
    for case, rank in (("all know", 0), ("all know", 1), ("one knows", 0)):
        pages[case, rank].words[ASKED] = 15
    for rank in (0, 1):
        write(pages["withdrawn", rank].words, Word(WITHDRAW, 1))
    program = RANK.replace("BOARD", FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR)
    paths = {"PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    ranks = [spawn.python(program, str(tmp_path), str(rank), env=paths) for rank in (0, 1)]
    for each in ranks:
        assert each.wait() == 0, each.output()
    said = [json.loads(line) for each in ranks for line in each.out().splitlines()]
    on = [False] * 4
    for rank in (0, 1):
        assert [line for line in said if line[1] == rank][:4] == [
            ["all know", rank, "Agreed", True, 1, on],
            ["one knows", rank, "Agreed", False, 1, on],  # its launcher knows, and sees to it
            ["withdrawn", rank, "Agreed", False, 1, on],
            ["one has no page", rank, "Together", False, 2, on],
        ]
    assert said[4:5] == [["ended", 0, "Agreed", "disagreement", 1, on]]  # soon, and not after half an hour
    assert ranks[0].err().count("the ranks train on until the launcher ends them") == 1
    assert "the ranks train on" not in ranks[1].err()
