"""Every kind of hang, found and restarted under the real launcher; and everybody who must not be taken for hung."""

from __future__ import annotations

import pytest

from tests.launcher.conftest import Jobs

from .job import CLIENT

KINDS = ["heartbeat", "section", "outer", "out_of_section", "stopped", "never_connects"]

# Rank 1 hangs in another way in each cycle; rank 0 does nothing wrong.
HANGS = (
    CLIENT
    + """
def heartbeat():
    client.heartbeat(step=7)
    wait()

def section():
    client.start_section("step")
    wait()

def outer():
    client.start_section("epoch")
    while True:
        with client.section("step"):
            time.sleep(0.05)

def out_of_section():
    with client.section("step"):
        pass
    wait()

def stopped():
    client.send_heartbeat()
    kill_me(signal.SIGSTOP)

def never_connects():
    wait()

kinds = sys.argv[1:]
if CYCLE == len(kinds):
    sys.exit()
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
def test_every_kind_of_hang_is_found_and_the_job_trains_again(jobs: Jobs) -> None:
    script = jobs.script(HANGS)
    job = jobs.command(
        *("--nproc-per-node", "2", "--max-restarts", str(len(KINDS))),
        *("--ft-initial-rank-heartbeat-timeout", "10", "--ft-rank-heartbeat-timeout", "2"),
        *("--ft-rank-section-timeouts", "step:1,epoch:2", "--ft-rank-out-of-section-timeout", "1"),
        *(script, *KINDS),
    )
    said = job.end(0)
    verdicts = job.journal("verdict")
    assert [(found["cycle"], found["rank"]) for found in verdicts] == [(n, 1) for n in range(len(KINDS))]
    assert [(found["reason"], found["section"], found["limit"]) for found in verdicts] == [
        ("heartbeat", "", 2.0),
        ("section", "step", 1.0),
        ("section", "epoch", 2.0),
        ("out_of_section", "", 1.0),
        ("heartbeat", "", 2.0),
        ("initial_heartbeat", "", 10.0),
    ]
    assert verdicts[0]["step"] == 7
    assert verdicts[2]["where"].startswith("epoch")
    assert verdicts[4]["state"] == "T"
    assert (verdicts[5]["connected"], verdicts[5]["where"]) == (False, "")
    assert [other["rank"] for found in verdicts for other in found["others"]] == [0] * len(KINDS)
    for words in (
        r"HANG: rank 1 \(node .*, pid \d+, cycle 0\): Did not get subsequent heartbeat\. Waited 2\.\d\d seconds\.",
        r"HANG: .*, cycle 1\): Section 'step' did not end\.",
        r"HANG: .*, cycle 5\): Did not get initial heartbeat\. Waited 1\d\.\d\d seconds\.",
        r"rank 1 is not connected yet",
        r"rank 1 is in epoch",
        r"state T \(stopped\)",
        r"SIGKILL sent to rank 1",
        r"restarting all 2 local ranks \(restart 6 of 6\)",
    ):
        job.wait_for(words)
    assert said.count("HANG:") == len(KINDS)


QUIET = (
    CLIENT
    + """
if RANK == 0:  # knows nothing of holdfast
    time.sleep(2)
    sys.exit()
client.init_workload_monitoring()
if RANK == 1:  # sections only
    end = time.monotonic() + 2
    while time.monotonic() < end:
        with client.section("step"):
            time.sleep(0.05)
if RANK == 2:  # has said that it is done, and takes its time
    client.send_heartbeat()
    client.shutdown_workload_monitoring()
    time.sleep(2)
"""
)


def test_nobody_is_killed_who_has_no_limit_to_keep(jobs: Jobs) -> None:
    job = jobs(
        QUIET,
        *("--ft-rank-heartbeat-timeout", "0.4", "--ft-rank-section-timeouts", "step:30"),
        nproc=3,
    )
    job.end(0)
    assert job.journal("verdict") == []


STUBBORN = (
    CLIENT
    + """
client.init_workload_monitoring()
if CYCLE == 0:
    for _ in range(3):
        with client.section("mine"):  # has no limit
            pass
if CYCLE == 0 and RANK == 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    client.start_section("mine")
    client.start_section("my other one")
    time.sleep(1)
    client.send_heartbeat()
    while True:
        time.sleep(1)
client.shutdown_workload_monitoring()
meet("again") if CYCLE else wait()
"""
)


def test_a_rank_deaf_to_the_signal_is_killed_also_in_a_section_without_a_limit(jobs: Jobs) -> None:
    job = jobs(
        STUBBORN,
        *(
            "--max-restarts",
            "1",
            "--ft-rank-heartbeat-timeout",
            "1",
            "--ft-rank-termination-signal",
            "SIGTERM",
        ),
        *("--workers-stop-timeout", "1", "--ft-rank-section-timeouts", "step:30"),
    )
    said = job.end(0)
    assert said.count("section 'mine' has no limit") == 1
    (verdict,) = job.journal("verdict")
    assert (verdict["reason"], verdict["where"]) == ("heartbeat", "mine > my other one")
    assert [sent["signal"] for sent in job.journal("signal_sent", "escalated")] == ["SIGTERM", "SIGKILL"]
    (exit_of_it,) = [found for found in job.journal("rank_exit") if (found["cycle"], found["rank"]) == (0, 1)]
    assert exit_of_it["signal"] == "SIGKILL"
