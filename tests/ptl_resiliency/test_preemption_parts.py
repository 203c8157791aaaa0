"""Where in a validation a rank is, how often ranks ask each other, and how much time is left."""

from __future__ import annotations

import sys

import pytest

from holdfast.callbacks.preemption import MOST_BATCHES, batches_between, shortage
from holdfast.fault_tolerance.stop.rules import END, LOADER_END, loader_of
from holdfast.ptl_resiliency.callbacks import ValidationPlaces

SLURM = {"SLURM_JOB_END_TIME": "1050"}


@pytest.mark.parametrize(
    ("last_save", "deadline", "environ", "said"),
    [
        (None, 110.0, SLURM, ""),
        (60.0, None, {}, ""),
        (60.0, None, {"SLURM_JOB_END_TIME": "soon"}, ""),
        (60.0, None, SLURM, "50.0 s are left (Slurm's SLURM_JOB_END_TIME)"),
        (60.0, 130.0, SLURM, "30.0 s are left (ft_launcher's --term-timeout)"),
        (60.0, 190.0, SLURM, "50.0 s are left (Slurm's SLURM_JOB_END_TIME)"),
        (50.0, 190.0, SLURM, ""),
        (1.0, 97.0, {}, "0.0 s are left"),
    ],
)
def test_the_nearest_end_counts(
    last_save: float | None, deadline: float | None, environ: dict[str, str], said: str
) -> None:
    line = shortage(last_save, deadline, environ, monotonic=100.0, wall=1000.0)
    assert said in line and bool(said) == bool(line)


def test_too_little_time_in_words() -> None:
    assert shortage(40.0, None, {"SLURM_JOB_END_TIME": "1012.34"}, monotonic=0.0, wall=1000.0) == (
        "Preemption: 12.3 s are left (Slurm's SLURM_JOB_END_TIME), and the last checkpoint took 40.0 s to save: this "
        "one may not be complete in time; it is tried all the same, and until it is complete the one before it stays"
    )


def test_places_of_a_validation_rise_and_meet_at_the_end_of_each_loader() -> None:
    few, many = ValidationPlaces(), ValidationPlaces()
    ends = []
    for places, batches in ((few, (2, 0)), (many, (3, 70_000))):
        seen = [places.start()]
        for count in batches:
            seen += [places.after_batch() for _ in range(count)]
            seen.append(places.after_loader())
            ends.append(seen[-1])
        assert seen == sorted(seen) and len(set(seen[:4])) == 4
        assert places.start() == 1
    assert ends[:2] == ends[2:]


def test_a_place_is_said_with_its_loader() -> None:
    places = ValidationPlaces()
    seen = [places.start(), places.after_batch(), places.after_loader(), places.after_batch()]
    assert [loader_of(place) for place in seen] == [(0, 1), (0, 2), (0, LOADER_END), (1, 2)]


def test_places_of_very_many_loaders_stay_before_the_end() -> None:
    places = ValidationPlaces()
    assert all(places.after_loader() < END for _ in range(1000))


def test_how_often_ranks_ask_each_other() -> None:
    assert [batches_between(step, 0.1) for step in (10.0, 0.1, 0.002, 0.0)] == [1, 1, 50, MOST_BATCHES]
    assert batches_between(0.002, 10.0) == 5000
    assert batches_between(sys.float_info.min, 0.1) == MOST_BATCHES
