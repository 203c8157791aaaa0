"""A deadlock in a collective: real ranks on gloo, each in an all_reduce that the other is not in."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.processes import Spawned, Spawner

RANK = """
import faulthandler, os, signal, sys
import torch, torch.distributed as dist
from holdfast.testing import Faults
faulthandler.register(signal.SIGUSR1)
if sys.argv[2] == "early":
    faults = Faults.from_env()
dist.init_process_group("gloo", init_method="file://" + sys.argv[1],
                        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
if sys.argv[2] == "late":
    faults = Faults.from_env()
for step in range(4):
    value = torch.ones(100)
    where = "at_step"
    try:
        faults.at_step(step)
        where = "its own all_reduce"
        dist.all_reduce(value)
    except RuntimeError as error:
        print(f"step {step}: error in {where}: {error}", flush=True)
        os._exit(3)
    print(f"step {step}: {value[0]:.0f}", flush=True)
"""


def start(spawn: Spawner, folder: Path, fault: str, armed: str) -> list[Spawned]:
    shared = {"WORLD_SIZE": "2", "HOLDFAST_FAULT": fault}
    return [
        spawn.python(RANK, str(folder / "store"), armed, env={**shared, "RANK": str(rank)})
        for rank in range(2)
    ]


def wait_until_in_collective_of_the_fault(rank: Spawned) -> None:
    """By its own stack, which it writes on SIGUSR1."""
    rank.wait_for("happens now")

    def in_all_reduce() -> re.Match[str] | None:
        rank.send_signal(signal.SIGUSR1)
        return re.search(r"all_reduce\n(.*\n)*?.*injector\.py.* in perform", rank.err())

    rank.wait_for(in_all_reduce)


@pytest.mark.parametrize("armed", ["early", "late"])
def test_one_rank_is_in_an_all_reduce_that_the_other_never_joins(
    spawn: Spawner, tmp_path: Path, armed: str
) -> None:
    other, rank = start(spawn, tmp_path, "deadlock@step=2,rank=1", armed)
    wait_until_in_collective_of_the_fault(rank)
    assert rank.out().splitlines() == ["step 0: 2", "step 1: 2"]
    rank.kill()
    assert other.wait() == 3
    assert other.out().splitlines()[:2] == ["step 0: 2", "step 1: 2"]
    assert "step 2: error in its own all_reduce" in other.out()


def test_one_rank_skips_an_all_reduce_that_the_other_waits_in(spawn: Spawner, tmp_path: Path) -> None:
    other, rank = start(spawn, tmp_path, "deadlock@step=2,rank=1,how=skip", "early")
    wait_until_in_collective_of_the_fault(other)
    other.kill()
    assert rank.wait() == 3
    assert "step 2: error in its own all_reduce" in rank.out()
    assert "happens now" not in rank.err()


def test_its_duration_is_the_timeout_of_its_collective(spawn: Spawner, tmp_path: Path) -> None:
    other, rank = start(spawn, tmp_path, "deadlock@step=2,rank=1,for=3s", "early")
    assert rank.wait() == 3
    assert re.search(r"step 2: error in at_step: .*[Tt]imed out", rank.out())
    assert other.wait() == 3


def test_without_torch_distributed_the_error_says_what_to_do(spawn: Spawner) -> None:
    rank = spawn.python("from holdfast.testing import inject\ninject('deadlock@step=0').at_step(0)")
    assert rank.wait() == 1
    assert "torch.distributed was not initialised" in rank.err()
