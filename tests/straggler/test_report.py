"""What a report says: the documented example of eight ranks, thresholds, JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from holdfast.straggler import Report, StragglerId
from holdfast.straggler.scores import Statistic, summarise

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
