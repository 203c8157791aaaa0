"""Limits that a client learns or loads: on the board at once, in the state, and the same on every rank."""

from __future__ import annotations

import functools
import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance import (
    FaultToleranceConfig,
    HeartbeatTimeouts,
    RankMonitorClient,
    RankMonitorClientError,
    SectionTimeouts,
    environment,
)
from holdfast.fault_tolerance.board import Board, Limits
from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.processes.proc import nvidia_driver
from holdfast.fault_tolerance.timeouts.kept_timeouts import patience
from tests.clients import NO_FLOORS
from tests.processes import Spawner


def test_the_initial_interval_runs_from_the_ranks_start(client: RankMonitorClient, board: Board) -> None:
    """Not from the client's: the limit runs from there, too."""
    client.send_heartbeat()
    client.send_heartbeat()
    snapshot = board.snapshot()
    first = next(event.at_ns for event in board.events() if event.kind == "heartbeat")
    assert snapshot.identity is not None and client.cfg is not None
    client.calculate_and_set_hb_timeouts()
    assert client.hb_timeouts is not None
    assert client.hb_timeouts.initial == pytest.approx(
        client.cfg.safety_factor * (first - snapshot.identity.started_ns) / 1e9
    )


def test_learned_limits_are_on_the_board_at_once_and_in_the_state(
    client: RankMonitorClient, board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("setup", "step", "free", "step"):
        with client.section(name):
            client.send_heartbeat()
    client.start_section("step")  # open: no time is out of section
    assert client.calculate_and_set_hb_timeouts()
    assert client.calculate_and_set_section_timeouts(["setup", "step"], calc_out_of_section=False)
    limits, section = board.snapshot().limits, client.section_timeouts
    assert section is not None and client.hb_timeouts is not None
    assert (limits.initial, limits.subsequent) == (client.hb_timeouts.initial, client.hb_timeouts.subsequent)
    assert limits.sections == section.section and limits.initial_set_by_user
    assert section.calculated_sections == {"setup", "step"} and not section.is_out_of_section_calculated
    assert section.section["free"] is None is limits.out_of_section
    assert client.calculate_and_set_section_timeouts()
    assert client.section_timeouts is not None and client.section_timeouts.were_calculated
    state = client.state_dict()
    assert state["current_timeouts"]["section"]["calculated_sections"] == ["free", "setup", "step"]
    other = RankMonitorClient(learned_floors=NO_FLOORS)
    other.load_state_dict(state)
    assert other.state_dict() == state  # before init
    client.shutdown_workload_monitoring()
    other.init_workload_monitoring()
    assert other.state_dict() == state and other.section_timeouts == client.section_timeouts
    assert board.snapshot().limits.subsequent == state["current_timeouts"]["heartbeat"]["subsequent"]
    other.shutdown_workload_monitoring()


def test_learning_does_not_hang_the_rank_that_learns(client: RankMonitorClient, board: Board) -> None:
    """It saves for long after its last heartbeat, in a section that was always short, and then learns."""
    client.send_heartbeat()
    for name in ("epoch", "epoch"):
        with client.section(name):
            client.send_heartbeat()
    client.start_section("epoch")
    time.sleep(0.3)
    client.calculate_and_set_hb_timeouts()
    client.calculate_and_set_section_timeouts(["epoch"], calc_out_of_section=False)
    limits, factor = board.snapshot().limits, client.cfg.safety_factor if client.cfg else 0.0
    assert limits.subsequent is not None and limits.subsequent >= 0.3 * factor
    assert (limits.sections["epoch"] or 0.0) >= 0.3 * factor


def test_the_time_since_a_new_client_connected_counts(client: RankMonitorClient, board: Board) -> None:
    """The monitor's clock runs from there, although no heartbeat was sent since."""
    client.send_heartbeat()
    client.send_heartbeat()
    client.shutdown_workload_monitoring()
    client.init_workload_monitoring()
    time.sleep(0.3)
    client.calculate_and_set_hb_timeouts()
    assert (board.snapshot().limits.subsequent or 0.0) >= 0.3 * 5.0


def test_a_state_may_be_loaded_after_init(client: RankMonitorClient, board: Board) -> None:
    heartbeat = {"initial": 900.0, "subsequent": 90.0, "were_calculated": True}
    client.load_state_dict({"current_timeouts": {"heartbeat": heartbeat}})
    assert client.hb_timeouts == HeartbeatTimeouts(900.0, 90.0, True)
    assert (board.snapshot().limits.initial, board.snapshot().limits.subsequent) == (900.0, 90.0)
    assert board.snapshot().limits.sections["step"] == 180.0
    # Learned again: the mean of the loaded and the new, which is next to nothing here.
    client.send_heartbeat()
    client.send_heartbeat()
    client.calculate_and_set_hb_timeouts()
    assert client.hb_timeouts.subsequent == pytest.approx(45.0, rel=0.1)


def test_not_enough_data(client: RankMonitorClient, board: Board) -> None:
    before = board.snapshot().limits
    client.send_heartbeat()
    with pytest.raises(RankMonitorClientError, match="no rank has sent two heartbeats"):
        client.calculate_and_set_hb_timeouts()
    assert not client.calculate_and_set_hb_timeouts(skip_if_not_ready=True)
    client.start_section("step")
    with pytest.raises(
        RankMonitorClientError, match="'step' was never closed; no time out of section was seen"
    ):
        client.calculate_and_set_section_timeouts(["step"])
    client.end_section("step")
    with pytest.raises(
        RankMonitorClientError, match="section 'free' was never closed; section 'setup' was never"
    ):
        client.calculate_and_set_section_timeouts()
    assert not client.calculate_and_set_section_timeouts(skip_if_not_ready=True)
    assert not client.calculate_and_set_section_timeouts(["step", "unheard of"], skip_if_not_ready=True)
    assert board.snapshot().limits == before
    assert client.calculate_and_set_section_timeouts(["step"])


def test_a_rank_of_several_cannot_learn_alone(
    client: RankMonitorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    client.send_heartbeat()
    client.send_heartbeat()
    with pytest.raises(RankMonitorClientError, match="one of 4 ranks, and the default process group is not"):
        client.calculate_and_set_hb_timeouts()
    assert not client.calculate_and_set_hb_timeouts(skip_if_not_ready=True)


def test_floors_come_from_the_environment_and_are_said_by_one_rank(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOLDFAST_LEARNED_FLOOR", "40")
    monkeypatch.setenv("HOLDFAST_LEARNED_INITIAL_FLOOR", "70.5")
    monkeypatch.delenv(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, raising=False)
    monkeypatch.setenv("RANK", "0")
    client = RankMonitorClient(required=False)
    client.init_workload_monitoring()
    client.send_heartbeat()
    client.send_heartbeat()
    with caplog.at_level(logging.INFO):
        client.calculate_and_set_hb_timeouts()
    client.shutdown_workload_monitoring()
    assert client.hb_timeouts == HeartbeatTimeouts(70.5, 40.0, True)
    text = "raised to their floor: initial heartbeat 70.5 s, heartbeat 40 s (HOLDFAST_LEARNED_FLOOR"
    assert any(text in message for message in caplog.messages)


def test_a_later_state_leaves_other_learned_limits(client: RankMonitorClient) -> None:
    """A section that was learned after its state was loaded is not set back by a state of heartbeats. The loaded limits
    stay what the last state had, whatever is learned later."""
    assert client.loaded_hb_timeouts is None and client.loaded_section_timeouts is None
    section = {"section": {"step": 50.0}, "calculated_sections": ["step"]}
    client.load_state_dict({client.CURRENT_TIMEOUTS_STATE_KEY: {"section": section}})
    with client.section("step"):
        pass
    client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    learned = client.section_timeouts
    heartbeat = {"initial": 900.0, "subsequent": 90.0, "were_calculated": True}
    client.load_state_dict({client.CURRENT_TIMEOUTS_STATE_KEY: {"heartbeat": heartbeat}})
    assert client.section_timeouts == learned
    assert client.loaded_hb_timeouts == HeartbeatTimeouts(900.0, 90.0, True)
    assert client.loaded_section_timeouts == SectionTimeouts({"step": 50.0}, None, {"step"})


def test_names_from_before_0_3_mean_heartbeats(client: RankMonitorClient) -> None:
    assert client.timeouts == client.hb_timeouts
    assert client.calculate_and_set_timeouts(skip_if_not_ready=True) is False
    client.send_heartbeat()
    client.send_heartbeat()
    assert client.calculate_and_set_timeouts() is True
    assert client.timeouts is client.hb_timeouts
    assert client.timeouts is not None and client.timeouts.were_calculated


@pytest.mark.parametrize(
    ("given", "learned"), [(6.0, 6.0), (8.0, 8.0), (180.0, 10.0), (600.0, 10.0), (None, 10.0)]
)
def test_floor_never_exceeds_what_the_user_configured(
    config: FaultToleranceConfig, request: pytest.FixtureRequest, given: float | None, learned: float
) -> None:
    """What is observed here takes microseconds, so each learned timeout is its floor."""
    config.rank_section_timeouts = {"step": given, "setup": given}
    config.rank_heartbeat_timeout = config.initial_rank_heartbeat_timeout = given
    config.rank_out_of_section_timeout = given
    request.getfixturevalue("board")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    for name in ("setup", "step", "unheard of"):
        with client.section(name):
            client.send_heartbeat()
    client.calculate_and_set_hb_timeouts()
    client.calculate_and_set_section_timeouts()
    client.shutdown_workload_monitoring()
    first = given if given is not None and given < 300.0 else 300.0
    assert client.hb_timeouts == HeartbeatTimeouts(first, learned, True)
    assert client.section_timeouts is not None
    assert client.section_timeouts.section == {"step": learned, "setup": first, "unheard of": 10.0}
    assert client.section_timeouts.out_of_section == learned


def test_wait_for_other_ranks_is_half_of_the_shortest_timeout(client: RankMonitorClient) -> None:
    def load(out_of_section: float, heartbeat: float) -> None:
        section = {"section": {}, "out_of_section": out_of_section, "is_out_of_section_calculated": True}
        beats = {"initial": 900.0, "subsequent": heartbeat, "were_calculated": True}
        client.load_state_dict({"current_timeouts": {"section": section, "heartbeat": beats}})

    assert (patience(client), patience(client, stopped=True)) == (60.0, 10.0)
    load(14.0, 90.0)
    assert (patience(client), patience(client, stopped=True)) == (7.0, 7.0)
    load(30.0, 8.0)
    assert (patience(client), patience(client, stopped=True)) == (4.0, 4.0)


# -- learned limits are the same on every rank: real processes, real collectives


RANK = Path(__file__).with_name("agreeing_rank.py")
FACTOR = 5.0
WAITED = 1.0  # seconds that the ranks wait for the last one, as in `agreeing_rank`


def _run(spawn: Spawner, boards: list[Board], backend: str, folder: Path) -> list[dict[str, Any]]:
    common = {environment.FLOOR: "0", environment.INITIAL_FLOOR: "0", "OMP_NUM_THREADS": "1"}
    processes = []
    for rank, board in enumerate(boards):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(boards))}
        env = {FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR: board.path, **place, **common}
        processes.append(spawn.python(RANK, str(folder / "rendezvous"), backend, env=env))
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
