"""The failed job's last words: one block with who failed first, where, what its exit means, and why."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.fault_tolerance.launcher.control.messages import Cause
from holdfast.fault_tolerance.launcher.exit_codes import RankExit
from holdfast.fault_tolerance.launcher.incident_report import OTHERS, culprit_of, poll_pauses
from holdfast.fault_tolerance.launcher.ranks import failures
from holdfast.fault_tolerance.launcher.ranks.failures import Failure
from holdfast.fault_tolerance.launcher.ranks.processes import RankGroup
from holdfast.incidents.evidence import CRASH, NodeEvidence
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
    "before", [STOPS_THE_LAUNCHER, LEAVES_SLOWLY], ids=["at once", "the first leaves last"]
)
def test_who_merely_followed_is_named_after_the_first(jobs: Jobs, before: str) -> None:
    """Rank 0 may be gone earlier than rank 1, whose exception made it fail: the exception's moment counts."""
    job = jobs(FOLLOWS.format(before=before))
    if before == STOPS_THE_LAUNCHER:
        job.wait_for_ends_of_ranks(2)
        job.spawned.send_signal(signal.SIGCONT)
    job.end(1)
    lines = block(job)
    assert lines[0].startswith("FAILED: rank 1 ") and "ValueError: the first" in lines[0]
    assert any(re.match(r"  rank 0 followed \d+\.\d+ s later: exit code 5$", line) for line in lines)


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

    How long the first one could explain the end is a table with times: below.
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


# -- what is known of a rank's end


def end_of(rank: int, at: float, status: int = 1, message: str = "", raised: float | None = None) -> Failure:
    error: dict[str, Any] | None = None
    if message:
        error = {"type": "RuntimeError", "message": message, "at": at if raised is None else raised}
    return Failure(RankExit(rank, rank, 100 + rank, status, at), error)


GLOO = (
    "[.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:7841. This is typically ..."
)

GLOO_TIMEOUT = (
    "[…/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 20000ms for send operation to complete"
)


def hung(rank: int, at: float, status: int = -9, message: str = "", ended: float | None = None) -> Failure:
    found = end_of(rank, at if ended is None else ended, status, message)
    return replace(found, hung={"at": at, "text": "Section 'step' did not end. Waited 3.00 seconds."})


def test_hung_rank_has_the_verdict_as_its_meaning() -> None:
    assert hung(1, 5.0, message=GLOO).meaning == (
        "hung: Section 'step' did not end. Waited 3.00 seconds. Ended by Holdfast (SIGKILL)"
    )
    assert hung(1, 5.0, message=GLOO).cause is Cause.OWN
    assert end_of(1, 5.0, message=GLOO).cause is Cause.LOST_PEER
    assert end_of(1, 5.0, message=GLOO_TIMEOUT).cause is Cause.TIMED_OUT


@pytest.mark.parametrize(
    ("type_", "message", "expected"),
    [
        (
            "IndexError",
            "index 12 is out of 0x7f range",
            "IndexError: index # is out of # range after step 23",
        ),
        ("my.package.Bad", "two\nlines", "my.package.Bad: two lines after step 23"),
        ("RuntimeError", "", "RuntimeError after step 23"),
        ("ValueError", "x" * 100_000, f"ValueError: {'x' * 188} after step 23"),
        ("OSError", "[Errno 5] Input/output error", ""),
        ("ConnectionResetError", "by peer", ""),
        ("requests.exceptions.ReadTimeout", "no answer", ""),
        ("torch.AcceleratorError", "an illegal memory access", ""),
        ("RuntimeError", "CUDA error: uncorrectable ECC error encountered", ""),
        ("torch.OutOfMemoryError", "tried to allocate 2 GiB", ""),
        ("torch.distributed.DistBackendError", "Connection closed by peer", ""),
        ("KeyboardInterrupt", "", ""),
    ],
)
def test_what_two_failures_of_one_bug_have_in_common(type_: str, message: str, expected: str) -> None:
    """Nothing where a disk, a network, a GPU or too little memory may be the cause."""
    error = {"type": type_, "message": message, "pid": 7, "unhandled": True}
    found = Failure(RankExit(0, 0, 7, 1, 1.0), error)
    assert found.signature(23) == expected
    assert found.signature(None) == ""
    assert replace(found, hung={"at": 1.0, "text": "hung"}).signature(23) == ""
    assert replace(found, error={**error, "pid": 8}).signature(23) == "", "another process's"


def at_hand(found: RankExit, path: str) -> Failure:
    return Failure(found, failures.kept(path, found))


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    end = RankExit(0, 0, 7, 1, 10.0)
    files = str(tmp_path / "error"), [str(tmp_path / "none")]
    for text in ("", "{", "[]", "7", json.dumps({"pid": 7, "at": 9.5})):
        (tmp_path / "error").write_text(text)
        known = at_hand(end, str(tmp_path / "error"))
        (found,) = failures.in_full([known], lambda local: files, "logs")
        assert found.error is None and found.meaning == "exit code 1" and found.last_lines == ()


def test_an_exception_explains_its_own_process_or_the_script_that_ends_soon(tmp_path: Path) -> None:
    path = str(tmp_path / "error")
    error = {"pid": 7, "at": 4.0, "type": "E", "message": "m", "traceback": "", "unhandled": True}
    Path(path).write_text(json.dumps(error))
    assert at_hand(RankExit(0, 0, 7, 1, 100.0), path).leaving
    soon = at_hand(RankExit(0, 0, 8, 1, 5.0), path)
    assert soon.error and not soon.leaving
    for status in (1, -9):
        assert at_hand(RankExit(0, 0, 8, status, 8.9), path).error
        assert at_hand(RankExit(0, 0, 8, status, 9.1), path).error is None


def test_an_exception_that_the_program_only_showed_explains_an_end_that_comes_soon(tmp_path: Path) -> None:
    """By `sys.excepthook(*sys.exc_info())`, as some do to log it; then it continued."""
    path = str(tmp_path / "error")
    Path(path).write_text(json.dumps({"pid": 7, "at": 4.0, "type": "E", "message": "m", "unhandled": False}))
    soon = at_hand(RankExit(0, 0, 7, 1, 5.0), path)
    assert soon.error and not soon.leaving
    assert at_hand(RankExit(0, 0, 7, -11, 5.0), path).error is None
    assert at_hand(RankExit(0, 0, 7, -9, 100.0), path).error is None


LOADER = 'File ".../torch/utils/data/dataloader.py", line 1291, in _try_get_data'


@pytest.mark.parametrize(
    ("kind", "message", "traceback", "lost"),
    [
        ("RuntimeError", "DataLoader worker (pid(s) 7, 9) exited unexpectedly", "", True),
        ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Terminated. ", "", True),
        ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed. ", "", False),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", LOADER, True),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", "", False),
        ("ValueError", "bad batch", LOADER, False),
    ],
)
def test_a_rank_that_lost_its_data_loader(kind: str, message: str, traceback: str, lost: bool) -> None:
    error = {"type": kind, "message": message, "traceback": traceback}
    found = Failure(RankExit(0, 0, 7, 1, 1.0), error)
    assert (found.cause is Cause.LOST_WORKER) is lost


@pytest.mark.parametrize(("accused", "culprit"), [(None, 0), (1, 1)])
def test_culprit_of_two_ends_is_that_of_the_evidence(accused: int | None, culprit: int) -> None:
    """Two ranks ended within a moment: the one that the launcher saw first is in the captured evidence."""
    ends = [end_of(0, 9.95), end_of(1, 9.99)]
    pids = {each.exit.local_rank: each.exit.pid for each in ends}
    found = {each.exit.local_rank: each.exit for each in ends}
    group = SimpleNamespace(local_ranks=[0, 1], rank_of=int, pid_of=pids.__getitem__, exits=found)
    evidence = NodeEvidence("a", CRASH, mono=10.0, accused=accused)
    assert culprit_of(evidence, cast(RankGroup, group), ends) == culprit


# -- reading the store while another node reports ------------------------------------------------------------


def test_two_thousand_nodes_read_rarely_and_apart() -> None:
    moments: list[float] = []
    for number in range(2000):
        pauses = list(poll_pauses(number))
        assert abs(sum(pauses) - OTHERS) < 1e-6 and len(pauses) <= 16
        moments += [sum(pauses[:count]) for count in range(1, len(pauses))]
    busiest = max(sum(1 for at in moments if second <= at < second + 1) for second in range(1, 10))
    assert busiest <= 2500, "reads of all nodes within one second"
