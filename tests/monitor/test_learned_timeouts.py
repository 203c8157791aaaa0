"""A learned timeout that replaces a configured one, in a job under the real launcher."""

from __future__ import annotations

from tests.launcher.conftest import Jobs

from .job import CLIENT

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
