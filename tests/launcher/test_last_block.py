"""The failed job's last words: one block with who failed first, where, what its exit means, and why."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Callable
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
from tests.jobs import Job, Jobs

NODE = socket.gethostname()


def block(job: Job) -> list[str]:
    """The launcher's lines from FAILED on, without the prefix; nothing of the ranks is in between.

    Lines that name an incident's report are left out. They are there if and only if the report is in the journal: at
    its end, a launcher waits at most 3 s for its report.
    """
    lines = job.spawned.err().splitlines()
    named = [line for line in lines if line.endswith("report.txt")]
    assert all(re.match(r"\[holdfast\] (report|verdict) on cycle \d", line) for line in named)
    made = [f"{record['report']}/report.txt" for record in job.journal("incident")]
    assert [line.split()[-1] for line in named] == made
    start = max(number for number, line in enumerate(lines) if line.startswith("[holdfast] FAILED"))
    assert all(line.startswith("[holdfast] ") for line in lines[start:]), lines[start:]
    return [line.removeprefix("[holdfast] ") for line in lines[start:] if line not in named]


PRINTS = """
for number in range(30):
    print(f"line {number} of rank {RANK}", file=sys.stderr)
sys.stderr.flush()
meet()
wait() if RANK == 0 else sys.exit("no data in /data")
"""


@pytest.mark.parametrize(
    "flags", [("--redirects", "1:2", "--tee", "0:3"), ()], ids=["stderr in a file", "stderr of the launcher"]
)
def test_what_a_rank_left_is_shown(jobs: Jobs, flags: tuple[str, ...]) -> None:
    """`sys.exit("text")` is no exception, and yet a reason."""
    job = jobs(PRINTS, *flags)
    said = job.end(1)
    lines = block(job)
    assert lines[0].startswith("FAILED: rank 1 ") and lines[0].endswith("cycle 0): exit code 1")
    printed = [f"  | line {number} of rank 1" for number in range(11, 30)]
    assert lines[1:-1] == ["  last lines of its stderr:", *printed, "  | no data in /data"]
    assert said.count("line 3 of rank 1\n") == (0 if flags else 1)


FAILS = """
import atexit, resource, socket
class LossError(Exception):
    pass
def step(batch):
    raise LossError(f"loss is nan in {batch}")
def follow(before):
    path = os.environ["NOTES"] + f"/peer-{CYCLE}"
    if RANK == 0:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path + ".new")
        listener.listen()
        os.rename(path + ".new", path)
        peer, _ = listener.accept()
        if not peer.recv(1):
            os._exit(5)  # at once, as soon as the other is gone
    while not os.path.exists(path):
        time.sleep(0.002)
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(path)
    before(peer)
    raise ValueError("the first")

meet()
if CYCLE == 0 and RANK == 1:
    from torch.distributed.elastic.multiprocessing.errors import record
    @record  # writes torch's error file and exits by itself
    def main():
        raise ValueError("recorded")
    main()
if CYCLE == 1 and RANK == 1:
    most = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + 8, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    kept = []
    while True:
        kept.append(open("/dev/null"))
if CYCLE == 2:
    try:
        raise ValueError("only shown")
    except ValueError:
        sys.excepthook(*sys.exc_info())
    meet("shown")
    if RANK == 1:
        kill_me(signal.SIGSEGV)
if CYCLE == 3:
    follow(lambda peer: (say("stops the launcher"), os.kill(os.getppid(), signal.SIGSTOP)))
if CYCLE == 4:
    follow(lambda peer: atexit.register(lambda: (peer.close(), time.sleep(2))))  # the first leaves last
if CYCLE == 5 and RANK == 1:
    step("batch 7")
wait()
"""
SHOWN = (
    r"cycle 0\): ValueError: recorded \(exit code 1\)$",
    r"cycle 1\): OSError: .*Too many open files",
    r"cycle 2\): killed by SIGSEGV",
    r"cycle 3\): ValueError: the first",
    r"cycle 4\): ValueError: the first",
    r"cycle 5\): LossError: loss is nan in batch 7 \(exit code 1\)$",
)
"""What rank 1 is blamed for in each cycle."""


def test_each_failure_has_a_line_and_the_last_one_its_traceback(jobs: Jobs) -> None:
    """Rank 0 may be gone earlier than rank 1, whose exception made it fail: the exception's moment counts."""
    job = jobs(FAILS, "--max-restarts", "5")
    job.hear("stops the launcher", ranks=[1], cycle=3)
    job.wait_for_ends_of_ranks(2)
    job.spawned.send_signal(signal.SIGCONT)
    said = job.end(1)
    failed = [line for line in job.said() if "FAILED: " in line]
    assert len(failed) == len(SHOWN)
    for line, shown in zip(failed, SHOWN, strict=True):
        assert re.search(rf"FAILED: rank 1 \(node {NODE}, pid \d+, {shown}", line), line
    followed = re.findall(r"rank (\d) followed \d+\.\d+ s later: (.*)$", said, re.MULTILINE)
    assert followed == [("0", "exit code 5")] * 2
    assert "Exception ignored" not in said
    _, *rest = block(job)
    assert rest[0] == "  Traceback (most recent call last):"
    assert "    raise LossError(" in "\n".join(rest) and "in step" in "\n".join(rest)
    assert rest[-2].endswith("LossError: loss is nan in batch 7")
    assert rest[-1] == "no restart left (5 of 5 used): the job ends with exit code 1"
    errors = {each["cycle"]: each.get("error", {}) for each in job.journal("rank_exit") if each["rank"] == 1}
    assert (errors[1]["type"], errors[2], errors[5]["type"]) == ("OSError", {}, "LossError")
    assert errors[5]["message"] == "loss is nan in batch 7"


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
    kinds = [(each.kind, each.rank) for each in found]
    assert kinds == [("exit", 1), ("crash", 0), ("hang", 1), ("crash", 0)]


# -- what is known of a rank's end


HANG = {"at": 5.0, "text": "Section 'step' did not end. Waited 3.00 seconds."}
GLOO = (
    "[.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:7841. This is typically ..."
)
GLOO_TIMEOUT = (
    "[…/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 20000ms for send operation to complete"
)


def end_of(rank: int, at: float, **error: Any) -> Failure:
    return Failure(RankExit(rank, rank, 100 + rank, -9, at), error or None)


def test_hung_rank_has_the_verdict_as_its_meaning() -> None:
    lost = end_of(1, 5.0, type="RuntimeError", message=GLOO)
    hung = replace(lost, hung=HANG)
    meaning = "hung: Section 'step' did not end. Waited 3.00 seconds. Ended by Holdfast (SIGKILL)"
    assert (hung.meaning, hung.cause, lost.cause) == (meaning, Cause.OWN, Cause.LOST_PEER)
    assert end_of(1, 5.0, type="RuntimeError", message=GLOO_TIMEOUT).cause is Cause.TIMED_OUT


@pytest.mark.parametrize(
    ("type_", "message", "expected"),
    [
        ("IndexError", "12 is out of 0x7f range", "IndexError: # is out of # range after step 23"),
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
    assert replace(found, hung=HANG).signature(23) == ""
    assert replace(found, error={**error, "pid": 8}).signature(23) == "", "another process's"


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    end = RankExit(0, 0, 7, 1, 10.0)
    files = str(tmp_path / "error"), [str(tmp_path / "none")]
    for text in ("", "{", "[]", "7", json.dumps({"pid": 7, "at": 9.5})):
        (tmp_path / "error").write_text(text)
        known = Failure(end, failures.kept(str(tmp_path / "error"), end))
        (found,) = failures.in_full([known], lambda local: files, "logs")
        assert found.error is None and found.meaning == "exit code 1" and found.last_lines == ()


@pytest.mark.parametrize("length", [5, 50])
def test_private_key_in_the_last_stderr_lines_is_hidden(tmp_path: Path, length: int) -> None:
    """Also one that begins before the lines that are kept."""
    key = [f"MIIEpAIBAAKCAQEA{number:02}" for number in range(length)]
    text = ["loads", "-----BEGIN PRIVATE KEY-----", *key, "-----END PRIVATE KEY-----", "KeyError: 'lr'", ""]
    (tmp_path / "stderr").write_text("\n".join(text))
    known = Failure(RankExit(0, 0, 7, 1, 10.0), None)
    (found,) = failures.in_full([known], lambda local: ("", [str(tmp_path / "stderr")]), "logs")
    assert found.last_lines == ("loads", "***", "KeyError: 'lr'")


@pytest.fixture
def at_hand(tmp_path: Path) -> Callable[..., Failure]:
    """A rank's end at this moment, after process 7 noted an exception at 4.0."""

    def end(pid: int, status: int, at: float, *, unhandled: bool = True) -> Failure:
        noted = {"pid": 7, "at": 4.0, "type": "E", "message": "m", "traceback": "", "unhandled": unhandled}
        (tmp_path / "error").write_text(json.dumps(noted))
        found = RankExit(0, 0, pid, status, at)
        return Failure(found, failures.kept(str(tmp_path / "error"), found))

    return end


def test_an_exception_explains_its_own_process_or_the_script_that_ends_soon(
    at_hand: Callable[..., Failure],
) -> None:
    assert at_hand(7, 1, 100.0).leaving
    soon = at_hand(8, 1, 5.0)
    assert soon.error and not soon.leaving
    for status in (1, -9):
        assert at_hand(8, status, 8.9).error
        assert at_hand(8, status, 9.1).error is None


def test_an_exception_that_the_program_only_showed_explains_an_end_that_comes_soon(
    at_hand: Callable[..., Failure],
) -> None:
    """By `sys.excepthook(*sys.exc_info())`, as some do to log it; then it continued."""
    soon = at_hand(7, 1, 5.0, unhandled=False)
    assert soon.error and not soon.leaving
    assert at_hand(7, -11, 5.0, unhandled=False).error is None
    assert at_hand(7, -9, 100.0, unhandled=False).error is None


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
    found = {each.exit.local_rank: each.exit for each in ends}
    group = SimpleNamespace(local_ranks=[0, 1], rank_of=int, pid_of=lambda rank: found[rank].pid, exits=found)
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
