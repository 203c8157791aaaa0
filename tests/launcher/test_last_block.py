"""The failed job's last words: one block with who failed first, where, what its exit means, and why.

When a collective breaks, the rank that broke it is blamed: in the log, in the journal and by the exit code. gloo
reports a dying rank to its peers at once, often before the launcher sees that it has died.
"""

from __future__ import annotations

import re
import signal
import socket
import sys

import pytest

from holdfast.journal.incidents import incidents
from holdfast.journal.reader import read_run
from tests.launcher.conftest import Job, Jobs

NODE = socket.gethostname()


def block(job: Job) -> list[str]:
    """The launcher's lines from FAILED on, without the prefix; nothing of the ranks is in between.

    The last line, which names the incident's report, is left out. It is there if and only if the report is in the
    journal: at its end, a launcher waits at most 3 s for its report.
    """
    lines = job.spawned.err().splitlines()
    start = max(number for number, line in enumerate(lines) if line.startswith("[holdfast] FAILED"))
    assert all(line.startswith("[holdfast] ") for line in lines[start:]), lines[start:]
    made = [f"{record['report']}/report.txt" for record in job.journal("incident")]
    assert [line.split()[-1] for line in lines[start:] if line.endswith("report.txt")] == made
    if made:
        assert re.match(r"\[holdfast\] (report|verdict) on cycle 0\b", lines.pop())
    return [line.removeprefix("[holdfast] ") for line in lines[start:]]


PRINTS = """
for number in range(30):
    print(f"line {number} of rank {RANK}", file=sys.stderr)
sys.stderr.flush()
meet()
os._exit(9) if RANK == 1 else wait()
"""
RECORDED = """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("recorded")
meet()
main() if RANK == 1 else wait()
"""
ENDS_WITH_TEXT = "meet()\nsys.exit('no data in /data') if RANK == 1 else wait()"
LAST_LINES = "  last lines of its stderr:"
TWENTY = [LAST_LINES, *(f"  | line {number} of rank 1" for number in range(10, 30))]


@pytest.mark.parametrize(
    ("text", "flags", "code", "first", "rest"),
    [
        (PRINTS, ("--redirects", "1:2", "--tee", "0:3"), 9, "exit code 9", TWENTY),
        (PRINTS, (), 9, "exit code 9", TWENTY),
        (ENDS_WITH_TEXT, (), 1, "exit code 1", [LAST_LINES, "  | no data in /data"]),
        (RECORDED, (), 1, "ValueError: recorded (exit code 1)", None),
    ],
    ids=["stderr in a file", "stderr of the launcher", "exit text", "torch's record"],
)
def test_what_a_rank_left_is_shown(
    jobs: Jobs, text: str, flags: tuple[str, ...], code: int, first: str, rest: list[str] | None
) -> None:
    """`sys.exit("text")` is no exception, and yet a reason. `@record` writes torch's error file and exits by itself."""
    job = jobs(text, *flags)
    said = job.end(code)
    lines = block(job)
    assert lines[0].startswith("FAILED: rank 1 ") and lines[0].endswith(f"cycle 0): {first}")
    if rest is None:
        assert any("in main" in line for line in lines)
    else:
        assert lines[1:-1] == rest
    if text is PRINTS and not flags:
        assert said.count("line 3 of rank 1\n") == 1


RAISES = """
class LossError(Exception):
    pass
def step(batch):
    raise LossError(f"loss is nan in {batch}")
meet()
step("batch 7") if RANK == 1 else wait()
"""


def test_an_exception_is_shown_with_its_traceback(jobs: Jobs) -> None:
    job = jobs(RAISES)
    job.end(1)
    first, *rest = block(job)
    assert first.startswith(f"FAILED: rank 1 (node {NODE}, pid ")
    assert first.endswith("cycle 0): LossError: loss is nan in batch 7 (exit code 1)")
    assert rest[0] == "  Traceback (most recent call last):"
    assert "    raise LossError(" in "\n".join(rest) and "in step" in "\n".join(rest)
    assert rest[-2].endswith("LossError: loss is nan in batch 7")
    assert rest[-1] == "no restart left (0 of 0 used): the job ends with exit code 1"
    (error,) = [each["error"] for each in job.journal("rank_exit") if each["rank"] == 1]
    assert (error["type"], error["message"]) == ("LossError", "loss is nan in batch 7")


FOLLOWS = """
import atexit, socket
path = os.environ["NOTES"] + "/peer"
if RANK == 0:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".new")
    listener.listen()
    os.rename(path + ".new", path)
    peer, _ = listener.accept()
    if not peer.recv(1):
        os._exit(5)  # at once, as soon as the other is gone
else:
    while not os.path.exists(path):
        time.sleep(0.002)
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(path)
    {before}
    raise ValueError("the first")
"""
STOPS_THE_LAUNCHER = "os.kill(os.getppid(), signal.SIGSTOP)"
LEAVES_SLOWLY = "atexit.register(lambda: (peer.close(), time.sleep(2)))"


@pytest.mark.parametrize(
    ("before", "seconds"),
    [(STOPS_THE_LAUNCHER, r"0\.\d+"), (LEAVES_SLOWLY, r"\d+\.\d+")],
    ids=["at once", "the first leaves last"],
)
def test_who_merely_followed_is_named_after_the_first(jobs: Jobs, before: str, seconds: str) -> None:
    """Rank 0 may be gone earlier than rank 1, whose exception made it fail: the exception's moment counts."""
    job = jobs(FOLLOWS.format(before=before))
    if before == STOPS_THE_LAUNCHER:
        job.wait_for_ends_of_ranks(2)
        job.spawned.send_signal(signal.SIGCONT)
    job.end(1)
    lines = block(job)
    assert lines[0].startswith("FAILED: rank 1 ") and "ValueError: the first" in lines[0]
    assert any(re.match(rf"  rank 0 followed {seconds} s later: exit code 5$", line) for line in lines)


NO_DESCRIPTORS = """
import resource
meet()
if RANK == 1:
    most = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + 8, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    kept = []
    while True:
        kept.append(open("/dev/null"))
wait()
"""


def test_an_exception_is_kept_where_no_descriptor_is_left(jobs: Jobs) -> None:
    job = jobs(NO_DESCRIPTORS)
    job.end(1)
    (error,) = [each["error"] for each in job.journal("rank_exit") if each["rank"] == 1]
    assert (error["type"], "Too many open files" in error["message"]) == ("OSError", True)
    assert "Exception ignored" not in job.spawned.err()


SHOWS_AND_GOES_ON = """
if RANK == 1:
    meet("turn")  # unbuffered, Python writes a line in pieces, and those of two ranks may mix
try:
    raise ValueError("only shown")
except ValueError:
    sys.excepthook(*sys.exc_info())
if RANK == 0:
    meet("turn")
meet()
kill_me(signal.SIGSEGV) if RANK == 1 else wait()
"""


def test_an_exception_that_a_rank_only_showed_is_no_failure(jobs: Jobs) -> None:
    job = jobs(SHOWS_AND_GOES_ON)
    assert (
        job.end(139).count("ValueError: only shown") == 3
    )  # by each rank; the last lines of the one that failed
    assert block(job)[0].startswith("FAILED: rank 1 ") and not any("rank 0" in line for line in block(job))


SHELL = """#!/bin/sh
"$PYTHON" -c 'raise KeyError("only a check")'
touch "$NOTES/checked-$RANK"
while [ ! -e "$NOTES/checked-0" ] || [ ! -e "$NOTES/checked-1" ]; do sleep 0.01; done
if [ $RANK = 1 ]; then "$PYTHON" -c 'raise ValueError("real")'; exit; fi
while :; do sleep 0.1; done
"""


def test_a_shell_scripts_pythons(jobs: Jobs) -> None:
    """The script survived the failure of one program; what ended it is another one.

    How long the first one could explain the end is a table with times: test_failures.py.
    """
    script = jobs.folder / "rank.sh"
    script.write_text(SHELL)
    script.chmod(0o755)
    job = jobs.command("--nproc-per-node", "2", "--no-python", script, env={"PYTHON": sys.executable})
    job.end(1)
    lines = block(job)
    assert re.match(r"FAILED: rank 1 .*: ValueError: real \(exit code 1\)", lines[0]), lines
    assert not any("only a check" in line for line in lines)


# -- who broke a collective ----------------------------------------------------------------------------------

BREAKS = """
import socket, torch, torch.distributed as dist

def hang_up():
    # All connections, as the kernel does first when it ends a process.
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as connection:
                connection.getpeername()  # not one that listens: gloo aborts when it cannot accept
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

client = connect()
dist.init_process_group("gloo")
culprit, how = [(1, "leave"), (0, "SIGSEGV"), (1, "hang"), (0, "SIGKILL")][CYCLE]
for number in range(4):
    client.send_heartbeat()
    if number == 3 and RANK == culprit:
        if how == "leave":
            hang_up()
            time.sleep(0.3)  # a large process takes its time to leave
            os._exit(3)
        elif how == "hang":
            client.start_section("loading")
            wait()
        kill_me(getattr(signal, how))
    try:
        dist.all_reduce(torch.ones(8))
    except RuntimeError:
        sys.excepthook(*sys.exc_info())
        os._exit(1)  # gone before the one that it lost
"""
BLAMED = (
    r"rank 1 \(node \S+, pid \d+, cycle 0\): exit code 3",
    r"rank 0 \(node \S+, pid \d+, cycle 1\): killed by SIGSEGV",
    r"rank 1 \(node \S+, pid \d+, cycle 2\): hung: Section 'loading' did not end.* Ended by Holdfast \(SIGKILL\)",
    r"rank 0 \(node \S+, pid \d+, cycle 3\): killed by SIGKILL",
)


@pytest.mark.slow
def test_the_rank_that_broke_the_collective(jobs: Jobs) -> None:
    flags = ("--max-restarts", "3", "--ft-rank-section-timeouts", "loading:2")
    job = jobs(BREAKS, *flags, env={"OMP_NUM_THREADS": "1"})
    job.end(137)
    failed = [line for line in job.said() if "FAILED: " in line]
    assert len(failed) == 4
    for line, blamed in zip(failed, BLAMED, strict=True):
        assert re.search(f"FAILED: {blamed}", line), line
    followed = [line for line in job.said() if " followed " in line]
    assert not any("lack of memory" in line for line in followed), followed
    found = incidents(read_run(str(job.run_dir)))
    assert [(each.kind, each.rank) for each in found] == [
        ("exit", 1),
        ("crash", 0),
        ("hang", 1),
        ("crash", 0),
    ]
