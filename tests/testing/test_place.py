"""Which rank, in which cycle, after how long: the same answer on every rank, with nothing sent between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing import Fault, FaultSpecError
from holdfast.testing.injector import JobPlace, delay, resolve


def places(world_size: int, cycle: int = 0, job: str = "job") -> list[JobPlace]:
    return [JobPlace(rank, world_size, cycle, job) for rank in range(world_size)]


@given(
    st.integers(1, 64), st.integers(0, 20), st.text(max_size=5), st.none() | st.integers(), st.integers(0, 3)
)
def test_exactly_one_rank_is_chosen_and_all_agree_on_it(
    world_size: int, cycle: int, job: str, seed: int | None, index: int
) -> None:
    fault = Fault("kill", step=1, seed=seed, cycle="each")
    everywhere = places(world_size, cycle, job)
    resolved = [resolve(fault, index, place) for place in everywhere]
    assert len(set(resolved)) == 1
    assert resolved[0].rank in range(world_size)


def test_a_seed_makes_the_choice_the_same_in_every_job() -> None:
    fault = Fault("random", step=1, seed=3)
    assert resolve(fault, 0, JobPlace(0, 8, 0, "one")) == resolve(fault, 0, JobPlace(0, 8, 0, "other"))


def test_without_a_seed_jobs_differ_and_with_one_the_cycles_do() -> None:
    fault = Fault("kill", step=1)
    assert len({resolve(fault, 0, JobPlace(0, 8, 0, f"job {n}")).rank for n in range(50)}) > 3
    seeded = replace(fault, seed=0)
    assert len({resolve(seeded, 0, JobPlace(0, 8, cycle, "")).rank for cycle in range(50)}) > 3


def test_every_rank_and_both_kinds_come_up_about_equally_often() -> None:
    drawn = [resolve(Fault("random", step=1, seed=n), 0, JobPlace(0, 4)) for n in range(1000)]
    assert min(Counter(fault.rank for fault in drawn).values()) > 180
    kinds = Counter(fault.kind for fault in drawn)
    assert set(kinds) == {"kill", "stop"} and min(kinds.values()) > 400


@given(st.floats(0, 100), st.floats(0, 100), st.integers())
def test_a_delay_is_base_plus_up_to_rand(after: float, rand: float, seed: int) -> None:
    assert after <= delay(Fault("kill", after=after, rand=rand, seed=seed), 0, JobPlace()) <= after + rand


def test_the_place_comes_from_what_torchrun_sets() -> None:
    environ = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_RUN_ID": "abc",
    }
    place = JobPlace.from_environ(environ)
    assert (place.rank, place.world_size, place.cycle) == (3, 4, 2)
    assert place.job != JobPlace.from_environ(environ | {"TORCHELASTIC_RUN_ID": "abd"}).job


def test_without_a_launcher_the_job_has_one_rank() -> None:
    assert JobPlace.from_environ({}) == JobPlace(0, 1, 0, "||")


@pytest.mark.parametrize(("name", "text"), [("RANK", "one"), ("WORLD_SIZE", "0"), ("WORLD_SIZE", "-2")])
def test_a_broken_environment_is_named(name: str, text: str) -> None:
    with pytest.raises(FaultSpecError, match=f"{name}='{text}'"):
        JobPlace.from_environ({name: text})
