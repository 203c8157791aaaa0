"""One line in the log for each verdict that begins or ends."""

from __future__ import annotations

from holdfast.straggler.log_texts import VerdictNews
from tests.straggler.readings.history import verdict


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
