"""RankMonitorClient on a real board: what it writes, and what it refuses."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.fault_tolerance import (
    FaultToleranceConfig,
    HeartbeatTimeouts,
    RankMonitorClient,
    RankMonitorClientError,
    WorkloadAction,
    WorkloadControlRequest,
)
from holdfast.fault_tolerance.board import Board, Request


def _names(board: Board) -> list[str]:
    return [section.name for section in board.snapshot().open_sections]


def test_a_life(board: Board, config: FaultToleranceConfig) -> None:
    client = RankMonitorClient()
    assert not client.is_initialized
    assert client.hb_timeouts is client.section_timeouts is client.cfg is client.rank_info is None
    client.init_workload_monitoring(num_warmup_iters=5)  # as Megatron-LM does
    assert client.is_initialized and board.snapshot().connected
    assert client.cfg == config
    assert client.hb_timeouts == HeartbeatTimeouts(3600.0, 2700.0, False)
    assert client.section_timeouts is not None
    assert client.section_timeouts.section == {"setup": 600.0, "step": 180.0, "free": None}
    assert not client.section_timeouts.were_calculated and not client.section_timeouts.are_valid
    assert client.rank_info is not None
    assert (client.rank_info.global_rank, client.rank_info.local_rank, client.rank_info.pid) == (
        2,
        2,
        os.getpid(),
    )
    client.send_heartbeat()
    client.heartbeat()
    client.heartbeat(step=7)
    assert (board.snapshot().heartbeat_count, board.snapshot().step) == (3, 7)
    client.shutdown_workload_monitoring()
    assert not client.is_initialized and board.snapshot().finished
    client.shutdown_workload_monitoring()


def test_sections_nest_and_overlap(client: RankMonitorClient, board: Board) -> None:
    client.start_section("setup")
    client.start_section("step")
    client.end_section("setup")
    assert _names(board) == ["step"]
    client.start_section(section="setup")  # the reference's name of the parameter
    client.end_section(section="step")
    client.start_section("free")
    client.end_all_sections()
    assert _names(board) == [] and board.snapshot().section_count == 4
    client.end_all_sections()


def test_misuse_is_an_error_that_says_what_to_do(client: RankMonitorClient, board: Board) -> None:
    with pytest.raises(RankMonitorClientError, match="initialised already"):
        client.init_workload_monitoring()
    client.start_section("step")
    with pytest.raises(
        RankMonitorClientError, match=r"'step' is open already; close it with end_section\(\)"
    ):
        client.start_section("step")
    with pytest.raises(RankMonitorClientError, match="'setup' is not open"):
        client.end_section("setup")
    for name in ("", 5, None, ["step"]):
        with pytest.raises(RankMonitorClientError, match="start_section"):
            client.start_section(name)  # type: ignore[arg-type]
    with pytest.raises(RankMonitorClientError, match="a step is an integer"):
        client.heartbeat(step="many")  # type: ignore[arg-type]
    with pytest.raises(RankMonitorClientError, match="mapping"):
        client.load_state_dict([])  # type: ignore[arg-type]
    with pytest.raises(RankMonitorClientError, match="WorkloadControlRequest is needed, not str"):
        client.send_workload_control_request("shutdown")  # type: ignore[arg-type]
    assert _names(board) == ["step"] and board.snapshot().consistent


@pytest.mark.parametrize("after_shutdown", [False, True])
def test_everything_else_needs_an_initialised_client(board: Board, after_shutdown: bool) -> None:
    client = RankMonitorClient()
    if after_shutdown:
        client.init_workload_monitoring()
        client.shutdown_workload_monitoring()
    request = WorkloadControlRequest(WorkloadAction.Continue)
    for call in (
        client.send_heartbeat,
        client.heartbeat,
        lambda: client.heartbeat(3),
        lambda: client.start_section("step"),
        lambda: client.end_section("step"),
        client.end_all_sections,
        lambda: client.section("step").__enter__(),
        lambda: client.mark("eval"),
        client.checkpoint_saved,
        client.calculate_and_set_hb_timeouts,
        lambda: client.calculate_and_set_section_timeouts(skip_if_not_ready=True),
        lambda: client.send_workload_control_request(request),
    ):
        with pytest.raises(RankMonitorClientError, match="call init_workload_monitoring"):
            call()
    assert client.state_dict() == {"current_timeouts": {}}


def test_a_section_is_closed_however_its_body_ends(client: RankMonitorClient, board: Board) -> None:
    step = client.section("step")
    for _ in range(2):  # one object may be kept and used for every step
        with step:
            assert _names(board) == ["step"]
        assert _names(board) == []
    with pytest.raises(ZeroDivisionError), client.section("step"):
        _ = 1 / 0
    assert _names(board) == []
    with pytest.raises(ZeroDivisionError), client.section("step"):
        client.end_all_sections()
        _ = 1 / 0
    with client.section("step"):
        client.shutdown_workload_monitoring()


def test_a_section_without_a_limit_is_mentioned_once(
    client: RankMonitorClient, board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            for name in ("data loading", "step", "free"):
                with client.section(name):
                    pass
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("holdfast: section 'data loading' has no limit")
    assert board.snapshot().limits.sections["data loading"] is None


def test_two_clients_of_one_process_are_misuse(client: RankMonitorClient, board: Board) -> None:
    """One that was shut down or dropped makes room."""
    other = RankMonitorClient()
    with pytest.raises(RankMonitorClientError, match="another RankMonitorClient of this process"):
        other.init_workload_monitoring()
    client.shutdown_workload_monitoring()
    other.init_workload_monitoring()
    del other
    client.init_workload_monitoring()


def test_all_threads_of_a_rank_may_use_it(client: RankMonitorClient, board: Board) -> None:
    def work(thread: int) -> None:
        for step in range(500):
            client.heartbeat(step)
            with client.section(f"thread {thread}"):
                client.send_heartbeat()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    snapshot = board.snapshot()
    assert (snapshot.heartbeat_count, snapshot.section_count, snapshot.open_sections) == (4000, 2000, ())
    assert snapshot.consistent


def test_requests_reach_the_launcher(client: RankMonitorClient, board: Board) -> None:
    for action, word in (
        (WorkloadAction.Continue, "continue"),
        (WorkloadAction.ExcludeThisNode, "exclude_this_node"),
        (WorkloadAction.ShutdownWorkload, "shutdown_workload"),
    ):
        client.send_workload_control_request(
            WorkloadControlRequest(action, description="GPU 3 has fallen off the bus")
        )
        assert board.snapshot().request == Request(word, "GPU 3 has fallen off the bus")
    assert str(WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "why")) == "ExcludeThisNode: why"


def test_checkpoints_and_marks(client: RankMonitorClient, board: Board) -> None:
    with client.section("checkpointing"):
        pass
    client.checkpoint_saved(step=40)
    client.mark("eval", 3)
    assert board.snapshot().checkpoints == 2
    assert [event.kind for event in board.events()][-2:] == ["checkpoint", "mark"]


def test_a_client_may_begin_again(client: RankMonitorClient, board: Board) -> None:
    client.send_heartbeat()
    client.send_heartbeat()
    client.start_section("step")
    client.calculate_and_set_hb_timeouts()
    learned = client.hb_timeouts
    client.shutdown_workload_monitoring()
    client.init_workload_monitoring()
    assert client.hb_timeouts == learned
    assert _names(board) == [] and not board.snapshot().finished
    client.start_section("step")
