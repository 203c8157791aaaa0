"""What happens in the simulated job of a seed: its size, its settings and its faults."""

from __future__ import annotations

import random
from typing import Any

from holdfast.fault_tolerance.launcher.control import messages as m

from .world import Scenario

Fault = tuple[float, str, tuple[Any, ...]]


def scenario(
    seed: int, nodes: int | None = None, minutes: float = 1.0, kinds: tuple[str, ...] = ()
) -> Scenario:
    """A job of 1 to 16 nodes that trains for about `minutes`, with up to five faults, of `kinds` if given."""
    chance = random.Random(seed)
    count = nodes or chance.choice([1, 2, 2, 3, 3, 4, 4, 6, 8, 16])
    spares = chance.choice([0, 0, 0, 1, 2]) if count > 1 else 0
    is_elastic = count > 1 and chance.random() < 0.4
    total = 60.0 * minutes * chance.uniform(0.4, 1.0)
    faults = [
        fault
        for _ in range(chance.choice([0, 1, 1, 2, 2, 3, 4, 5]))
        for fault in _fault(chance, count, total, chance.choice(kinds or KINDS))
    ]
    loses_replies = chance.random() < 0.2
    if loses_replies:
        faults.append((0.0, "lose_replies", (chance.choice([0.01, 0.05, 0.2]),)))
    return Scenario(
        seed=seed,
        nodes=count + spares,
        least=chance.randint(1, count) if is_elastic else count,
        most=count + (chance.choice([0, 0, 1]) if is_elastic else 0),
        ranks=chance.choice([1, 2, 4]),
        max_restarts=chance.choice([0, 1, 3, 10]),
        total=total,
        faults=sorted(faults, key=lambda fault: fault[0]),
        mode=chance.choice(["gloo", "gloo", "nccl"]),
        pages=chance.random() < 0.3,
        latency=chance.choice([0.0005, 0.002, 0.02, 0.1] + ([] if loses_replies else [0.5, 1.0])),
        early_exits=0.02,
        slow_exits=chance.choice([0.0, 0.0, 0.3]),
        exit_timeout=chance.choice([0.0, 2.0, 10.0]),
        finished_timeout=chance.choice([m.NEVER, 5.0, 70.0]),
        reset=chance.random() < 0.4,
        step_time=chance.choice([0.1, 0.5, 2.0]),
        limit=60.0 * minutes + 1500.0,
        most_stalled=chance.choice([0, 0, 0, 0, 0, 1, 2, 3]),
        unread=chance.choice([0.0, 0.0, 0.6]),
        accuses=chance.choice([0.0, 0.5, 1.0]),
        exclude_suspects=chance.random() < 0.3,
        sick=chance.choice([0.0, 0.0, 0.1, 0.6]),
        exclude_sick=chance.random() < 0.2,
    )


def plain(nodes: int, faults: list[Fault], latency: float = 0.02) -> Scenario:
    """A job with these faults and no others."""
    return Scenario(
        seed=1, nodes=nodes, least=nodes, most=nodes, ranks=1, max_restarts=3, total=20.0, faults=faults,
        latency=latency, node_timeout=10.0,
    )  # fmt: skip


def _fault(chance: random.Random, nodes: int, total: float, kind: str) -> list[Fault]:
    at, index = chance.uniform(0.0, 1.2 * total), chance.randrange(16)
    lasts = chance.choice([0.5, 3.0, 7.0, 20.0, 30.0])
    match kind:
        case "kill_rank":
            return [(at, kind, (index, chance.randrange(4)))]
        case "raise_and_stay":
            return [(at, kind, (index, chance.randrange(4), chance.choice([0.3, 3.0, 12.0, 300.0])))]
        case "two_failures":
            other = (at + chance.uniform(0.0, 0.1), "kill_rank", (chance.randrange(16), chance.randrange(4)))
            return [(at, "kill_rank", (index, chance.randrange(4))), other]
        case "request_in_a_failure":
            action = chance.choice(["exclude_this_node", "shutdown_workload"])
            return [
                (at, "kill_rank", (index, 0)),
                (at + chance.uniform(0.0, 0.4), "request", (index + 1, action)),
            ]
        case "in_a_restart":
            return [(at, "kill_rank", (index, 0)), (at + chance.uniform(0.0, 1.0), *_in_a_restart(chance))]
        case "suspend" | "freeze" | "cut" | "isolate":
            return [(at, kind, (index, lasts))]
        case "slow":
            return [(at, kind, (index, lasts, chance.choice([0.3, 2.0, 10.0, 30.0])))]
        case "partition":
            chosen = chance.sample(range(16), min(8, max(1, nodes // 2)))
            return [(at, "isolate", (each, lasts)) for each in chosen]
        case "replace":
            lost = chance.choice(["power_off", "kill_launcher"])
            return [(at, lost, (index,)), (at + chance.uniform(0.0, 20.0), "launch", ())]
        case "replace_twice":
            second = (
                at + chance.uniform(0.0, 12.0),
                chance.choice(["power_off", "kill_launcher"]),
                (index + 1,),
            )
            return [(at, "power_off", (index,)), second, *((at + 15.0, "launch", ()) for _ in range(2))]
        case "flapping_spare":
            start = [(at + 6.0 * each, "launch", ()) for each in range(4)]
            return start + [
                (at + 6.0 * each + chance.uniform(0.5, 5.0), "kill_launcher", (-1,)) for each in range(4)
            ]
        case "lose_most":
            return [(at, kind, (chance.choice([0, 1]),)), (at + 8.0, "launch", ()), (at + 8.5, "launch", ())]
        case "sigterm_some":
            return [
                (at + chance.uniform(0.0, 2.0), "sigterm", (each,)) for each in range(chance.randint(1, 4))
            ]
        case "sigterm_all":
            return [(at, kind, (chance.choice([0.01, 0.5, 3.0]),))]
        case "exclude":
            return [(at, "request", (index, "exclude_this_node"))]
        case "shutdown":
            return [(at, "request", (index, "shutdown_workload"))]
        case "launch":
            return [(at, kind, ())]
        case "host":
            return [(at, chance.choice(["power_off", "kill_launcher"]), (0,))]
        case _:
            return [(at, kind, (index,))]


def _in_a_restart(chance: random.Random) -> tuple[str, tuple[Any, ...]]:
    """What hits a node while ranks are stopped and started."""
    index, lasts = chance.randrange(16), chance.choice([3.0, 7.0, 20.0])
    return chance.choice([("sigterm", (index,)), ("freeze", (index, lasts)), ("suspend", (index, lasts))])


KINDS = (
    "kill_rank", "kill_rank", "two_failures", "hang_rank", "power_off", "kill_launcher", "suspend", "freeze", "cut",
    "isolate", "partition", "slow", "slow", "replace", "replace_twice", "flapping_spare", "lose_most", "sigterm",
    "sigterm_some", "sigterm_all", "exclude", "shutdown", "launch", "host", "block_rank", "break_start",
    "break_rank_store", "other_version", "suspend", "kill_rank", "in_a_restart", "in_a_restart", "request_in_a_failure",
    "raise_and_stay", "raise_and_stay",
)  # fmt: skip
