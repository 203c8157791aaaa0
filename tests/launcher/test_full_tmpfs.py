"""A /dev/shm that is full or cannot be written: a warning, and the job runs."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.launcher.conftest import Job, Jobs

IN_A_NAMESPACE = ["unshare", "--mount", "bash", "-c"]
SETUP = 'mount -t tmpfs -o {options} tmpfs /dev/shm && {fill} && exec "$@"'
FILL = "dd if=/dev/zero of=/dev/shm/ballast bs=4k count={pages} status=none"

HEARTBEAT = """
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
client.send_heartbeat()
say("board", os.environ["FT_RANK_MONITOR_IPC_SOCKET"])
if CYCLE == 0:
    raise ValueError("once")
"""


@pytest.fixture(autouse=True)
def _mounts_are_possible() -> None:
    """Only root can mount, and not in every container."""
    if (
        not shutil.which("unshare")
        or subprocess.run([*IN_A_NAMESPACE, "mount -t tmpfs tmpfs /dev/shm"]).returncode
    ):
        pytest.skip("a private /dev/shm cannot be mounted here")


def run(jobs: Jobs, options: str, fill: str = "true") -> Job:
    setup = SETUP.format(options=options, fill=fill)
    return jobs(HEARTBEAT, "--max-restarts", "1", nproc=2, under=[*IN_A_NAMESPACE, setup, "bash"])


def test_no_room_for_boards(jobs: Jobs) -> None:
    """One page is left, which the launcher and its monitor need."""
    job = run(jobs, "size=16k", FILL.format(pages=3))
    said = job.end(0)
    warnings = [line for line in job.said() if "no board" in line]
    assert warnings[0].startswith("[holdfast] no board for 2 of 2 ranks in this cycle: /dev/shm/")
    assert "No space left on device" in warnings[0] and len(warnings) == 2
    assert "restarting all 2 local ranks" in said and "Traceback" not in "".join(job.said())


@pytest.mark.parametrize(("options", "fill"), [("size=4k", FILL.format(pages=1)), ("ro", "true")])
def test_no_room_for_anything(jobs: Jobs, options: str, fill: str) -> None:
    job = run(jobs, options, fill)
    said = job.end(0)
    assert "for want of room on tmpfs (/dev/shm: " in said
    boards = job.hear(r"board (\S+)", ranks=[0, 1], cycle=1)
    assert not any(board.startswith("/dev/shm") for board in boards.values())
    assert "without supervision" not in said
