"""Every kind of hang is found at its limit, and no other: by a monitor alone, and in jobs of the real launcher."""

from __future__ import annotations

import signal
import time

import pytest

from holdfast.fault_tolerance.board import BoardWriter, Limits
from tests.jobs import Jobs
from tests.monitor.conftest import MakeNode
from tests.monitor.job import CLIENT, WAYS_TO_HANG
from tests.monitor.node import Node, victim
from tests.processes import Spawner

LIMIT = 0.5


def heartbeats(hand: BoardWriter) -> None:
    hand.connect()
    hand.heartbeat()


def one_section(hand: BoardWriter) -> None:
    hand.connect()
    hand.start_section("step")


def test_the_check_interval_is_no_resolution(make_node: MakeNode) -> None:
    """A limit that begins while the monitor sleeps is met although it would sleep for much longer."""
    node = make_node(check_interval=3600.0)
    (rank,) = node.start(Limits(sections={"step": 0.1}))
    rank.hand.connect()
    node.looks(1)
    one_section(rank.hand)
    assert rank.process.wait() == -signal.SIGKILL


def test_of_all_who_stand_still_the_one_that_did_so_first_is_accused(node: Node, spawn: Spawner) -> None:
    """The others wait for it in a collective: they are described, not accused."""
    ranks = node.start(Limits(sections={"step": LIMIT}), *(victim(spawn) for _ in range(3)))
    for rank in (ranks[2], ranks[0], ranks[1]):
        one_section(rank.hand)
    verdict = node.hear("verdict")
    assert verdict["rank"] == 2
    assert [(other["rank"], other["where"]) for other in verdict["others"]] == [(0, "step"), (1, "step")]
    assert ranks[2].process.wait() == -signal.SIGKILL
    node.looks(2)
    assert len(node.heard("verdict")) == 1
    assert ranks[0].lives
    assert ranks[1].lives


def test_the_rank_that_the_others_plainly_wait_for_is_accused(node: Node, spawn: Spawner) -> None:
    """It has passed no limit itself; and the sentence says whose was passed, and what is plain."""
    ranks = node.start(Limits(sections={"step": LIMIT}), *(victim(spawn) for _ in range(3)))
    ranks[1].hand.connect()
    ranks[1].process.send_signal(signal.SIGSTOP)
    for rank in (ranks[0], ranks[2]):
        one_section(rank.hand)
    verdict = node.hear("verdict")
    assert (verdict["rank"], verdict["state"]) == (1, "T")
    assert verdict["text"].startswith("Rank 0: Section 'step' did not end. Waited ")
    assert "Rank 1 is stopped" in verdict["text"]
    assert [other["rank"] for other in verdict["others"]] == [0, 2]
    assert ranks[1].process.wait() == -signal.SIGKILL
    assert ranks[0].lives and ranks[2].lives


def test_when_the_cycle_goes_on_regardless_the_next_one_is_accused(
    make_node: MakeNode, spawn: Spawner
) -> None:
    node = make_node(patience=0.1)
    ranks = node.start(Limits(sections={"step": LIMIT}), victim(spawn), victim(spawn))
    for rank in ranks:
        one_section(rank.hand)
    assert [node.hear("verdict")["rank"] for _ in ranks] == [0, 1]
    assert [rank.process.wait() for rank in ranks] == [-signal.SIGKILL] * 2


def test_who_comes_to_a_stand_later_is_accused_at_its_own_limit(node: Node, spawn: Spawner) -> None:
    """No rank has to wait for what another one did before it."""
    first, second = node.start(Limits(sections={"step": LIMIT}), victim(spawn), victim(spawn))
    one_section(first.hand)
    assert node.hear("verdict")["rank"] == 0
    began = time.monotonic()
    one_section(second.hand)
    verdict = node.hear("verdict")
    assert verdict["rank"] == 1
    assert verdict["waited"] <= time.monotonic() - began + 0.1


def test_the_next_cycle_is_watched_and_the_one_before_is_not(node: Node, spawn: Spawner) -> None:
    (old,) = node.start(Limits(subsequent=LIMIT))
    new = node.start(Limits(subsequent=LIMIT), victim(spawn), cycle=1)[-1]
    heartbeats(new.hand)
    heartbeats(old.hand)
    verdict = node.hear("verdict")
    assert (verdict["cycle"], verdict["pid"]) == (1, new.process.pid)
    node.looks(2)
    assert old.lives


# -- jobs, under the real launcher

KINDS = ["heartbeat", "section", "outer", "out_of_section", "stopped", "never_connects", "deaf"]

# Rank 1 hangs in another way in each cycle; rank 0 does nothing wrong, but ignores SIGTERM beside a rank that does.
# In the last cycle neither has a limit to keep.
HANGS = (
    WAYS_TO_HANG
    + """
def never_connects():
    wait()

def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for name in ("mine", "my other one"):  # they have no limit
        client.start_section(name)
    client.send_heartbeat()
    while True:
        time.sleep(1)

def train_without_a_limit():
    if RANK == 1:  # does not use holdfast
        time.sleep(5)
        sys.exit()
    client.init_workload_monitoring()
    end = time.monotonic() + 4.5
    while time.monotonic() < end:  # sections only
        with client.section("step"):
            time.sleep(0.05)
    client.send_heartbeat()
    client.shutdown_workload_monitoring()  # supervision ends, and the rank takes its time
    time.sleep(4.5)
    sys.exit()

kinds = sys.argv[1:]
if CYCLE == len(kinds):
    train_without_a_limit()
kind = kinds[CYCLE]
if RANK == 1 and kind == "never_connects":
    wait()
client.init_workload_monitoring()
meet() if kind != "never_connects" else None
if RANK == 1:
    globals()[kind]()
if kind == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    client.send_heartbeat()
    time.sleep(0.05)
"""
)


@pytest.mark.slow
def test_every_hang_is_found_and_no_rank_without_a_limit_is_killed(jobs: Jobs) -> None:
    script = jobs.script(HANGS)
    job = jobs.command(
        *("--nproc-per-node", "2", "--max-restarts", str(len(KINDS))),
        *("--ft-initial-rank-heartbeat-timeout", "12", "--ft-rank-heartbeat-timeout", "4"),
        *("--ft-rank-section-timeouts", "step:3,epoch:4", "--ft-rank-out-of-section-timeout", "3"),
        *("--ft-rank-termination-signal", "SIGTERM", "--workers-stop-timeout", "3"),
        *(script, *KINDS),
    )
    said = job.end(0)
    verdicts = job.journal("verdict")
    assert [(found["cycle"], found["rank"]) for found in verdicts] == [(n, 1) for n in range(len(KINDS))]
    assert [(found["reason"], found["section"], found["limit"]) for found in verdicts] == [
        ("heartbeat", "", 4.0),
        ("section", "step", 3.0),
        ("section", "epoch", 4.0),
        ("out_of_section", "", 3.0),
        ("heartbeat", "", 4.0),
        ("initial_heartbeat", "", 12.0),
        ("heartbeat", "", 4.0),
    ]
    assert verdicts[0]["step"] == 7
    assert verdicts[2]["where"].startswith("epoch")
    assert verdicts[4]["state"] == "T"
    assert (verdicts[5]["connected"], verdicts[5]["where"]) == (False, "")
    assert [other["rank"] for found in verdicts for other in found["others"]] == [0] * len(KINDS)
    for words in (
        r"HANG: rank 1 \(node .*, pid \d+, cycle 0\): Did not get subsequent heartbeat\. Waited \d+\.\d\d seconds\.",
        r"HANG: .*, cycle 1\): Section 'step' did not end\.",
        r"HANG: .*, cycle 5\): Did not get initial heartbeat\. Waited \d+\.\d\d seconds\.",
        r"rank 1 is not connected yet",
        r"rank 1 is in epoch",
        r"state T \(stopped\)",
        r"SIGTERM sent to rank 1",
        r"restarting all 2 local ranks \(restart 7 of 7\)",
    ):
        job.wait_for(words)
    assert said.count("HANG:") == len(KINDS)
    assert verdicts[6]["where"] == "mine > my other one"
    sent = [found for found in job.journal("signal_sent") if found["by"] == "monitor"]
    assert [(found["cycle"], found["signal"]) for found in sent] == [
        (n, "SIGTERM") for n in range(len(KINDS))
    ]
    assert [(found["cycle"], found["signal"]) for found in job.journal("escalated")] == [(6, "SIGKILL")]
    ends = [found["mono"] for found in job.journal("verdict", "rank_exit") if found["cycle"] == 6]
    assert len(ends) == 3 and max(ends) - min(ends) < 2 * 3 - 0.5, (
        "ranks that ignore SIGTERM share one grace period"
    )
    exits = {found["cycle"]: found["signal"] for found in job.journal("rank_exit") if found["rank"] == 1}
    assert (exits[0], exits[6]) == ("SIGTERM", "SIGKILL")


# -- learned timeouts ----------------------------------------------------------------------------------------

LEARNS = (
    CLIENT
    + """
client.init_workload_monitoring()
if CYCLE == 0:
    with client.section("step"):
        pass
    client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False)
    with client.section("step"):
        time.sleep(4)
"""
)


def test_hang_after_short_timeout_was_learned_is_found_in_time(jobs: Jobs) -> None:
    """`step:1` is configured and a step takes microseconds: what is learned is 1 s, not the floor of 10 s."""
    job = jobs(LEARNS, "--ft-rank-section-timeouts", "step:1", "--max-restarts", "1", nproc=1)
    job.end(0)
    (verdict,) = job.journal("verdict")
    assert verdict["reason"] == "section" and verdict["limit"] == 1.0


# -- warm-up -------------------------------------------------------------------------------------------------

SLOW_STEPS = (
    CLIENT
    + """
client.init_workload_monitoring()
for number in range(10):  # as long as no step ends, this looks like a program without steps
    with client.section("forward"):
        pass
for number, pause in enumerate([4, 4, 60][:3 - CYCLE]):
    with client.section("step"):
        time.sleep(pause)
    say("step", number)
client.shutdown_workload_monitoring()
"""
)
LIMITS = "--ft-rank-section-timeouts", "step:3", "--ft-rank-out-of-section-timeout", "3"
WARM_UP = "--ft-num-warmup-iterations", "2", "--ft-initial-rank-heartbeat-timeout"


@pytest.mark.slow
def test_first_steps_of_each_cycle_are_exempt(jobs: Jobs) -> None:
    """A cycle's third step is held to its timeout. All rules of it: `TestWarmUp`."""
    job = jobs(SLOW_STEPS, *LIMITS, *WARM_UP, "60", "--max-restarts", "1", nproc=1)
    job.end(0)
    (verdict,) = job.journal("verdict")
    assert (verdict["cycle"], verdict["limit"], verdict["reason"]) == (0, 3.0, "section")
    assert len(job.lines("cycle 0 step")) == 2
    job.wait_for(r"num_warmup_iterations is set \(--ft-num-warmup-iterations\), but the ranks end no section")
