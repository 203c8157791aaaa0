"""The words of a simulated fault: the documented ones, where and when it happens, whatever the streams are."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.processes import Spawned, Spawner

ARMED = """
import sys, threading
from holdfast.callbacks.arguments import parse_params
from holdfast.testing.injector import simulate
sys.stdin.close()
if sys.argv[2] == "closed":
    sys.stdout.close()
params = {"fault_type": sys.argv[1], "base_delay": 0.3, "rank_to_fail": int(sys.argv[3]) if sys.argv[3:] else None}
faults = simulate(parse_params(params))
print("armed", flush=True, file=sys.stderr)
(timer,) = faults._timers or [None]
if timer is not None:
    assert timer.daemon
    threading.Event().wait()
"""


@pytest.fixture
def armed(spawn: Spawner) -> Callable[..., Spawned]:
    """A rank of two that arms a fault, and ends at once if it is not meant."""

    def start(rank: int, *arguments: object) -> Spawned:
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "job"}
        return spawn.python(ARMED, *map(str, arguments), env=place)

    return start


def words(fault: str, rank: int) -> str:
    return f"\n####\nSimulating fault: {fault}; rank to fail: {rank}\n#####\n"


def test_a_rank_chosen_at_random_says_its_number_as_it_fails(armed: Callable[..., Spawned]) -> None:
    ranks = [armed(rank, "rank_killed", "open") for rank in range(2)]
    ended = [rank.wait() for rank in ranks]
    assert sorted(ended) == [-signal.SIGKILL, 0]
    chosen = ended.index(-signal.SIGKILL)
    assert ranks[chosen].out() == words("rank_killed", chosen)
    assert ranks[chosen].err().partition("[")[0] == "armed\n" + words("rank_killed", chosen)
    assert (ranks[1 - chosen].out(), ranks[1 - chosen].err()) == ("", "armed\n")


def test_a_closed_stream_stops_neither_the_start_nor_the_fault(armed: Callable[..., Spawned]) -> None:
    rank = armed(1, "random", "closed", 1)
    rank.wait_for("happens now")
    kind = "rank_killed" if "kill@" in rank.err() else "rank_hung"
    assert rank.out() == "" and rank.err().startswith("armed\n" + words(kind, 1))


def test_what_happens_in_the_main_thread_is_said_as_well(armed: Callable[..., Spawned]) -> None:
    rank = armed(0, "exception", "open", 0)
    assert rank.wait() == 1
    assert rank.out() == words("exception", 0) and "InjectedFault" in rank.err()
