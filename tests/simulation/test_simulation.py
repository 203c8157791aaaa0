"""The controller of every node, with faults: the invariants of :mod:`.invariants` hold, and find defects.

`make simulate` simulates more seeds, more nodes or longer jobs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.golden import SEEDS, documented_texts, documented_transitions
from tests.simulation.invariants import CheckedWorld
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.scenarios import Fault, plain, scenario
from tests.simulation.search import run, shortened, simulate, story
from tests.simulation.world import Scenario

TRIED = 600
"""Seeds in which a mutation has to be found."""


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.variant) for n in range(1, 6))])
def test_simulated_jobs_with_faults_hold_every_invariant(part: int) -> None:
    """Jobs of 1 to 16 nodes with up to five faults of 28 kinds."""
    size = SEEDS // 6
    outcomes = [simulate(seed) for seed in range(part * size, (part + 1) * size)]
    violated = [found for found in outcomes if found.violation]
    assert not violated, "\n".join(
        f"seed {each.seed}: {each.violation}\n{each.story}" for each in violated[:2]
    )
    undocumented = {
        transition for found in outcomes for transition in found.transitions
    } - documented_transitions()
    assert not undocumented, "run `python -m tests.simulation.golden`"
    new = {text for found in outcomes for text in found.log_texts} - documented_texts()
    assert not new, f"read these lines, then run `python -m tests.simulation.golden`: {new}"


def test_simulation_of_one_seed_twice_is_the_same() -> None:
    traces = [[list(node.trace) for node in run(scenario(7))[0].launchers] for _ in range(2)]
    assert traces[0] == traces[1]
    assert any(traces[0])


@pytest.mark.variant
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_simulator_finds_a_defect(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mutation takes a rule out of the controller; `kinds` are the faults that it takes part in."""
    assert mutation.job is None or not run(mutation.job)[1]
    mutation.patch(monkeypatch)
    seeds = (scenario(seed, kinds=mutation.kinds) for seed in range(TRIED))
    assert any(run(found)[1] for found in ([mutation.job] if mutation.job else seeds))


def test_violation_is_shown_with_the_fewest_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    next(each for each in MUTATIONS if "when one node is done" in each.name).patch(monkeypatch)
    faults: list[Fault] = [(5.0, "kill_rank", (0, 0)), (6.0, "launch", ()), (9.0, "suspend", (1, 0.5))]
    found = replace(plain(3, faults), seed=2)
    assert run(found)[1].startswith("15:")
    found = shortened(found)
    assert found.faults == []
    assert "15: the job ends with 0 while its ranks train" in story(found)


@pytest.mark.parametrize("nodes", [16, 128])
def test_store_operations_do_not_grow_with_the_job(nodes: int) -> None:
    """In a quiet job. `make simulate` runs the same with 512 and 2,048 nodes, see docs/architecture.md."""
    world, violation = run(plain(nodes, []))
    assert not violation
    each = sorted(node.operations / world.now for node in world.launchers if not node.is_host)
    assert each[len(each) // 2] < 12


def test_restart_with_the_same_nodes_needs_five_operations() -> None:
    """From the failure to the start of the ranks: writes, and keys of which a new value was read."""
    world = CheckedWorld(plain(8, [(8.0, "kill_rank", (3, 0))]))
    written: Counter[str] = Counter()
    read: dict[str, set[str]] = {}

    def count(node: str, key: str, *, is_write: bool) -> None:
        if world.now >= 8.0 and 1 not in world.started and key.endswith("/1") and key != "stop/1":
            written[node] += is_write
            read.setdefault(node, set()).update([] if is_write else [key])

    world.on_operation = count  # type: ignore[method-assign]
    world.run()
    counts = [written[node] + len(keys) for node, keys in read.items()]
    assert 2 <= min(counts) <= max(counts) <= 5
    assert "members/1" not in world.store.values


def test_nodes_that_arrive_late_gather_soon_after_the_last() -> None:
    world, violation = run(plain(64, []))
    last = max(node.started for node in world.launchers)
    assert not violation
    assert min(world.began.values()) - last < 3.0


def test_two_of_32_nodes_are_left_and_train_again() -> None:
    """30 launchers vanish within a second; the store's host and one other are left."""
    found = replace(plain(32, [(10.0, "lose_most", (1,))]), least=2)
    world, violation = run(found)
    assert not violation
    alive = [node for node in world.launchers if node.exit_code is not None]
    assert [node.exit_code for node in alive] == [0, 0]
    assert min(at for cycle, at in world.began.items() if cycle) - 11.0 < 4 * found.node_timeout


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_bug_at_one_step_ends_the_job_on_all_nodes(nodes: int) -> None:
    """After three cycles, on whatever node it is met. The count begins again where a rank is killed in between."""
    for faults, cycles in ([], {3}), ([(3.0, "kill_rank", (0, 0))], {4, 5, 6}):
        bug = {"step_time": 0.2, "bug_at": 23, "same_failure_limit": 3, "max_restarts": 20}
        world, violation = run(replace(plain(nodes, faults), **bug))
        assert not violation and {node.exit_code for node in world.launchers} == {42}
        assert len(world.groups) in cycles


def sick(number: int, at: float = 0.0) -> Fault:
    """From then on, every check of this node finds it sick."""
    return at, "sicken", (number, 900.0)


def job(nodes: int, *faults: Fault, **changes: Any) -> Scenario:
    """A job with --ft-health-action exclude, which needs all its nodes unless `changes` has another number."""
    return replace(plain(nodes, [*faults]), **{"exclude_sick": True, **changes})


SPARE, LOST = (8.0, "launch", ()), (12.0, "power_off", (1,))
HOT = {"total": 300.0, "limit": 900.0}
MEMBERS: dict[str, tuple[Scenario, list[str]]] = {
    "all are sick": (job(3, sick(0, -1.0), sick(1, -1.0), sick(2, -1.0), least=1), ["n0 n1 n2"]),
    "one at the start": (job(3, sick(1), least=1), ["n0 n2"]),
    "one that is needed": (job(2, sick(1)), ["n0 n1"]),
    "a spare": (job(2, sick(2, 8.0), (9.0, "launch", ())), ["n0 n1"]),
    "while it trains": (job(3, sick(2, 9.0), least=2), ["n0 n1 n2", "n0 n1"]),
    "the host while it trains": (job(3, sick(0, 9.0), least=2), ["n0 n1 n2", "n1 n2"]),
    "one that is needed while it trains": (job(3, sick(2, 9.0)), ["n0 n1 n2"]),
    "a spare takes its place": (job(2, SPARE, sick(1, 12.0)), ["n0 n1", "n0 n2"]),
    # what their checks find between two cycles is good
    "one while it trains only": (job(3, (9.0, "overheat", (1,)), least=2, **HOT), ["n0 n1 n2", "n0 n2"]),
    "two while they train only": (
        job(3, (9.0, "overheat", (1,)), (9.0, "overheat", (2,)), least=1, **HOT),
        ["n0 n1 n2", "n0"],
    ),
}


def _names(world: CheckedWorld) -> list[str]:
    """The members of each cycle."""
    cycles = sorted(world.started)
    return [" ".join(sorted(world.started[cycle][0].names)) for cycle in cycles]


@pytest.mark.parametrize("name", MEMBERS)
def test_sick_nodes_leave_where_the_others_suffice(name: str) -> None:
    found, members = MEMBERS[name]
    world, violation = run(found)
    assert not violation
    assert _names(world) == members
    assert {node.exit_code for node in world.launchers} == {0}
    assert all(record.restarts == 0 for record in world.records.values())


@pytest.mark.parametrize(
    ("found", "members"),
    [
        (job(3, (0.0, "sicken", (1, 10.0)), (15.0, "power_off", (2,)), least=2, most=2), ["n0 n2", "n0 n1"]),
        (job(2, SPARE, LOST, least=1), ["n0 n1", "n0 n2"]),
    ],
    ids=["a node that was sick", "a spare where one node would do"],
)
def test_lost_place_is_taken_by(found: Scenario, members: list[str]) -> None:
    world, violation = run(replace(found, exclude_sick=False))
    assert not violation
    assert _names(world) == members


def test_spare_is_used_though_each_cycle_is_short() -> None:
    """Node 0 has no time to count the nodes that wait: a node that became suspect asks for a new membership."""
    world, violation = run(
        replace(plain(2, [(4.0, "launch", ())]), bug_at=1, step_time=0.05, max_restarts=60, accuses=1.0)
    )
    assert not violation
    assert any("n2" in names for names in _names(world)[:16])


def test_second_loss_while_the_first_is_replaced_is_replaced_too() -> None:
    losses: list[Fault] = [(10.0, "power_off", (3,)), (21.0, "power_off", (5,))]
    world, violation = run(replace(plain(8, losses), nodes=10))
    assert not violation
    assert [node.exit_code for node in world.launchers if node.exit_code is not None] == [0] * 8
