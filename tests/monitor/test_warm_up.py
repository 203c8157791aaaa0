"""`num_warmup_iterations`: the first steps of each cycle may take longer than the others, but not forever."""

from __future__ import annotations

import signal

import pytest

from tests.launcher.conftest import Jobs

from .job import CLIENT

STEPS = (
    CLIENT
    + """
client.init_workload_monitoring()
pauses, inside = {pauses}, {inside}
for number, pause in enumerate(pauses[CYCLE]):
    with client.section("step"):
        time.sleep(pause if inside else 0)
    say("step", number)
    time.sleep(0 if inside else pause)
client.shutdown_workload_monitoring()
"""
)
LIMITS = "--ft-rank-section-timeouts", "step:1", "--ft-rank-out-of-section-timeout", "1"
WARM_UP = "--ft-num-warmup-iterations", "2", "--ft-initial-rank-heartbeat-timeout"


@pytest.mark.parametrize("inside", [True, False], ids=["step", "out_of_section"])
def test_first_steps_of_each_cycle_are_exempt(jobs: Jobs, inside: bool) -> None:
    """A cycle's third step is held to its timeout. Out of section the exemption ends with the second step."""
    slow = [2, 2, 30] if inside else [2, 30]
    job = jobs(STEPS.format(pauses=[slow, slow[:-1]], inside=inside), *LIMITS, *WARM_UP, "60",
               "--max-restarts", "1", nproc=1)  # fmt: skip
    job.end(0)
    (verdict,) = job.journal("verdict")
    assert (verdict["cycle"], verdict["limit"]) == (0, 1.0)
    assert verdict["reason"] == ("section" if inside else "out_of_section")
    assert len(job.lines("cycle 0 step")) == 2


def test_hang_in_a_first_step_is_found_by_the_initial_timeout(jobs: Jobs) -> None:
    job = jobs(STEPS.format(pauses=[[60]], inside=True), *LIMITS, *WARM_UP, "4", nproc=1)
    job.end(137)
    (verdict,) = job.journal("verdict")
    assert (verdict["reason"], verdict["section"], verdict["limit"]) == ("section", "step", 4.0)


def test_first_step_has_its_timeout_by_default(jobs: Jobs) -> None:
    """As before, and other than in NVRx: the default is 0."""
    job = jobs(STEPS.format(pauses=[[60]], inside=True), *LIMITS, nproc=1)
    job.end(137)
    (verdict,) = job.journal("verdict")
    assert verdict["limit"] == 1.0


NO_STEPS = (
    CLIENT
    + """
client.init_workload_monitoring()
for number in range(10):
    with client.section("forward"):
        pass
while True:
    client.send_heartbeat()
    time.sleep(0.05)
"""
)


def test_program_without_steps_is_advised(jobs: Jobs) -> None:
    """Its first steps never end, so its timeout out of section is another one."""
    job = jobs(NO_STEPS, *LIMITS, *WARM_UP, "60", nproc=1)
    job.wait_for(r"num_warmup_iterations is set \(--ft-num-warmup-iterations\), but the ranks end no section")
    job.spawned.send_signal(signal.SIGTERM)
    job.end(0)
