"""What the journal keeps of a report: small at any size, and the ranks that matter are in it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from holdfast.journal.event import decode, encode
from holdfast.straggler.record import KIND, LISTED, SECTIONS, VERDICTS, record_of
from tests.straggler.readings.history import report, verdict


def kept(told: Any) -> dict[str, Any]:
    """As it is read back from the journal."""
    event = decode(encode(KIND, record_of(told), t=1.0, mono=1.0, node="n0"))
    assert event is not None and event.kind == KIND
    return dict(event.fields)


def test_the_worst_job_stays_below_300_kilobytes() -> None:
    """16,384 ranks, a tenth of them named, 1,000 sections, names as long as they may be."""
    ranks = 16_384
    few = report(ranks, sections=tuple(f"{n:-<300}" for n in range(4)))
    scores = list(few.section_relative_perf_scores.values())
    many = {f"{n:-<300}": scores[n % 4] for n in range(1000)}
    node = "n" * 253
    told = replace(
        few,
        section_relative_perf_scores=many,
        section_individual_perf_scores=many,
        rank_to_node=dict.fromkeys(range(ranks), node),
        withheld=("why " * 40,) * 100,
        _verdicts=tuple(verdict(rank, node, 1.3, ranks=ranks) for rank in range(ranks // 10)),
    )
    fields = kept(told)
    assert len(encode(KIND, fields, t=1.0, mono=1.0, node="n0")) < 300_000
    assert len(fields["overall"]) == ranks
    assert (len(fields["columns"]), fields["sections_left_out"]) == (2 + 2 * SECTIONS, 1000 - SECTIONS)
    named = {one["rank"] for one in fields["verdicts"]} | {rank for rank, *_ in fields["further_verdicts"]}
    assert (len(fields["verdicts"]), named) == (VERDICTS, set(range(ranks // 10)))


def test_the_worst_and_the_best_ranks_and_who_is_named_have_all_their_scores() -> None:
    told = replace(
        report(512, {76: 1.3}), _verdicts=(verdict(76, "gpu-0009", 1.3), verdict(300, "gpu-0037", 1.2))
    )
    fields = kept(told)
    gpu = told.gpu_relative_perf_scores
    order = sorted(gpu, key=lambda rank: gpu[rank])
    rows = {rank: (node, scores) for rank, node, scores in fields["rows"]}
    assert {*order[:LISTED], *order[-LISTED:], 300} == rows.keys()
    assert fields["rows"][0][0] == 76
    assert rows[76][0] == "gpu-0009"
    titles = [(column["of"], column["score"], column.get("section")) for column in fields["columns"]]
    assert titles == [
        ("gpu", "relative", None),
        ("gpu", "individual", None),
        ("section", "relative", "data_loading"),
        ("section", "individual", "data_loading"),
        ("section", "relative", "fwd"),
        ("section", "individual", "fwd"),
    ]
    assert rows[76][1] == [
        round(scores[76], 3)
        for scores in (
            gpu,
            told.gpu_individual_perf_scores,
            told.section_relative_perf_scores["data_loading"],
            told.section_individual_perf_scores["data_loading"],
            told.section_relative_perf_scores["fwd"],
            told.section_individual_perf_scores["fwd"],
        )
    ]
    column = fields["columns"][0]
    assert column["quantiles"][0] == round(gpu[76], 3) and column["quantiles"][-1] == 1.0
    assert fields["verdicts"][0]["evidence"] == told.verdicts()[0].evidence
    assert fields["kernels"] == {"source": "cupti", "records": 1_204_332, "dropped": 0, "share": 0.98}


@pytest.mark.parametrize(
    ("changes", "overall"),
    [
        ({}, [500, 900]),
        ({"gpu_relative_perf_scores": {0: math.nan, 1: 0.9}}, [700, 900]),
        ({"gpu_relative_perf_scores": {}}, [700, 800]),
        ({"gpu_relative_perf_scores": {}, "section_relative_perf_scores": {}}, [600, 600]),
        (
            {
                "gpu_relative_perf_scores": {},
                "section_relative_perf_scores": {},
                "gpu_individual_perf_scores": {0: math.nan, 1: math.nan},
            },
            [1000, 950],
        ),
        (
            {
                "gpu_relative_perf_scores": {0: math.nan, 1: math.nan},
                "section_relative_perf_scores": {"a": {0: math.nan, 1: math.nan}},
                "gpu_individual_perf_scores": {},
                "section_individual_perf_scores": {},
            },
            [None, None],
        ),
    ],
)
def test_the_overall_score_is_the_gpu_s_then_the_lowest_section_s(
    changes: dict[str, Any], overall: list[int | None]
) -> None:
    scores = {
        "gpu_relative_perf_scores": {0: 0.5, 1: 0.9},
        "section_relative_perf_scores": {"a": {0: 0.7, 1: 0.8}, "b": {0: 1.0, 1: math.nan}},
        "gpu_individual_perf_scores": {0: 0.6, 1: 0.6},
        "section_individual_perf_scores": {"a": {0: 1.0, 1: 0.95}},
    }
    assert kept(report(2, **{**scores, **changes}))["overall"] == overall


def test_ranks_of_a_process_group_keep_their_numbers() -> None:
    ranks = (4, 5, 6, 12)
    told = report(
        4,
        gpu_relative_perf_scores=dict.fromkeys(ranks, 0.9),
        gpu_individual_perf_scores={},
        section_relative_perf_scores={},
        section_individual_perf_scores={},
        rank_to_node=dict.fromkeys(ranks, "n0"),
    )
    fields = kept(told)
    assert fields["ranks"] == [[4, 3], [12, 1]]
    assert fields["overall"] == [900] * 4


def test_a_record_is_plain_json() -> None:
    json.dumps(record_of(report(8, nan=(3,))), allow_nan=False)
