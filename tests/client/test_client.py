"""RankMonitorClient on a real board: what it writes, what it refuses, and whatever is wrong costs a warning."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from holdfast.fault_tolerance import (
    FaultToleranceConfig,
    HeartbeatTimeouts,
    RankMonitorClient,
    RankMonitorClientError,
    WorkloadAction,
    WorkloadControlRequest,
    environment,
)
from holdfast.fault_tolerance.board import Board, Request
from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.timeouts.learned_timeouts import Floors
from holdfast.incidents.capture import waiting_on
from tests.clients import NO_FLOORS
from tests.pipes import full_pipe
from tests.processes import wait_until


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
    assert (info := client.rank_info) is not None
    assert (info.global_rank, info.local_rank, info.pid) == (2, 2, os.getpid())
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
    threads, each = 4, 2500
    together = threading.Barrier(threads)

    def work(thread: int) -> None:
        together.wait()
        for step in range(each):
            client.heartbeat(step)
            with client.section(f"thread {thread}"):
                client.send_heartbeat()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    snapshot = board.snapshot()
    assert (snapshot.heartbeat_count, snapshot.section_count) == (2 * threads * each, threads * each)
    assert snapshot.open_sections == () and snapshot.out_of_section_since_ns > 0 and snapshot.consistent
    times = [event.at_ns for event in board.events()]
    assert times == sorted(times)


@pytest.mark.parametrize("action", WorkloadAction)
def test_requests_reach_the_launcher(client: RankMonitorClient, board: Board, action: WorkloadAction) -> None:
    client.send_workload_control_request(WorkloadControlRequest(action, description="GPU 3 is lost"))
    words = {
        "Continue": "continue",
        "ExcludeThisNode": "exclude_this_node",
        "ShutdownWorkload": "shutdown_workload",
    }
    assert board.snapshot().request == Request(words[action.name], "GPU 3 is lost")
    assert str(WorkloadControlRequest(action, "why")) == f"{action.name}: why"


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


# -- supervision that is missing, damaged or of another rank costs training one line in the log


def test_without_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, raising=False)
    strict = RankMonitorClient()
    with pytest.raises(
        RankMonitorClientError, match=r"start the program with ft_launcher, or .*required=False"
    ):
        strict.init_workload_monitoring()
    assert not strict.is_initialized
    client = RankMonitorClient(required=False, learned_floors=NO_FLOORS)
    client.init_workload_monitoring()
    assert client.is_initialized and client.cfg == FaultToleranceConfig()
    client.heartbeat(1)
    client.heartbeat(2)
    with client.section("step"), pytest.raises(RankMonitorClientError, match="open already"):
        client.start_section("step")  # misuse is found here already, not first on the cluster
    assert client.calculate_and_set_hb_timeouts()
    assert client.hb_timeouts is not None and client.hb_timeouts.are_valid
    client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.ShutdownWorkload))
    client.shutdown_workload_monitoring()


@pytest.mark.parametrize("damage", ["absent", "empty path", "no board", "truncated", "held by another"])
def test_a_board_that_cannot_be_used_is_one_warning(
    board: Board, damage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if damage in ("absent", "empty path"):  # empty: the launcher had no shared memory for us
        path = "" if damage == "empty path" else f"{board.path}.absent"
        monkeypatch.setenv(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, path)
    elif damage == "no board":
        Path(board.path).write_text("x" * 30_000)
    elif damage == "truncated":
        os.truncate(board.path, 5000)
    with holds(board) if damage == "held by another" else nullcontext():
        client = RankMonitorClient(learned_floors=NO_FLOORS)
        client.init_workload_monitoring()
        client.heartbeat(1)
        client.send_heartbeat()
        with client.section("step"):
            pass
        assert client.calculate_and_set_hb_timeouts()
        client.shutdown_workload_monitoring()
    assert len(caplog.messages) == 1 and "does not report what it does" in caplog.messages[0]


@contextmanager
def holds(board: Board) -> Iterator[None]:
    """Another process writes this board."""
    code = (
        "import sys\nfrom holdfast.fault_tolerance.board import BoardWriter\n"
        f"writer = BoardWriter({board.path!r})\nprint('held', flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        yield
        holder.communicate()


# Another thread uses a new name, which is logged; the main thread sends heartbeats until it is killed.
LOGGING = """
import sys, threading, time
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
if sys.argv[1] == "mark":
    for number in range(61):  # three slots are the configured sections'
        client.mark(f"mark {number}")
act = client.mark if sys.argv[1] == "mark" else client.start_section
threading.Thread(target=lambda: (print("logs", flush=True), act("a new name")), daemon=True).start()
while True:
    client.send_heartbeat()
    time.sleep(0.001)
"""


@pytest.mark.parametrize("call", ["section", "mark"])
def test_a_full_log_pipe_never_blocks_a_heartbeat(board: Board, call: str) -> None:
    """A collector of log lines has stopped: the thread that logs blocks, and no other one."""
    reader, writer = full_pipe()
    rank = subprocess.Popen(
        [sys.executable, "-c", LOGGING, call], stdout=subprocess.PIPE, stderr=writer, text=True
    )
    with rank:
        try:
            assert rank.stdout is not None and rank.stdout.readline() == "logs\n"
            wait_until(lambda: _writes(rank.pid), what="the thread that logs blocks")
            beats = board.snapshot().heartbeat_count
            wait_until(lambda: board.snapshot().heartbeat_count > beats + 50, what="heartbeats continue")
            assert _writes(rank.pid)
        finally:
            rank.kill()
            os.close(reader)
            os.close(writer)


def _writes(pid: int) -> bool:
    """Whether a thread of it is in the system call `write`."""
    calls = (task / "syscall" for task in Path(f"/proc/{pid}/task").iterdir())
    return any(waiting_on.call(each.read_text(), os.uname().machine)[0] == "write" for each in calls)


def test_a_forked_child_is_not_supervised(client: RankMonitorClient, board: Board) -> None:
    """A data loader's worker that calls the client it inherited, and one that makes its own."""
    client.start_section("step")
    before = board.snapshot()
    child = os.fork()
    if child == 0:
        client.send_heartbeat()
        client.start_section("in the child")
        own = RankMonitorClient()
        own.init_workload_monitoring()
        own.send_heartbeat()
        own.shutdown_workload_monitoring()
        client.shutdown_workload_monitoring()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert board.snapshot() == before
    client.send_heartbeat()
    assert board.snapshot().heartbeat_count == before.heartbeat_count + 1


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_floor_that_is_none_is_a_warning(
    text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOLDFAST_LEARNED_FLOOR", text)
    assert environment.floors() == Floors()
    assert caplog.messages == [
        f"holdfast: HOLDFAST_LEARNED_FLOOR={text!r} is not a number of seconds; the floor stays 10 s"
    ]


@pytest.mark.parametrize("text", ["{", "[]", '{"rank_heartbeat_timeout": "abc"}', '{"no_such": 1}', "7"])
def test_settings_that_cannot_be_read_leave_the_boards_limits(
    board: Board, text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(environment.CONFIG, text)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.shutdown_workload_monitoring()
    assert len(caplog.messages) == 1 and environment.CONFIG in caplog.messages[0]
    assert client.section_timeouts is not None
    assert client.section_timeouts.section == {"setup": 600.0, "step": 180.0, "free": None}


def test_the_client_loads_no_torch() -> None:
    code = (
        "import sys; from holdfast.fault_tolerance import RankMonitorClient\n"
        "client = RankMonitorClient(required=False); client.init_workload_monitoring()\n"
        "client.heartbeat(1); client.heartbeat(2); client.calculate_and_set_hb_timeouts()\n"
        "print(sorted(m for m in ('torch', 'numpy', 'yaml', 'rich') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_program_without_logging_shows_who_warns() -> None:
    code = (
        "from holdfast.fault_tolerance import RankMonitorClient\n"
        "client = RankMonitorClient(); client.init_workload_monitoring()"
    )
    env = {**os.environ, FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR: "/nowhere/0.board", environment.FLOOR: "soon"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and all(line.startswith("holdfast: ") for line in lines), done.stderr
