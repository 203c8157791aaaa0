"""Ranks in groups and ranges, and which calls of a stack are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.incidents.evidence import Frame
from holdfast.incidents.report.frames import is_own, own_frame, shortened, waits_in
from holdfast.incidents.report.grouping import counted, grouped, named, rank_ranges, runs, same_stack
from tests.incidents.cases_for_reports import READING, REDUCING, SITE, hang

RANKS = st.lists(st.integers(0, 300), min_size=1, max_size=120)


def test_63_ranks_in_the_same_calls_are_one_entry() -> None:
    case, _ = hang(64)
    (largest, alike), (other, alone) = grouped(case.ranks, same_stack)
    assert (largest, len(alike)) == (REDUCING, 63)
    assert (other, [rank.rank for rank in alone]) == (READING, [5])
    assert counted([rank.rank for rank in alike]) == "63 ranks (0-4, 6-63)"


def test_names_of_ranks() -> None:
    assert (named([5]), named([7, 5, 6]), counted([5])) == ("rank 5", "ranks 5-7", "rank 5")
    assert rank_ranges(range(0, 40, 2), 3) == "0, 2, 4 and 17 more"


@given(RANKS)
def test_runs_are_exactly_the_numbers(numbers: list[int]) -> None:
    found = [number for first, last in runs(numbers) for number in range(first, last + 1)]
    assert found == sorted(set(numbers))


@given(RANKS, st.integers(1, 8))
def test_ranges_lose_nobody(numbers: list[int], most: int) -> None:
    shown, _, rest = rank_ranges(numbers, most).partition(" and ")
    told = sum(int(part.split("-")[-1]) - int(part.split("-")[0]) + 1 for part in shown.split(", "))
    assert told + int(rest.split()[0] if rest else 0) == len(set(numbers))


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/ada/train/dataset.py", True),
        ("train.py", True),
        ("/data/holdfast/train.py", True),
        (f"{SITE}/torch/nn/modules/module.py", False),
        ("/usr/lib/python3.11/threading.py", False),
        ("/opt/conda/lib/python3.13t/socket.py", False),
        ("/src/pytorch/torch/distributed/distributed_c10d.py", False),
        ("/src/holdfast/testing/deeds.py", False),
        ("<frozen runpy>", False),
        ("", False),
    ],
)
def test_whose_code_it_is(file: str, own: bool) -> None:
    assert is_own(Frame("f", file, 1)) is own
    assert not is_own(Frame("f", file, 1, native=True))


def test_a_stack_shows_the_innermost_call_and_the_own_ones() -> None:
    shown = shortened(READING, 6)
    assert [each.frame.function if each.frame else each.left_out for each in shown] == [
        "read",
        "__getitem__",
        4,
        "train",
        "main",
        "<module>",
    ]
    assert [each.own for each in shown] == [True, True, False, True, True, True]


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 20))
def test_a_shortened_stack_accounts_for_every_call(own: list[bool], most: int) -> None:
    frames = [Frame(f"f{n}", "/home/a.py" if mine else f"{SITE}/x.py", n) for n, mine in enumerate(own)]
    shown = shortened(frames, most)
    assert len(shown) <= max(most, 3)
    assert sum(each.left_out if each.frame is None else 1 for each in shown) == len(frames)


def test_the_call_that_is_waited_in() -> None:
    assert waits_in(REDUCING) == REDUCING[1]
    assert own_frame(REDUCING) == REDUCING[2]
    assert own_frame(REDUCING[:2]) is None
