"""A /dev/shm that is full or cannot be written: a warning, and the job runs."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from holdfast.fault_tolerance.launcher.exit_codes import Outcome
from tests.launcher.conftest import Jobs

IN_A_NAMESPACE = ["unshare", "--mount", "bash", "-c"]
SETUP = 'mount -t tmpfs -o {options} tmpfs /dev/shm && {fill} && exec "$@"'
FILL = "dd if=/dev/zero of=/dev/shm/ballast bs=4k count={pages} status=none"

HEARTBEAT = """
client = connect()
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


def under(options: str, fill: str = "true") -> list[str]:
    """The command under which the job has a /dev/shm of its own, mounted with these options and then filled."""
    return [*IN_A_NAMESPACE, SETUP.format(options=options, fill=fill), "bash"]


FILLS = """
if CYCLE == 0 and RANK == 0:
    open(os.environ["NOTES"] + "/full", "w").close()
    until("held")
"""
# Fills it on a rank's request, and keeps what the files of cycle 0 take: they are gone afterwards, their memory is not.
# Ends with the launcher, which this shell becomes.
FILLER = """{ {
    until [ -e $NOTES/full ]; do sleep 0.02; done
    for file in /dev/shm/holdfast-*/cycle-0/*.*; do exec {held}<$file; done
    dd if=/dev/zero of=/dev/shm/ballast bs=4k status=none
    touch $NOTES/held
    while kill -0 $$; do sleep 0.05; done
} 2>/dev/null & }"""


def test_no_room_any_more(jobs: Jobs) -> None:
    """There was room when the launcher started."""
    job = jobs(FILLS + HEARTBEAT, "--max-restarts", "1", under=under("size=1M", FILLER))
    job.end(0)
    (warning,) = [line for line in job.said() if "no board" in line]
    assert warning.startswith("[holdfast] no board for 2 of 2 ranks in this cycle: /dev/shm/")
    assert "No space left on device" in warning
    assert len(job.journal("restart")) == 1 and "Traceback" not in "".join(job.said())


@pytest.mark.parametrize(
    ("options", "fill"),
    [("size=16k", FILL.format(pages=3)), ("ro", "true")],
)
def test_no_room(jobs: Jobs, options: str, fill: str) -> None:
    """For the boards beside what the launcher itself needs; on a read-only filesystem."""
    job = jobs(HEARTBEAT, "--max-restarts", "1", under=under(options, fill))
    said = job.end(0)
    assert "no room on tmpfs (/dev/shm: " in said and "no board" not in said
    boards = job.hear(r"board (\S+)", ranks=[0, 1], cycle=1)
    assert not any(board.startswith("/dev/shm") for board in boards.values())
    assert "without supervision" not in said


def test_no_room_anywhere_ends_with_its_code(jobs: Jobs) -> None:
    """The temporary directory is full as well: no rank is started."""
    full = under("size=16k", FILL.format(pages=3))
    job = jobs(HEARTBEAT, env={"TMPDIR": "/dev/shm"}, under=full)
    assert "no place for the boards of the ranks" in job.end(Outcome.NO_BOARDS.code)
    assert not job.spawned.out()
