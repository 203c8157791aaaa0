"""`holdfast top`: a frame from values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.fault_tolerance.board.values import BoardEvent, Identity, Limits, OpenSection, Snapshot
from holdfast.journal.event import Event
from holdfast.journal.goodput import JobNow, goodput
from holdfast.journal.incidents import incidents
from holdfast.views.live_frame import RankState, View, frame, rank_state
from tests.journal.story import START, Story

S = 1_000_000_000
NOW = 1000 * S
LIMITS = Limits(initial=100.0, subsequent=50.0, sections={"step": 10.0, "save": None}, out_of_section=20.0)
BOARD = Snapshot(
    identity=Identity(7, 1, 0, 0, 0, 900 * S),
    connected=True,
    finished=False,
    connected_ns=900 * S,
    heartbeat_count=5,
    last_heartbeat_ns=990 * S,
    step=41,
    section_count=3,
    open_sections=(OpenSection("save", 995 * S), OpenSection("step", 996 * S)),
    out_of_section_since_ns=0,
    last_activity_ns=996 * S,
    checkpoints=0,
    limits=LIMITS,
    request=None,
    consistent=True,
)


def steps(*told: tuple[int, int]) -> list[BoardEvent]:
    return [BoardEvent("step", at * S, "", value) for at, value in told]


def test_rank_state_has_sections_rate_and_the_nearest_timeout() -> None:
    told = [*steps((900, 1), (980, 20), (990, 40)), BoardEvent("mark", 991 * S, "x", 3)]
    assert rank_state(3, BOARD, told, NOW, True) == RankState(
        3, "training", 41, 2.0, 0.0, (("save", 5.0), ("step", 4.0)), 0.4, "step 4.0 of 10 s"
    )


@pytest.mark.parametrize(
    ("change", "is_running", "state"),
    [
        ({}, True, "training"),
        ({}, False, "ended"),
        ({"finished": True}, False, "finished"),
        ({"main_ended_ns": 999 * S}, True, "finished"),
        ({"main_ended_ns": 999 * S, "main_raised": True}, False, "failed"),
        ({"open_sections": (OpenSection("step", 992 * S),)}, True, "late"),
        ({"last_heartbeat_ns": 940 * S}, True, "late"),
        ({"step": None, "section_count": 0, "heartbeat_count": 0, "open_sections": ()}, True, "starting"),
        ({"identity": None}, True, "training"),
    ],
)
def test_rank_state_follows_the_board(change: dict[str, object], is_running: bool, state: str) -> None:
    assert rank_state(0, replace(BOARD, **change), [], NOW, is_running).state == state


@pytest.mark.parametrize(
    ("told", "rate"),
    [
        (steps(), None),
        (steps((999, 5)), None),
        (steps((900, 1), (999, 5)), None),
        (steps((995, 9), (999, 5)), None),
        (steps((999, 5), (999, 6)), None),
        (steps((990, 0), (995, 5), (1000, 5)), 0.5),
    ],
)
def test_rank_state_rate_is_of_the_last_minute(told: list[BoardEvent], rate: float | None) -> None:
    assert rank_state(0, BOARD, told, NOW, True).rate == rate


@pytest.mark.parametrize(
    ("told", "idle"),
    [
        (steps(), 0.0),
        (steps((900, 1)), 0.0),
        (steps((978, 1), (979, 2), (980, 3)), 20.0),
        (steps((970, 1), (975, 2), (980, 3)), 0.0),
        (steps((989, 1), (990, 2), (991, 3)), 0.0),
    ],
)
def test_rank_state_is_idle_after_five_of_its_steps(told: list[BoardEvent], idle: float) -> None:
    assert rank_state(0, BOARD, told, NOW, True).idle == idle


def texts(view: View, width: int = 100, height: int = 1000) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in frame(view, width, height)]


RANK = RankState(5, "late", 60, 19.3, 0.0, (("step", 17.0), ("data", 16.5)), 0.825, "data 16.5 of 20 s")
STORY = Story().tell(0, "run_start").cycle(1, 0).tell(2, "first_step", cycle=0, rank=0, step=1)
STORY.exit(102, 0, rank=1, signal="SIGKILL").restart(102, to=1)
FOUND = incidents(STORY.events)
LEDGER = goodput(STORY.events, FOUND, START + 200)


def progress(node: str, ago: float = 130.0, ranks: object = 8) -> Event:
    fields = {"ranks": ranks, "steps_most": 55, "step_rate": None}
    return Event("progress", START + 200 - ago, 0.0, node, fields, node)


VIEW = View(
    "job",
    START + 200,
    "a",
    (RankState(0, "unknown"), RANK),
    JobNow(LEDGER, FOUND, (progress("b"),)),
    ("a note",),
)


def test_frame_has_ranks_nodes_incidents_and_goodput() -> None:
    assert texts(VIEW) == [
        "job  08:03:20 UTC",
        "goodput 50.0% of 3 min 20 s, cycles: 1, failures: 1",
        " rank      step  steps/s  state    timeout and open sections",
        "    0         -        -  unknown",
        "    5        60     19.3  late     [########  ] data 16.5 of 20 s  step 17.0 s > data 16.5 s",
        "ranks      step  steps/s  node",
        "    8        55        -  b, reported 2 min 10 s ago",
        "incident 1  01-15 08:01:42  crash, rank 1 (a): killed by SIGKILL; restarting",
        "a note",
    ]


@pytest.mark.parametrize(
    ("ranks", "shown"),
    [
        ([("training", 30.0), ("training", 20.0)], True),
        ([("training", 30.0), ("training", 0.0)], False),
        ([("training", 30.0), ("starting", 0.0)], False),
        ([("training", 20.0), ("finished", 0.0), ("ended", 0.0)], True),
        ([("finished", 30.0)], False),
        ([], False),
    ],
)
def test_frame_has_since_when_no_rank_has_a_step(ranks: list[tuple[str, float]], shown: bool) -> None:
    states = [RankState(number, state, idle=idle) for number, (state, idle) in enumerate(ranks)]
    found = [line for line in texts(View("job", START + 200, "a", states)) if line.startswith("no rank")]
    assert found == ["no rank has finished a step since 08:03:00 UTC (20.0 s)"] * shown


def test_frame_of_a_narrow_terminal_goes_without_the_rate() -> None:
    assert texts(VIEW, width=40)[4].startswith("    5        60  late     [########  ]")


def test_frame_of_this_nodes_own_report_is_left_out() -> None:
    view = replace(VIEW, journal=JobNow(progress=(progress("a"),)))
    assert not any("reported" in line for line in texts(view))
    assert any("reported" in line for line in texts(replace(view, ranks=())))


@pytest.mark.parametrize("height", [1, 3, 8, 12, 24, 100])
@pytest.mark.parametrize("ranks", [0, 1, 8, 16384])
@pytest.mark.parametrize("nodes", [0, 1, 2048])
def test_frame_fits_the_height_and_shows_who_is_late(height: int, ranks: int, nodes: int) -> None:
    states = tuple(replace(RANK, rank=rank, passed=0.1, state="training") for rank in range(ranks))
    if ranks:
        states = (*states[:-1], replace(RANK, rank=ranks - 1))
    others = [progress(f"n{node}", float(node == 77)) for node in range(nodes)]
    shown = texts(replace(VIEW, ranks=states, journal=JobNow(LEDGER, FOUND, others)), height=height)
    assert len(shown) <= height
    if height >= 12:
        assert ranks == 0 or any(line.startswith(f"{ranks - 1:>5}") and " late " in line for line in shown)
        assert nodes == 0 or any("reported" in line for line in shown)
    if height == 24 and ranks == 16384:
        assert any("more ranks: " in line and "training" in line for line in shown)


def test_frame_texts_are_escaped() -> None:
    evil = "\x1b[2J\n[bold]"
    rank = replace(RANK, sections=((evil, 1.0),), timeout=evil)
    view = View(
        evil, START, "a", (rank,), JobNow(LEDGER, FOUND, (progress(evil, ranks=evil),), evil), (evil,)
    )
    shown = texts(view)
    assert all(line.isprintable() for line in shown)
    assert sum("\\x1b[2J" in line for line in shown) == 5


def test_frame_without_a_journal_has_the_ranks() -> None:
    assert texts(View("job", START, "a", (RANK,)))[1:] == texts(VIEW)[2:3] + texts(VIEW)[4:5]
