"""`--ft-per-cycle-applog-prefix`: all output of all ranks, one file per cycle, and the terminal as without it."""

from __future__ import annotations

import collections
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from holdfast.fault_tolerance.launcher.ranks.copying import Lines
from holdfast.fault_tolerance.launcher.ranks.output import LONGEST, file_of
from tests.cluster import Cluster
from tests.jobs import Job, Jobs, patient
from tests.processes import CEILING, wait_until

FLAG = "--ft-per-cycle-applog-prefix"
PRINTS = """
sys.stdout.write(f"out of {RANK} cycle {CYCLE}\\n")
sys.stderr.write(f"err of {RANK} cycle {CYCLE}\\n")
sys.stdout.write(f"no end {RANK}")
meet()
if CYCLE == 0 and RANK == 1:
    kill_me(signal.SIGKILL)
"""


def written(jobs: Jobs, cycle: int = 0) -> list[str]:
    """The lines of a cycle's file, all of which have an end."""
    data = (jobs.folder / f"job_cycle{cycle}.log").read_bytes()
    assert data.endswith(b"\n")
    return data.decode(errors="replace").splitlines()


def expected(rank: int, cycle: int) -> list[str]:
    said = (f"out of {rank} cycle {cycle}", f"err of {rank} cycle {cycle}", f"no end {rank}")
    return [f"rank {rank}: {text}" for text in said]


BOTH_STREAMS = "sys.stdout.write(f'out of {RANK}\\n')\nsys.stderr.write(f'err of {RANK}\\n')\n"
OF_BOTH = [f"rank {rank}: {stream} of {rank}" for stream in ("err", "out") for rank in range(2)]


@pytest.mark.parametrize(("start", "first"), [("off", "cold"), ("on", "warm")])
def test_restart_has_two_files(jobs: Jobs, start: str, first: str) -> None:
    flags = (FLAG, "job", "--max-restarts", "1", "--ft-warm-start", start)
    job = jobs(PRINTS, *flags, nproc=4, under=patient())
    said = job.end(0)
    for cycle in range(2):
        lines = written(jobs, cycle)
        assert sorted(lines) == sorted(line for rank in range(4) for line in expected(rank, cycle))
    assert {each["start"] for each in job.journal("rank_start")} == {first}
    # The terminal has what it has without the option.
    shown = job.spawned.out() + said
    for place in (f"{rank} cycle {cycle}" for rank in range(4) for cycle in range(2)):
        assert f"out of {place}\n" in shown and f"err of {place}\n" in shown
    assert not any(line.startswith("rank ") for line in shown.splitlines())


@pytest.mark.parametrize(
    ("flags", "shown_out", "shown_err"),
    [
        (("--tee", "1", "--redirects", "0:2"), {0, 1}, {1}),
        (("--local-ranks-filter", "0", "--tee", "3"), {0}, {0}),
        (("--redirects", "3", "--log-dir", os.devnull), {0, 1}, {0, 1}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_other_streams_are_unchanged(
    jobs: Jobs, flags: tuple[str, ...], shown_out: set[int], shown_err: set[int]
) -> None:
    more = () if os.devnull in flags else ("--log-dir", "logs")
    job = jobs(BOTH_STREAMS, *flags, *more, FLAG, "job")
    said = job.end(0)
    assert {int(rank) for rank in re.findall(r"out of (\d)", job.spawned.out())} == shown_out
    assert {int(rank) for rank in re.findall(r"err of (\d)", said)} == shown_err
    logs = (jobs.folder / "logs").rglob("std*.log")
    kept = {(path.parent.name, path.name): path.read_text() for path in logs}
    for (rank, name), text in kept.items():
        assert text == f"{name[3:-4]} of {rank}\n"
    assert sorted(written(jobs)) == sorted(OF_BOTH)


def test_order_of_both_streams_is_kept_where_they_are_one(jobs: Jobs) -> None:
    """And an earlier file is appended to: its last line was cut off when the machine lost power."""
    (jobs.folder / "job_cycle0.log").write_text("rank 0: of an earlier attempt\nrank 0: cut o")
    text = "for n in range(500):\n    print('out', n)\n    print('err', n, file=sys.stderr)\n"
    under = ["bash", "-c", 'exec "$@" 2>&1', "bash"]
    job = jobs(text, nproc=1, env={"PET_FT_PER_CYCLE_APPLOG_PREFIX": "job"}, under=under)
    job.end(0)
    order = [f"{stream} {number}" for number in range(500) for stream in ("out", "err")]
    assert [line for line in job.spawned.out().splitlines() if not line.startswith("[holdfast]")] == order
    earlier = ["rank 0: of an earlier attempt", "rank 0: cut o"]
    assert written(jobs) == [*earlier, *(f"rank 0: {line}" for line in order)]


def test_bytes_are_kept_and_long_lines_cut(jobs: Jobs) -> None:
    text = """
os.write(1, bytes(range(256)) + b"\\xff\\xfe end\\n")
os.write(1, b"x" * 150_000 + b"\\nshort\\n")
"""
    job = jobs(text, FLAG, "job", nproc=1)
    job.end(0)
    raw = bytes(range(256)) + b"\xff\xfe end\n" + b"x" * 150_000 + b"\nshort\n"
    assert job.spawned.stdout.read_bytes() == raw
    head, tail = bytes(range(256)).split(b"\n")
    pieces = [b"x" * LONGEST, b"x" * LONGEST, b"x" * (150_000 - 2 * LONGEST)]
    lines = [head, tail + b"\xff\xfe end", *pieces, b"short"]
    assert (jobs.folder / "job_cycle0.log").read_bytes() == b"".join(b"rank 0: %s\n" % line for line in lines)


def test_endless_line_takes_no_memory(jobs: Jobs) -> None:
    """100 MB without a line's end."""
    text = """
for _ in range(100):
    os.write(1, b"y" * 1_000_000)
wait()
"""
    job = jobs(text, FLAG, "job", nproc=1)
    path = jobs.folder / "job_cycle0.log"
    wait_until(lambda: path.exists() and path.stat().st_size > 99_000_000, what="the output")
    peak = int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{job.pid}/status").read_text())[1])  # type: ignore[index]
    assert peak < 100_000  # KiB; the queue has 16 MiB at most
    with path.open("rb") as file:
        assert max(map(len, file)) == LONGEST + len("rank 0: \n")
    job.spawned.stop()


def test_quick_output_is_complete(jobs: Jobs) -> None:
    """50,000 lines of each of two ranks, as fast as they can."""
    text = """
sys.stdout = os.fdopen(1, "w", buffering=1)
for number in range(50_000):
    print("line", number)
"""
    job = jobs(text, FLAG, "job")
    job.end(0)
    found: dict[str, list[int]] = collections.defaultdict(list)
    for line in written(jobs):
        match = re.fullmatch(r"rank (\d): line (\d+)", line)
        assert match, line
        found[match[1]].append(int(match[2]))
    assert found == {"0": list(range(50_000)), "1": list(range(50_000))}
    # On the terminal lines are whole, too.
    shown = collections.Counter(job.spawned.out().splitlines())
    assert shown == {f"line {number}": 2 for number in range(50_000)}


def test_killed_launcher_leaves_whole_lines(jobs: Jobs) -> None:
    text = """
meet()
for number in range(10_000_000):
    print("line", number)
"""
    job = jobs(text, FLAG, "job")
    path = jobs.folder / "job_cycle0.log"
    wait_until(lambda: path.exists() and path.stat().st_size > 1_000_000, what="output")
    ranks = [child for child in psutil.Process(job.pid).children() if "RANK" in child.environ()]
    job.spawned.send_signal(signal.SIGKILL)
    assert not psutil.wait_procs(ranks, timeout=CEILING)[1]
    lines = path.read_bytes().splitlines(keepends=True)
    assert all(re.fullmatch(rb"rank \d: line \d+\n", line) for line in lines[:-1])


def test_without_the_option_ranks_have_the_launchers_streams(jobs: Jobs) -> None:
    text = "say(os.readlink('/proc/self/fd/1'), os.readlink('/proc/self/fd/2'))\nwait()"
    job = jobs(text, nproc=1)
    found = job.hear(r"(\S+) \S+$", ranks=[0])
    assert found == {0: str(job.spawned.stdout)}
    assert not {"holdfast-copy", "holdfast-applog"} & threads(job)
    job.spawned.stop()


def threads(job: Job) -> set[str]:
    tasks = Path(f"/proc/{job.pid}/task").iterdir()
    return {(task / "comm").read_text().strip() for task in tasks}


def test_eight_restarts_leave_nothing_behind(jobs: Jobs) -> None:
    """No thread, descriptor or pipe: after 8 restarts there are no more than there were in cycle 2."""
    text = """
def seen():
    launcher = f"/proc/{os.getppid()}"
    return len(os.listdir(launcher + "/task")), len(os.listdir(launcher + "/fd"))
meet()
if RANK == 0 and CYCLE == 2:
    found = seen()
    for _ in range(100):
        time.sleep(0.01)
        found = tuple(map(max, found, seen()))
    open(os.environ["NOTES"] + "/most", "w").write("%d %d" % found)
if RANK == 0 and CYCLE == 8:
    most = tuple(map(int, open(os.environ["NOTES"] + "/most").read().split()))
    while any(map(int.__gt__, found := seen(), most)):  # the report of the cycle before may be in progress
        time.sleep(0.01)
meet("counted")
sys.exit(3 if CYCLE < 8 else 0)
"""
    job = jobs(text, FLAG, "job", "--max-restarts", "8", "--redirects", "1:1")
    job.end(0)


def test_closed_standard_output(jobs: Jobs) -> None:
    under = ["bash", "-c", 'exec "$@" >&-', "bash"]
    job = jobs(BOTH_STREAMS, FLAG, "job", under=under)
    said = job.end(0)
    assert "err of 0\n" in said and "err of 1\n" in said
    assert sorted(written(jobs)) == sorted(OF_BOTH)


def test_reader_of_the_terminal_that_stops_holds_up_no_end(jobs: Jobs) -> None:
    reader, writer = os.pipe()
    text = "os.write(1, b'x' * 1000 + b'\\n')\nfor _ in range(500): os.write(1, b'y' * 999 + b'\\n')"
    into = ["bash", "-c", f'exec "$@" >/proc/{os.getpid()}/fd/{writer}', "bash"]
    job = jobs("meet()\nif RANK == 1: sys.exit(3)\n" + text, FLAG, "job", under=into)
    job.end(3)
    for end in (reader, writer):
        os.close(end)


@pytest.mark.parametrize(
    ("prefix", "file"),
    [
        ("/logs/job", "/logs/job_cycle3.log"),
        ("/logs/job.log", "/logs/job_cycle3.log"),
        ("/logs/job.txt", "/logs/job_cycle3.txt"),
        ("/v1.2/job", "/v1.2/job_cycle3.log"),
        ("/logs/.job", "/logs/.job_cycle3.log"),
    ],
)
def test_file_of_a_cycle(prefix: str, file: str) -> None:
    assert file_of(prefix, 3) == file


@pytest.mark.parametrize("size", [1, 7, 1000, LONGEST - 1, LONGEST])
@pytest.mark.parametrize("line", [0, 1, 999, LONGEST - 1, LONGEST, LONGEST + 1, 2 * LONGEST + 5])
def test_lines_do_not_depend_on_how_they_come(size: int, line: int) -> None:
    text = b"a\n" + b"x" * line + b"\n\nlast"
    size = max(size, line // 100)
    found: list[bytes] = []
    lines = Lines(lambda whole, _: found.extend(whole), LONGEST)
    for start in range(0, len(text), size):
        lines.take(text[start : start + size])
    lines.take(b"")
    pieces = [b"x" * min(LONGEST, line - begun) for begun in range(0, line, LONGEST)] or [b""]
    assert found == [b"a", *pieces, b"", b"last"]


# -- several nodes append to one file: every line is whole, none is missing ----------------------------------


COUNT = 20_000
SHOUTS = f"""
if CYCLE == 0:
    step(1)
    sys.exit(3 if RANK == 3 else 0)
sys.stdout = os.fdopen(1, "w", buffering=1)
step(2)
for number in range({COUNT}):
    print("line", number, "x" * (number % 100))
"""


def test_two_nodes_append_whole_lines_to_one_file(cluster: Cluster) -> None:
    prefix, log = cluster.folder / "job.log", cluster.folder / "ft.log"
    flags = ("--ft-per-cycle-applog-prefix", str(prefix), "--ft-launcher-log", str(log))
    nodes = cluster.pair(SHOUTS, *flags, restarts=1)
    for node in nodes:
        node.end(0)
    found: dict[int, list[int]] = collections.defaultdict(list)
    for line in (cluster.folder / "job_cycle1.log").read_text().splitlines():
        if match := re.fullmatch(r"rank (\d): line (\d+) (x*)", line):
            assert len(match[3]) == int(match[2]) % 100
            found[int(match[1])].append(int(match[2]))
        else:
            assert re.fullmatch(r"rank \d: rank \d cycle 1 starts on . in 4", line), line
    assert found == {rank: list(range(COUNT)) for rank in range(4)}
    first = (cluster.folder / "job_cycle0.log").read_text().splitlines()
    assert sorted(line[:8] for line in first) == [f"rank {rank}: " for rank in range(4)]
    own = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d{4} (\S+) \[holdfast\] .+"
    names = {re.fullmatch(own, line)[1] for line in log.read_text().splitlines()}  # type: ignore[index]
    assert {name.rpartition(":")[2] for name in names} == {str(node.pid) for node in nodes}


def test_launchers_share_a_log_file_while_one_of_them_is_stopped(cluster: Cluster) -> None:
    """It is stopped wherever it happens to be; the other one's ranks train and are logged."""
    prefix = cluster.folder / "job"
    a, b = cluster.pair(
        """
step(1)
until("stopped")
if NODE == "b":
    sys.stdout = os.fdopen(1, "w", buffering=1)  # else a block may end within a line, and the next rank's line follows
    for number in range(1000):
        print("line", number)
    say("printed")
until("finish")
""",
        "--ft-per-cycle-applog-prefix",
        str(prefix),
        node_timeout=60,
    )
    for node in (a, b):
        node.hear("starts", 0)
    a.spawned.send_signal(signal.SIGSTOP)
    cluster.tell("stopped")
    b.hear("printed", 0)
    a.spawned.send_signal(signal.SIGCONT)
    cluster.tell("finish")
    for node in (a, b):
        node.end(0)
    lines = (cluster.folder / "job_cycle0.log").read_text().splitlines()
    assert sum(line.startswith(("rank 2: line", "rank 3: line")) for line in lines) == 2000
