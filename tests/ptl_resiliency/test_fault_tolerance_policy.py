"""What a policy for exceptions asks of the launcher."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from holdfast.fault_tolerance import (
    WorkloadAction,
    WorkloadControlRequest,
)
from holdfast.fault_tolerance.board import Board
from holdfast.ptl_resiliency import FaultToleranceSectionsCallback
from tests.processes import Spawned, Spawner

from .small import TinyModel, trainer


def request(action: WorkloadAction) -> Callable[[Any], WorkloadControlRequest]:
    return lambda error: WorkloadControlRequest(action, f"because of {error}")


def refuse(error: Any) -> Any:
    raise KeyError("in the policy")


@pytest.mark.parametrize(
    ("policy", "asked", "flag", "said"),
    [
        (None, None, False, ""),
        (lambda error: None, None, False, ""),
        (request(WorkloadAction.ExcludeThisNode), "exclude_this_node", False, ""),
        (
            request(WorkloadAction.ShutdownWorkload),
            "shutdown_workload",
            True,
            "Shutdown workload requested, so creating finished flag file.",
        ),
        (
            refuse,
            None,
            False,
            "exc_handling_policy failed on OSError('broken') with KeyError('in the policy')",
        ),
        (lambda error: "restart", None, False, "exc_handling_policy returned 'restart' on OSError('broken')"),
    ],
)
@pytest.mark.parametrize("rank", [0, 3])
def test_what_a_policy_asks_for(
    policy: Any,
    asked: str | None,
    flag: bool,
    said: str,
    rank: int,
    ranked: Board,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On whichever rank failed."""
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "flag"))
    callback = FaultToleranceSectionsCallback(True, True, exp_dir=tmp_path, exc_handling_policy=policy)

    def fail(trainer: Any, batch_idx: int) -> None:
        if rank:
            trainer.strategy.global_rank = rank
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        trainer(tmp_path, callback, max_steps=3).fit(TinyModel(fail))
    asked_for = ranked.snapshot().request
    assert (asked_for.action if asked_for else None) == asked
    assert asked is None or (asked_for is not None and asked_for.description == "because of broken")
    assert (tmp_path / "flag").exists() == flag
    assert said in "\n".join(caplog.messages)


def test_a_clean_stop_asks_for_nothing(ranked: Board, tmp_path: Path) -> None:
    policy = request(WorkloadAction.ShutdownWorkload)
    callback = FaultToleranceSectionsCallback(False, True, exp_dir=tmp_path, exc_handling_policy=policy)

    def leave(trainer: Any, batch_idx: int) -> None:
        raise SystemExit(0)

    with pytest.raises(SystemExit):
        trainer(tmp_path, callback, max_steps=3).fit(TinyModel(leave))
    assert ranked.snapshot().request is None


def test_the_side_group_is_closed_though_the_request_fails(
    ranked: Board, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the other ranks would wait for this one."""

    def policy(exception: Any) -> WorkloadControlRequest:
        callback._fit.client.shutdown_workload_monitoring()  # type: ignore[union-attr]
        return WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "broken")

    callback = FaultToleranceSectionsCallback(False, True, exp_dir=tmp_path, exc_handling_policy=policy)
    closed: list[bool] = []

    def fail(trainer: Any, batch_idx: int) -> None:
        side = callback._fit.side  # type: ignore[union-attr]
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        side.process_group = dist.new_group(backend="gloo")
        callback.on_exception(trainer, trainer.lightning_module, OSError("broken"))
        closed.append(side.process_group is None)
        dist.destroy_process_group()

    trainer(tmp_path, callback, max_steps=1).fit(TinyModel(fail))
    assert "the end of supervision failed: RankMonitorClientError" in "\n".join(caplog.messages)
    assert closed == [True]


# -- the words of a simulated fault: the documented ones, where and when it happens, whatever the streams are


ARMED = """
import sys, threading
from holdfast.callbacks.arguments import parse_params
from holdfast.testing.injector import simulate
sys.stdin.close()
if sys.argv[2] == "closed":
    sys.stdout.close()
params = {"fault_type": sys.argv[1], "base_delay": 0.3, "rank_to_fail": int(sys.argv[3]) if sys.argv[3:] else None}
faults = simulate(parse_params(params))
print("armed", flush=True, file=sys.stderr)
(timer,) = faults._timers or [None]
if timer is not None:
    assert timer.daemon
    threading.Event().wait()
"""


@pytest.fixture
def armed(spawn: Spawner) -> Callable[..., Spawned]:
    """A rank of two that arms a fault, and ends at once if it is not meant."""

    def start(rank: int, *arguments: object) -> Spawned:
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "job"}
        return spawn.python(ARMED, *map(str, arguments), env=place)

    return start


def words(fault: str, rank: int) -> str:
    return f"\n####\nSimulating fault: {fault}; rank to fail: {rank}\n#####\n"


def test_a_rank_chosen_at_random_says_its_number_as_it_fails(armed: Callable[..., Spawned]) -> None:
    ranks = [armed(rank, "rank_killed", "open") for rank in range(2)]
    ended = [rank.wait() for rank in ranks]
    assert sorted(ended) == [-signal.SIGKILL, 0]
    chosen = ended.index(-signal.SIGKILL)
    assert ranks[chosen].out() == words("rank_killed", chosen)
    assert ranks[chosen].err().partition("[")[0] == "armed\n" + words("rank_killed", chosen)
    assert (ranks[1 - chosen].out(), ranks[1 - chosen].err()) == ("", "armed\n")


def test_a_closed_stream_stops_neither_the_start_nor_the_fault(armed: Callable[..., Spawned]) -> None:
    rank = armed(1, "random", "closed", 1)
    rank.wait_for("happens now")
    kind = "rank_killed" if "kill@" in rank.err() else "rank_hung"
    assert rank.out() == "" and rank.err().startswith("armed\n" + words(kind, 1))
