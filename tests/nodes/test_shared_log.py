"""Several nodes append to one file: every line is whole, none is missing, and the cycle is the job's."""

from __future__ import annotations

import collections
import re
import signal

from tests.nodes.conftest import Cluster

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
