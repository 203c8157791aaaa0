"""The texts that programs search logs for, and one line for each verdict that begins or ends."""

from __future__ import annotations

import math

import pytest

from holdfast.straggler import StragglerId, log_texts
from holdfast.straggler.log_texts import INDIVIDUAL_TITLE, RELATIVE_TITLE, VerdictNews
from tests.straggler.readings.history import verdict

NODES = {rank: f"n{rank // 2}" for rank in range(6)}
SCORES = {0: 0.981, 1: 0.945, 2: 1.0, 3: 0.7, 4: 0.99, 5: 0.95}

ALL_RANKS = """
GPU relative performance:
  Rank=3 Node=n1 Score=0.70
  Rank=1 Node=n0 Score=0.94
  Rank=5 Node=n2 Score=0.95
  Rank=0 Node=n0 Score=0.98
  Rank=4 Node=n2 Score=0.99
  Rank=2 Node=n1 Score=1.00"""

TWO_OF_EACH = """
GPU individual performance:
 Worst performing 2/6 ranks:
  Rank=3 Node=n1 Score=0.70
  Rank=1 Node=n0 Score=0.94
 Best performing 2/6 ranks:
  Rank=2 Node=n1 Score=1.00
  Rank=4 Node=n2 Score=0.99"""


def test_the_worst_and_the_best() -> None:
    assert log_texts.performance(INDIVIDUAL_TITLE, SCORES, NODES, 2) == TWO_OF_EACH


@pytest.mark.parametrize("count", [3, 5])
def test_few_ranks_are_listed_all_the_worst_first(count: int) -> None:
    assert log_texts.performance(RELATIVE_TITLE, SCORES, NODES, count) == ALL_RANKS


def test_ranks_without_a_score_are_not_listed() -> None:
    unknown = dict.fromkeys(range(6), math.nan)
    assert log_texts.performance(RELATIVE_TITLE, unknown, NODES, 2) == (
        "\nGPU relative performance:\n  no score on any of 6 ranks"
    )
    text = log_texts.performance(RELATIVE_TITLE, {**SCORES, 3: math.nan}, NODES, 1)
    assert "Rank=3" not in text and " Worst performing 1/6 ranks:\n  Rank=1 " in text


def test_the_warnings() -> None:
    found = {StragglerId(12, "n1"), StragglerId(3, "n0")}
    affected = "Affected ranks: {StragglerId(rank=3, node='n0'), StragglerId(rank=12, node='n1')}"
    assert log_texts.relative_warning(found) == (
        f"STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. {affected}"
    )
    assert log_texts.individual_warning(found) == (
        f"STRAGGLER DETECTION WARNING: Some GPUs performance dropped. {affected}"
    )


def test_the_last_lines() -> None:
    assert log_texts.processing_time(0.0421) == "Straggler report processing time: 0.042 sec."
    assert log_texts.TERMINATING == "Detected stragglers. Terminating training..."


def test_a_verdict_is_told_when_it_begins_and_when_it_is_over_and_not_between() -> None:
    news, slow = VerdictNews(), verdict(3, "n0", 1.31, gpu=False)
    assert news.of([]) == []
    (line,) = news.of([slow])
    assert line == f"STRAGGLER: {slow}"
    assert line.startswith(
        "STRAGGLER: rank 3 (node n0): section, 1.31 × slower since report 3: section data_loading "
    )
    assert news.of([verdict(3, "n0", 1.4, gpu=False)]) == []
    both = [verdict(3, "n0", 1.4, gpu=False), verdict(1, "n0", 1.2)]
    assert [text.partition(": GPU")[0] for text in news.of(both)] == ["STRAGGLER: rank 1 (node n0)"]
    assert news.of(both[1:]) == []
    assert news.of(both[1:]) == ["STRAGGLER: rank 3 (node n0) is no longer slow: section data_loading"]
    assert news.of([]) == []
    assert news.of([]) == ["STRAGGLER: rank 1 (node n0) is no longer slow: GPU"]
    assert news.of([]) == []
    assert news.of([slow]) == [f"STRAGGLER: {slow}"]


def test_a_verdict_that_comes_and_goes_is_told_once() -> None:
    news, slow = VerdictNews(), verdict(3, "n0", 1.31)
    assert len(news.of([slow])) == 1
    for _ in range(5):
        assert news.of([]) == []
        assert news.of([slow]) == []


def test_a_verdict_that_is_withheld_is_not_called_over() -> None:
    news, why = VerdictNews(), "9 of 64 compared ranks are slow (GPU): too many"
    news.of([verdict(3, "n0", 1.31)])
    assert news.of([], (why,)) == []
    assert news.of([], (why,)) == [f"STRAGGLER: rank 3 (node n0) is no longer named for GPU: {why}"]


def test_very_many_verdicts_are_few_lines() -> None:
    news = VerdictNews()
    slow = [verdict(rank, f"n{rank}", 1.3) for rank in range(1600)]
    lines = news.of(slow)
    assert lines[:16] == [f"STRAGGLER: {one}" for one in slow[:16]]
    assert lines[16:] == [
        "STRAGGLER: 1584 more verdicts, on 1584 ranks named as slow: rank 16–1599. The report has each in full"
    ]
    assert news.of(slow) == news.of([]) == []
    lines = news.of([])
    assert len(lines) == 17
    assert lines[-1].startswith("STRAGGLER: 1584 more verdicts, on 1584 ranks no longer named: rank 16–1599.")
    scattered = news.of([verdict(rank, "n", 1.3) for rank in range(0, 16_000, 10)])
    assert len(scattered) == 17 and len(scattered[-1]) < 1000 and ", …. The report" in scattered[-1]


def test_nothing_in_a_name_acts_on_a_terminal() -> None:
    odd = "\x1b[31m\n\x07"
    (line,) = VerdictNews().of([verdict(3, odd, 1.31)])
    assert r"(node \x1b[31m\n\x07)" in line and line.isprintable()
    text = log_texts.performance(RELATIVE_TITLE, SCORES, dict.fromkeys(SCORES, odd), 3)
    assert r"Node=\x1b[31m\n\x07 Score" in text and "\x1b" not in text
