"""The disk of log files, or the tmpfs of boards, is full or hung: neither ranks nor launcher wait for it."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.fault_tolerance.launcher.exit_codes import Outcome
from tests.jobs import Job, Jobs
from tests.pipes import full_pipe

FLAG = "--ft-per-cycle-applog-prefix"
FLOOD = """
def flood(count):
    block = b"".join(b"line %06d of the flood ...................................................\\n" % number
                     for number in range(1000))
    for _ in range(count):
        os.write(1, block)
"""
TO_NOWHERE = ["bash", "-c", 'exec "$@" >/dev/null', "bash"]


def lost(text: str) -> list[int]:
    return [int(count) for count in re.findall(r"\[holdfast\] (\d+) lines? lost: the disk ", text)]


def warned(job: Job, flag_file: Path) -> str:
    """The one warning on the terminal, which names the file; and the one event."""
    (line,) = [line for line in job.said() if str(flag_file) in line]
    (event,) = job.journal("output_lost")
    assert event["path"] == str(flag_file)
    return line


def delays(job: Job) -> list[float]:
    """Seconds of each restart, from the stop of the ranks on. What waits for a disk does so in each of them."""
    stops, starts = job.journal("stop"), job.journal("cycle_start")[1:]
    return [start["mono"] - stop["mono"] for stop, start in zip(stops, starts, strict=False)]


def test_hung_file_delays_neither_ranks_nor_restart_nor_end(jobs: Jobs) -> None:
    """A FIFO without a reader takes 64 KiB, and then every write waits forever."""
    for cycle in range(3):
        os.mkfifo(jobs.folder / f"job_cycle{cycle}.log")
    text = """
began = time.monotonic()
flood(300)
sys.stderr.write(f"flooded {time.monotonic() - began:.1f}\\n")
meet()
sys.exit(3 if CYCLE < 2 else 0)
"""
    job = jobs(FLOOD + text, FLAG, "job", "--max-restarts", "2", under=TO_NOWHERE)
    said = job.end(0)
    flooded = [float(each) for each in re.findall(r"flooded (\S+)", said)]
    assert len(flooded) == 6 and min(flooded) < 10
    warned(job, jobs.folder / "job_cycle0.log")
    assert min(delays(job)) < 2


def test_hung_file_takes_nothing_from_the_copies_of_tee(jobs: Jobs) -> None:
    os.mkfifo(jobs.folder / "job_cycle0.log")
    job = jobs(FLOOD + "flood(20)\nprint('last')", FLAG, "job", "--tee", "3", "--log-dir", "logs")
    job.end(0)
    shown = job.spawned.out().splitlines()
    assert shown.count("[default0]:last") == shown.count("[default1]:last") == 1
    assert len(shown) == 40_002
    assert len(job.journal("output_lost")) == 1


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Mounts a FUSE filesystem over a folder, whose server, this process, never reads a request."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted: list[tuple[Path, int]] = []

    def mount(path: Path) -> None:
        try:
            device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            pytest.skip(f"no FUSE here: {error}")
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"holdfast-test", os.fsencode(path), b"fuse", 0, options):
            os.close(device)
            pytest.skip("no FUSE filesystem can be mounted here")
        mounted.append((path, device))

    yield mount
    for path, device in mounted:
        os.close(device)  # ends every call that waits
        libc.umount2(os.fsencode(path), 2)


def test_filesystem_that_hangs_at_a_restart(jobs: Jobs, hung: Callable[[Path], None]) -> None:
    """The file of the next cycle cannot even be opened, and the launcher's own log hangs too."""
    folder = jobs.folder / "disk"
    folder.mkdir()
    (jobs.folder / "other").mkdir()
    text = """
say("here")
meet()
until("hung")
sys.exit(3 if CYCLE < 5 else 0)
"""
    log = ("--ft-launcher-log", folder / "ft.log")
    job = jobs(text, FLAG, folder / "job", *log, "--max-restarts", "5")
    job.hear("here", ranks=[0, 1])
    hung(folder)
    job.tell("hung")
    job.end(0)
    assert len(delays(job)) == 5 and statistics.median(delays(job)) < 2
    assert [line for line in job.said() if "the ranks' output cannot be appended" in line]
    assert len(job.journal("output_lost")) == 1


def test_filesystem_that_hangs_at_the_start_is_a_usage_error(
    jobs: Jobs, hung: Callable[[Path], None]
) -> None:
    folder = jobs.folder / "disk"
    folder.mkdir()
    hung(folder)
    job = jobs.plain(FLAG, folder / "job", jobs.script("say('started')"))
    (line,) = job.end(2).splitlines()
    assert f"{FLAG}: no file can be made in {folder}: its filesystem has not answered for 10 s" in line


@pytest.fixture
def _mounts_are_possible() -> None:
    """Only root can mount, and not in every container."""
    mount = [*IN_A_NAMESPACE, "mount -t tmpfs tmpfs /dev/shm"]
    if not shutil.which("unshare") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")


@pytest.mark.usefixtures("_mounts_are_possible")
def test_full_disk_loses_lines_and_names_the_number(jobs: Jobs) -> None:
    """Full from the start; the rank frees it after more than the queue holds."""
    folder = jobs.folder / "disk"
    folder.mkdir()
    ballast = folder / "ballast"
    setup = (
        f"mount -t tmpfs -o size=64M tmpfs {folder} && "
        f"dd if=/dev/zero of={ballast} bs=4k status=none 2>/dev/null; truncate -s -100000 {ballast}; "
        'exec "$@" >/dev/null'
    )
    text = f"""
began = time.monotonic()
flood(400)
open(os.environ["NOTES"] + "/flooded", "w").write(str(time.monotonic() - began))
os.unlink({str(ballast)!r})
def text():
    with open({str(folder / "job_cycle0.log")!r}) as file:
        return file.read()
while " lost: the disk " not in text():
    time.sleep(0.05)
print("after")
while not text().endswith("rank 0: after\\n"):
    time.sleep(0.05)
open(os.environ["NOTES"] + "/copy", "w").write(text())
"""
    job = jobs(FLOOD + text, FLAG, folder / "job", nproc=1, under=[*IN_A_NAMESPACE, setup, "bash"])
    job.end(0)
    assert float((job.notes / "flooded").read_text()) < 30
    found = (job.notes / "copy").read_text()
    lines = [line for line in found.splitlines() if "lost" not in line]
    whole = r"rank 0: (line \d{6} of the flood \.+|after)"
    assert not [line for line in lines if not re.fullmatch(whole, line)]
    assert lost(found) and len(lines) - 1 + sum(lost(found)) == 400_000
    assert "No space left on device" in warned(job, folder / "job_cycle0.log")


# -- logs and readers that hang ------------------------------------------------------------------------------

# A FIFO without a writer: opening it waits forever, as a file on a filesystem that is gone does.
HUNG_LOG = """
path = os.readlink("/proc/self/fd/2")
os.unlink(path)
os.mkfifo(path)
meet()
os._exit(3) if RANK == 1 else wait()
"""


def test_logs_that_cannot_be_read(jobs: Jobs) -> None:
    """The launcher's own log hangs as well: no line is missing on the terminal."""
    os.mkfifo(jobs.folder / "ft.log")
    flags = ("--redirects", "2", "--log-dir", jobs.folder / "logs", "--ft-launcher-log", "ft.log")
    job = jobs(HUNG_LOG, *flags, "--max-restarts", "2")
    said = job.end(3)
    assert "what the ranks wrote cannot be read: the filesystem of " in said
    assert "FAILED: rank 1" in said and len(job.journal("restart")) == 2
    failed = [each["mono"] for each in job.journal("rank_exit") if each["rank"] == 1]
    pauses = [stop["mono"] - at for stop, at in zip(job.journal("stop"), failed, strict=True)]
    assert min(pauses) < 0.9  # in no cycle was anything read before the ranks were stopped


def test_log_output_that_nobody_reads(jobs: Jobs) -> None:
    """`ft_launcher --tee 1 … | less`: torch's tailer waits for the reader, the launcher does not."""
    reader, writer = os.pipe()
    text = "say('x' * 200_000)\nmeet()\nsys.exit(3) if RANK == 1 else wait()"
    into = ["bash", "-c", f'exec "$@" >/proc/{os.getpid()}/fd/{writer}', "bash"]
    job = jobs(text, "--tee", "1", under=into)
    assert "FAILED: rank 1" in job.end(3)
    for end in (reader, writer):
        os.close(end)


def test_standard_error_that_nobody_reads(jobs: Jobs) -> None:
    """A terminal held by Ctrl-S: a hang is found, the ranks are restarted, the job ends."""
    reader, writer = full_pipe()
    text = """
client = connect()
meet()
if RANK == 1:
    client.send_heartbeat()
    wait()
os._exit(0)
"""
    into = ["bash", "-c", f'exec "$@" 2>/proc/{os.getpid()}/fd/{writer}', "bash"]
    job = jobs(text, "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "0.5", under=into)
    job.end(137)
    assert len(job.journal("verdict")) == 2 and len(job.journal("restart")) == 1
    for end in (reader, writer):
        os.close(end)


# -- A /dev/shm that is full or cannot be written: a warning, and the job runs


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


@pytest.mark.usefixtures("_mounts_are_possible")
def test_no_room_any_more(jobs: Jobs) -> None:
    """There was room when the launcher started."""
    job = jobs(FILLS + HEARTBEAT, "--max-restarts", "1", under=under("size=1M", FILLER))
    job.end(0)
    (warning,) = [line for line in job.said() if "no board" in line]
    assert warning.startswith("[holdfast] no board for 2 of 2 ranks in this cycle: /dev/shm/")
    assert "No space left on device" in warning
    assert len(job.journal("restart")) == 1 and "Traceback" not in "".join(job.said())


@pytest.mark.usefixtures("_mounts_are_possible")
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


@pytest.mark.usefixtures("_mounts_are_possible")
def test_no_room_anywhere_ends_with_its_code(jobs: Jobs) -> None:
    """The temporary directory is full as well: no rank is started."""
    full = under("size=16k", FILL.format(pages=3))
    job = jobs(HEARTBEAT, env={"TMPDIR": "/dev/shm"}, under=full)
    assert "no place for the boards of the ranks" in job.end(Outcome.NO_BOARDS.code)
    assert not job.spawned.out()
