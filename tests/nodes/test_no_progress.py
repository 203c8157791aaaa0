"""A job without progress, or with one failure again and again, ends on all nodes, whichever node's ranks fail."""

from __future__ import annotations

import pytest

from tests.nodes.conftest import QUICK, TRAINS, Cluster

FAILS_IN_TURN = """
step(1)
if RANK == 0 and CYCLE == 0:
    with open(os.path.join(NOTES, "latest"), "w") as file:
        file.write("100")
step(2)
if RANK == 2 * (CYCLE % 2):
    sys.exit(5)
wait()
"""


@pytest.mark.slow
def test_all_launchers_end_with_one_code_and_count(cluster: Cluster) -> None:
    """Each node sees every second failure; both count all of them."""
    flags: tuple[str, ...] = ("--ft-checkpoint-iteration-file", str(cluster.notes / "latest"))
    flags += "--ft-max-no-progress-cycles", "3", "--ft-no-restart-exit-code", "42"
    a, b = cluster.pair(FAILS_IN_TURN, *flags, restarts=10)
    said = a.end(42), b.end(42)
    assert a.cycles() == b.cycles() == [0, 1, 2, 3]
    assert all("no progress in 3 " in each and "iteration 100" in each for each in said)


@pytest.mark.slow
def test_one_bug_on_two_nodes_ends_the_job(cluster: Cluster) -> None:
    """The exception and its step are what nodes agree on, whichever node's rank raises it."""
    told = "from holdfast import Loop\nwith Loop() as loop: loop.step(2)\n"
    bug = 'raise IndexError(f"index {CYCLE} is out of range")'
    a, b = cluster.pair(told + FAILS_IN_TURN.replace("sys.exit(5)", bug), restarts=10)
    said = a.end(93), b.end(93)
    assert a.cycles() == b.cycles() == [0, 1, 2]
    assert all("the same failure 3 times in a row: IndexError: index # is" in each for each in said)


@pytest.mark.slow
def test_lost_node_without_progress_ends_the_job(cluster: Cluster) -> None:
    """The number is read before the rest proposes what follows, here without any failed rank."""
    file = "--ft-checkpoint-iteration-file", str(cluster.notes / "latest")
    flags = *file, "--ft-max-no-progress-cycles", "1"
    a, b = cluster.pair(TRAINS, *flags, nnodes="1:2", node_timeout=QUICK)
    a.hear("trains", 0), b.hear("trains", 0)
    b.vanish()
    assert "no progress in 1 " in a.end(93)
