"""Every kind of hang, found and restarted under the real launcher; and ranks that must not be taken for hung."""

from __future__ import annotations

import pytest

from tests.launcher.conftest import Jobs

from .job import CLIENT, WAYS_TO_HANG

KINDS = ["heartbeat", "section", "outer", "out_of_section", "stopped", "never_connects", "deaf"]

# Rank 1 hangs in another way in each cycle; rank 0 does nothing wrong. In the last cycle neither has a limit to keep.
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
