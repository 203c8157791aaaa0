"""What a report says: the documented example of eight ranks, thresholds, JSON; and the log's lines on verdicts."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from holdfast.straggler import Report, StragglerId
from holdfast.straggler.log_texts import VerdictNews
from holdfast.straggler.scores import Statistic, summarise
from tests.straggler.readings.history import verdict

DATA_LOADING = dict(enumerate([0.961, 0.919, 0.941, 0.999, 1.0, 0.847, 0.591, 0.788]))
FWD = dict(enumerate([0.994, 0.949, 0.994, 0.998, 1.0, 0.947, 0.991, 0.988]))
GPU = dict(enumerate([0.703, 0.978, 0.689, 0.663, 0.673, 0.925, 0.720, 0.737]))
NODES = {rank: f"node-{rank // 4}" for rank in range(8)}


def report(**changes: Any) -> Report:
    fields: dict[str, Any] = {
        "gpu_relative_perf_scores": GPU,
        "section_relative_perf_scores": {"data_loading": DATA_LOADING, "fwd": FWD},
        "gpu_individual_perf_scores": dict.fromkeys(range(8), 1.0),
        "section_individual_perf_scores": {"data_loading": FWD, "fwd": FWD},
        "rank_to_node": NODES,
        "local_section_summaries": {"fwd": summarise([1.0])},
        "local_kernel_summaries": {},
        "generate_report_elapsed_time": 1.5,
        "gather_on_rank0": True,
        "rank": 0,
    }
    return Report(**{**fields, **changes})


def test_the_documented_example_of_eight_ranks() -> None:
    found = report().identify_stragglers()
    assert found == {
        "straggler_gpus_relative": {StragglerId(rank, NODES[rank]) for rank in (0, 2, 3, 4, 6, 7)},
        "straggler_gpus_individual": set(),
        "straggler_sections_relative": {"data_loading": {StragglerId(6, "node-1")}},
        "straggler_sections_individual": {},
    }


def test_a_threshold_for_each_kind() -> None:
    found = report().identify_stragglers(
        gpu_rel_threshold=0.67, section_rel_threshold=0.8, section_indiv_threshold=0.948
    )
    assert found["straggler_gpus_relative"] == {StragglerId(3, "node-0")}
    assert {one.rank for one in found["straggler_sections_relative"]["data_loading"]} == {6, 7}
    assert {one.rank for one in found["straggler_sections_individual"]["fwd"]} == {5}


def test_the_threshold_itself_is_good_enough_and_nan_is_no_straggler() -> None:
    found = report(gpu_relative_perf_scores={0: 0.75, 1: math.nan}).identify_stragglers()
    assert found["straggler_gpus_relative"] == set()


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "0.7", None, True])
def test_a_threshold_must_be_a_number(value: Any) -> None:
    with pytest.raises(ValueError, match=r"gpu_indiv_threshold must be a number from 0 on, not"):
        report().identify_stragglers(gpu_indiv_threshold=value)


def test_json_has_all_fields_and_no_nan() -> None:
    made = report(gpu_individual_perf_scores={0: math.nan})
    read = json.loads(made.to_json())
    assert read.keys() == made.to_dict().keys() == vars(made).keys() - {"_verdicts"} | {"verdicts"}
    assert read["gpu_individual_perf_scores"] == {"0": None}
    assert read["section_relative_perf_scores"]["data_loading"]["6"] == 0.591
    assert read["local_section_summaries"]["fwd"] == {
        "MIN": 1.0, "MAX": 1.0, "MED": 1.0, "AVG": 1.0, "STD": None, "NUM": 1,
    }  # fmt: skip
    assert made.to_dict()["rank_to_node"] == NODES


def test_how_a_straggler_is_written() -> None:
    """Programs search their logs for this."""
    assert repr(StragglerId(rank=3, node="n0")) == "StragglerId(rank=3, node='n0')"
    assert Statistic.MED in report().local_section_summaries["fwd"]


# -- one line in the log for each verdict that begins or ends


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
