"""Who is blamed when a collective breaks: the rank that broke it, in the log, in the journal and by the exit code.

gloo tells the peers of a dying rank at once, often before the launcher sees that it has died; their exceptions are
older than its end.
"""

from __future__ import annotations

import re

import pytest

from holdfast.journal.incidents import incidents
from holdfast.journal.reader import read_run
from tests.launcher.conftest import Jobs

BREAKS = """
import socket, torch, torch.distributed as dist
from holdfast.fault_tolerance import RankMonitorClient

def hang_up():
    # All connections, as the kernel does first when it ends a process.
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as connection:
                connection.getpeername()  # not one that listens: gloo aborts when it cannot accept
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

client = RankMonitorClient()
client.init_workload_monitoring()
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
