"""Facts in words: ranges of ranks, groups, codes, and which calls of a stack are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.incidents.evidence import Frame
from holdfast.incidents.report.text import same_stack, stack_lines
from holdfast.incidents.report.wording import call, clock, counted, grouped, rank_ranges
from tests.incidents.cases_for_reports import SITE, hang

RANKS = st.lists(st.integers(0, 300), min_size=1, max_size=120)


def test_grouped_63_ranks_with_the_same_calls_are_one_group() -> None:
    case, _ = hang(64)
    (_, alike), (_, alone) = grouped(case.ranks, same_stack)
    assert (len(alike), [rank.rank for rank in alone]) == (63, [5])
    assert counted([rank.rank for rank in alike]) == "63 ranks (0-4, 6-63)"


def test_counted_one_rank_has_no_range() -> None:
    assert (counted([5]), counted([7, 5, 6]), counted([])) == ("rank 5", "3 ranks (5-7)", "")
    assert rank_ranges(range(0, 40, 2), 3) == "0, 2, 4 and 17 more"


@given(RANKS, st.integers(1, 8))
def test_rank_ranges_count_every_rank_once(numbers: list[int], most: int) -> None:
    shown, _, rest = rank_ranges(numbers, most).partition(" and ")
    count = sum(int(part.split("-")[-1]) - int(part.split("-")[0]) + 1 for part in shown.split(", "))
    assert count + int(rest.split()[0] if rest else 0) == len(set(numbers))


def test_call_has_the_end_of_the_path() -> None:
    assert call(Frame("read", "/home/ada/train/dataset.py", 88)) == "train/dataset.py:88 read()"
    assert call(Frame("poll", "/usr/lib/libc.so.6", native=True)) == "poll() in libc.so.6"


@pytest.mark.parametrize("at", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_clock_of_an_impossible_moment_is_empty(at: float) -> None:
    assert clock(at) == ""
    assert clock(1_800_000_000.0) == "08:00:00 UTC"


def test_stack_lines_show_the_innermost_and_the_own_calls() -> None:
    library = [Frame(f"lib{number}", f"{SITE}/x.py", number + 1) for number in range(4)]
    own = [Frame("fetch", "/home/ada/data.py", 3), Frame("main", "/home/ada/train.py", 9)]
    assert stack_lines([own[0], *library, own[1]], 3) == [
        "> ada/data.py:3 fetch()",
        "  … 4 calls",
        "> ada/train.py:9 main()",
    ]


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 20))
def test_stack_lines_account_for_every_call(own: list[bool], most: int) -> None:
    frames = [Frame(f"f{n}", "/home/a.py" if mine else f"{SITE}/x.py", n) for n, mine in enumerate(own)]
    lines = stack_lines(frames, most)
    assert len(lines) <= max(most, 3)
    assert sum(int(line.split()[1]) if line.startswith("  …") else 1 for line in lines) == len(frames)
