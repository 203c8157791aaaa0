"""How a fit may end, and what follows: the page's table row by row; what a policy asks for; simulated faults."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities.exceptions import SIGTERMException

from holdfast.callbacks.supervision import Supervision
from holdfast.fault_tolerance import WorkloadAction, WorkloadControlRequest
from holdfast.fault_tolerance.board import Board
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback
from tests.processes import Spawned, Spawner

from .small import TinyModel, saving, trainer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lightning.md"
KINDS: list[type[Any]] = [FaultToleranceCallback, FaultToleranceSectionsCallback]


def at_step(step: int, act: Callable[[Any], object]) -> Callable[[Any, int], None]:
    """Do it in this training step."""

    def on_step(trainer: Any, batch_idx: int) -> None:
        if trainer.global_step == step:
            act(trainer)

    return on_step


def raising(error: BaseException) -> Callable[[Any], None]:
    def act(trainer: Any) -> None:
        raise error

    return act


def stop(trainer: Any) -> None:
    trainer.should_stop = True


def run_out_of_time(trainer: Any) -> None:
    (timer,) = (each for each in trainer.callbacks if isinstance(each, Timer))
    timer._duration = 0.0


@dataclass
class Unhashable(EarlyStopping):
    """As a user may write one."""

    monitor: str = "loss"

    def __post_init__(self) -> None:
        super().__init__(self.monitor, patience=1, min_delta=1e6, check_on_train_epoch_end=False)


@dataclass
class Row:
    """A fit that continues at step 5, saves every 5 steps, and what is expected of it."""

    flag: bool
    heartbeats: bool
    sections: str
    """All of them at the end, those that were seen, or no more than what checkpoints before had brought."""
    arguments: dict[str, Any] = field(default_factory=lambda: {"max_steps": 100})
    on_step: Callable[[Any, int], None] | None = None
    raises: type[BaseException] | None = None
    callbacks: Callable[[], list[Any]] = list


ROWS = {
    "`max_steps` reached": Row(True, True, "all", {"max_steps": 40}),
    "`max_epochs` reached": Row(True, True, "all", {"max_epochs": 2}),
    "`max_steps` reached already by the checkpoint": Row(True, False, "some", {"max_steps": 5}),
    "`EarlyStopping`": Row(True, True, "all", {"max_epochs": 50}, callbacks=lambda: [Unhashable()]),
    "the end after the first batch, whatever requested it": Row(
        True, False, "some", on_step=at_step(5, stop)
    ),
    "`max_time`": Row(False, True, "all", {"max_time": "00:01:00:00"}, on_step=at_step(30, run_out_of_time)),
    "`trainer.should_stop = True`": Row(False, True, "all", on_step=at_step(30, stop)),
    "the same in the middle of the last epoch": Row(
        False, True, "all", {"max_epochs": 2}, on_step=at_step(30, stop)
    ),
    "`sys.exit(0)`, preemption": Row(
        False, True, "all", on_step=at_step(30, lambda trainer: sys.exit(0)), raises=SystemExit
    ),
    "Lightning's `SIGTERMException`": Row(
        False, True, "all", on_step=at_step(30, raising(SIGTERMException())), raises=SystemExit
    ),
    "an exception, `sys.exit(1)`": Row(
        False, False, "no", on_step=at_step(30, raising(ValueError("broken"))), raises=ValueError
    ),
    "`KeyboardInterrupt`": Row(
        False, False, "no", on_step=at_step(30, raising(KeyboardInterrupt())), raises=SystemExit
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_follows_from_an_ending(
    name: str, ranked: Board, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ROWS[name]
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "flag"))
    callbacks = [kind(autoresume=True, exp_dir=tmp_path / "state") for kind in KINDS]
    job = trainer(
        tmp_path,
        *callbacks,
        saving(tmp_path / "saved"),
        *row.callbacks(),
        **{"max_epochs": -1, **row.arguments},
    )
    before = set(vars(job.strategy)), job.strategy.save_checkpoint
    if row.raises is None:
        job.fit(TinyModel(row.on_step), ckpt_path=str(checkpoint))
    else:
        with pytest.raises(row.raises):
            job.fit(TinyModel(row.on_step), ckpt_path=str(checkpoint))
    assert (tmp_path / "flag").exists() == row.flag
    learned = {}
    for path in (tmp_path / "state").glob("*.json"):
        learned.update(json.loads(path.read_text())["current_timeouts"])
    assert ("heartbeat" in learned) == row.heartbeats
    sections = learned.get("section", {"calculated_sections": [], "is_out_of_section_calculated": False})
    assert sections["is_out_of_section_calculated"] == (row.sections == "all")
    if row.sections == "some":
        assert "setup" in sections["calculated_sections"] and "step" not in sections["calculated_sections"]
    # Supervision has ended, and nothing of it is left on the trainer.
    snapshot = ranked.snapshot()
    assert snapshot.finished and not snapshot.open_sections
    assert not any(callback.is_initialized for callback in callbacks)
    assert Supervision._current is None
    assert (set(vars(job.strategy)), job.strategy.save_checkpoint) == before
    assert not vars(job).get("save_checkpoint") and "save_checkpoint" not in vars(job.strategy.checkpoint_io)


def test_the_page_says_the_same() -> None:
    def cell(yes: bool) -> str:
        return "yes" if yes else "no"

    rows = re.findall(
        r"^\| (.+?) \| (yes|no) \| (yes|no) \| (all|some|no) \|$", PAGE.read_text(), re.MULTILINE
    )
    expected = {(name, cell(row.flag), cell(row.heartbeats), row.sections) for name, row in ROWS.items()}
    assert {row for row in rows if not row[0].startswith("`validate`")} == expected


@pytest.mark.parametrize("kind", KINDS, ids=["heartbeats", "sections"])
def test_without_a_fit_nothing_is_supervised_and_no_launcher_needed(
    kind: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FT_RANK_MONITOR_IPC_SOCKET", raising=False)
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "flag"))
    callback = kind(True, True, {"fault_type": "rank_killed", "base_delay": 0.0})
    job = trainer(tmp_path, callback)
    for act in (job.validate, job.test, job.predict):
        act(TinyModel())  # type: ignore[operator]
        assert not callback.is_initialized
    assert list(tmp_path.iterdir()) == []


def test_a_tuner_before_the_fit_finishes_nothing(
    ranked: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning leaves the fit of a tuner by an exception of its own, and calls `teardown` for it."""
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "flag"))
    callbacks = [kind(exp_dir=tmp_path / "state") for kind in KINDS]
    job, model = trainer(tmp_path, *callbacks, max_steps=5), TinyModel()
    model.lr = 0.01
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # else its progress bar leaves a thread
    Tuner(job).lr_find(model, num_training=3)
    assert ranked.snapshot().finished and not (tmp_path / "flag").exists()
    try:
        raise ValueError("out of memory")
    except ValueError:  # handled since before the fit, so it is none of the fit
        job.fit(model)
    assert (tmp_path / "flag").exists()


def test_the_flag_of_an_earlier_fit_is_removed_when_one_begins(
    ranked: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "flag"
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(flag))
    callbacks = [kind(exp_dir=tmp_path / "state") for kind in KINDS]
    there: list[bool] = []
    for _ in range(2):
        trainer(tmp_path, *callbacks, max_steps=2).fit(TinyModel(lambda *_: there.append(flag.exists())))
        assert flag.exists()
    with pytest.raises(OSError, match="broken"):
        trainer(tmp_path, *callbacks, max_steps=2).fit(TinyModel(at_step(1, raising(OSError("broken")))))
    assert there == [False] * 4 and not flag.exists()
    flag.write_text("A file of the user, named by mistake")
    trainer(tmp_path, *callbacks, max_steps=1).fit(TinyModel())
    assert flag.read_text()


# -- what a policy for exceptions asks of the launcher


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
def test_what_a_policy_asks_for(
    policy: Any,
    asked: str | None,
    flag: bool,
    said: str,
    ranked: Board,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On whichever rank failed: here one that is not the first."""
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "flag"))
    callback = FaultToleranceSectionsCallback(True, True, exp_dir=tmp_path, exc_handling_policy=policy)

    def fail(trainer: Any, batch_idx: int) -> None:
        trainer.strategy.global_rank = 3
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
from holdfast.testing.injector import simulate
from holdfast.testing.fault import SimulatedFaultParams
sys.stdin.close()
if sys.argv[2] == "closed":
    sys.stdout.close()
params = {"fault_type": sys.argv[1], "base_delay": 0.3, "rank_to_fail": int(sys.argv[3]) if sys.argv[3:] else None}
faults = simulate(SimulatedFaultParams.parse(params))
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


def said(rank: Spawned) -> str:
    """On standard error before the injector's own line, without what the program may say before it or after."""
    return rank.err().replace("armed\n", "").partition("[")[0]


def test_a_rank_chosen_at_random_says_its_number_as_it_fails(armed: Callable[..., Spawned]) -> None:
    ranks = [armed(rank, "rank_killed", "open") for rank in range(2)]
    ended = [rank.wait() for rank in ranks]
    assert sorted(ended) == [-signal.SIGKILL, 0]
    chosen = ended.index(-signal.SIGKILL)
    assert ranks[chosen].out() == words("rank_killed", chosen)
    assert said(ranks[chosen]) == words("rank_killed", chosen)
    assert (ranks[1 - chosen].out(), ranks[1 - chosen].err()) == ("", "armed\n")


def test_a_closed_stream_stops_neither_the_start_nor_the_fault(armed: Callable[..., Spawned]) -> None:
    rank = armed(1, "random", "closed", 1)
    rank.wait_for("happens now")
    kind = "rank_killed" if "kill@" in rank.err() else "rank_hung"
    assert rank.out() == "" and said(rank) == words(kind, 1)
