"""`Loop` in a process without a launcher, and on a rank's board."""

from __future__ import annotations

import os
import runpy
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from holdfast import Loop, checkpoints
from holdfast.fault_tolerance import FaultToleranceConfig, RankMonitorClientError
from holdfast.fault_tolerance.board import Board
from tests.client.conftest import board, shm

__all__ = ["board", "shm"]

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def config() -> FaultToleranceConfig:
    return FaultToleranceConfig()


@pytest.fixture(autouse=True)
def _handler() -> object:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_alone_it_stops_at_the_next_step_after_a_signal() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Loop() as loop:
        assert [loop.step(step) for step in range(3)] == [False] * 3
        os.kill(os.getpid(), signal.SIGTERM)
        assert loop.step(3) and loop.stopped
    assert (
        signal.getsignal(signal.SIGTERM) == loop._notices._handle
    )  # a second signal must not end it while it saves
    os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


def test_without_a_signal_the_handler_is_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyError), Loop() as loop:
        loop.step()
        raise KeyError
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(RankMonitorClientError):
        loop.step(1)


def test_several_ranks_without_a_launcher_keep_their_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = signal.getsignal(signal.SIGTERM)
    with Loop() as loop:
        assert signal.getsignal(signal.SIGTERM) == before and not loop.step(1)


def test_what_the_board_sees(board: Board) -> None:
    with Loop() as loop:
        with loop.section("setup"):
            pass
        for step in range(1, 4):
            loop.step(step)
        with loop.section("checkpointing"):
            assert [section.name for section in board.snapshot().open_sections] == ["checkpointing"]
        loop.client.start_section("left open")
    seen = board.snapshot()
    assert (seen.heartbeat_count, seen.step, seen.checkpoints, seen.finished) == (3, 3, 1, True)
    assert seen.open_sections == ()


@pytest.mark.parametrize("where", ["step", "loop.section", "sections=True"])
def test_supervision_that_ends_in_a_loop_is_logged_once(
    where: str, board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    """The program has shut down its client; a step that is no number stays an error of the program."""
    with Loop(sections=where == "sections=True") as loop:
        with pytest.raises(RankMonitorClientError, match="a step is an integer"):
            loop.step("one")  # type: ignore[arg-type]
        loop.client.shutdown_workload_monitoring()
        for _ in loop(range(3)):
            if where == "step":
                loop.step(1)
            elif where == "loop.section":
                with loop.section("checkpointing"):
                    pass
    assert caplog.text.count("supervision has ended before the training") == 1


def test_iterating_ends_after_the_step_that_stops() -> None:
    """And no later epoch begins; the job is not finished then."""
    trained = []
    with Loop() as loop:
        for _ in range(2):
            for batch in loop("abcd"):
                trained.append(batch)
                if batch == "b":
                    os.kill(os.getpid(), signal.SIGTERM)
                loop.step(len(trained))
    assert trained == ["a", "b"] and loop.stopped


def test_sections_on_request(board: Board) -> None:
    seen = []

    def batches() -> Iterator[int]:
        for number in range(4):
            seen.append(names())
            yield number

    def names() -> list[str]:
        return [section.name for section in board.snapshot().open_sections]

    with Loop(sections=True) as loop:
        for number in loop(batches()):
            seen.append(names())
            if number % 2:  # two batches make a step
                loop.step()
                seen.append(names())
        assert names() == []
        with pytest.raises(KeyError):
            for _ in loop([1]):
                raise KeyError
    assert seen == [["data_loading"], ["step"], ["step", "data_loading"], ["step"], []] * 2
    assert names() == []


def test_the_last_checkpoint_of_a_single_process(tmp_path: Path) -> None:
    with Loop() as loop:
        assert loop.last_checkpoint(tmp_path) is None
        torch.save({}, tmp_path / "step-3.pt")
        assert loop.last_checkpoint(tmp_path) == tmp_path / "step-3.pt"


@pytest.mark.parametrize(("rank", "made"), [("0", True), ("1", False)])
def test_the_flag_is_made_by_rank_0(
    rank: str, made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Loop() as loop:
        loop.finished()  # no flag was asked for
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "finished"))
    with Loop() as loop:
        loop.finished()
    assert (tmp_path / "finished").exists() == made


def test_the_example_never_removes_its_last_complete_checkpoint(tmp_path: Path) -> None:
    """Two broken ones that are newer do not count as the two that are kept."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = SimpleNamespace(module=model)
    save = runpy.run_path(str(ROOT / "examples" / "plain_loop.py"))["save"]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for step in (5, 10):
            save(tmp_path, step, wrapped, optimizer)
        for broken in (15, 20):
            (tmp_path / f"step-{broken:08d}.pt").write_bytes(b"PK\x03\x04half")
        for step in (11, 12):
            save(tmp_path, step, wrapped, optimizer)
    finally:
        dist.destroy_process_group()
    assert sorted(int(path.stem[5:]) for path in tmp_path.iterdir()) == [11, 12, 15, 20]
    assert checkpoints.last_complete(tmp_path) == tmp_path / "step-00000012.pt"
