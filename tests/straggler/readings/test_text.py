"""What a person reads: who is slow first, no line wider than the terminal."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal.event import decode
from holdfast.journal.reader import read_run
from holdfast.straggler.readings.kept import KeptReport, reports
from holdfast.straggler.readings.text import overview
from tests.straggler.readings.history import job, line, report


def one(*arguments: Any, **more: Any) -> KeptReport:
    event = decode(line(1, 0.0, report(*arguments, **more)))
    assert event is not None
    return reports([event])[0]


def text(shown: KeptReport, width: int | None = 80) -> str:
    return overview("runs/a", [shown], shown, 1, width)


@pytest.mark.parametrize("ranks", [1, 2, 8, 512])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, ranks: int) -> None:
    found = reports(read_run(str(job(tmp_path, ranks, reports=10, gpu=ranks > 8))))
    for width in (80, 120):
        lines = overview("runs/a", found, found[-1], 10, width).splitlines()
        assert max(map(len, lines)) <= width
        assert len(lines) <= 70


def test_the_largest_job_fits_as_well() -> None:
    lines = text(one(16_384, {16_380: 1.3, **dict.fromkeys(range(96, 104), 1.2)})).splitlines()
    assert max(map(len, lines)) <= 80
    assert "> 16380  gpu-2047" in "\n".join(lines)


def test_long_names_and_many_sections_fit() -> None:
    sections = tuple(f"my.package.module.SomeClass{n}.forward" for n in range(20))
    shown = one(
        40,
        sections=sections,
        rank_to_node={rank: f"node-with-a-long-name-{rank}.example" for rank in range(40)},
    )
    lines = text(shown).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("more sections in a wider terminal or with --json" in one for one in lines)
    assert all(f"Class{n}.forward"[-11:] in text(shown, None) for n in range(20))


def test_the_verdicts_come_first() -> None:
    lines = text(one(512, {76: 1.31}), None).splitlines()
    assert lines[1].startswith("Report 1 of 1, ") and lines[1].endswith(": 512 ranks on 64 nodes, in 4.2 ms")
    assert lines[3].startswith(
        "  rank 76 (node gpu-0009): GPU, 1.31 × slower since report 3: kernels take 31 % longer "
    )
    row = next(one for one in lines if one.startswith(">"))
    assert row.split()[:3] == [">", "76", "gpu-0009"]
    assert "  …  499 other ranks" in "\n".join(lines)


def test_why_nobody_is_named() -> None:
    shown = one(8, withheld=("the job is warming up: this report counts for nothing",))
    assert "  no rank is named as slow\n  not judged: the job is warming up" in text(shown, None)


def test_many_named_ranks_are_few_lines_in_a_terminal() -> None:
    shown = one(512, dict.fromkeys([*range(40, 48), 90], 1.3))
    assert "  and 4 more: rank 45–47, 90 (in full with --json)" in text(shown)
    assert text(shown, None).count(" × slower since ") == 9


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "GPU kernels on rank 0: cupti, 1,204,332 records, 0 dropped, 98 % of GPU time scored"),
        (
            {
                "kernel_source": "cuda_events",
                "kernel_source_reason": "CUPTI is in use",
                "kernel_note": "3 windows lost",
                "gpu_time_scored": math.nan,
            },
            "GPU kernels on rank 0: cuda_events, 1,204,332 records, 0 dropped; CUPTI is in use; 3 windows lost",
        ),
        ({"gpu": False}, "GPU kernels on rank 0: none; no GPU"),
        ({"gpu": False, "kernel_source_reason": ""}, "GPU kernels on rank 0: none"),
    ],
)
def test_what_the_source_saw(changes: dict[str, Any], says: str) -> None:
    assert says in text(one(8, **changes), None).splitlines()
    assert says.replace(" on rank 0", "") in text(one(1, **changes), None).splitlines()


def test_who_was_named_how_often(tmp_path: Path) -> None:
    found = reports(read_run(str(job(tmp_path, 512))))
    said = overview("runs/a", found, found[-1], 12).splitlines()
    start = said.index("Named in 12 reports")
    assert said[start + 1].startswith("  rank 76 (node gpu-0009): 8 times, since ")
    assert said[start + 1].endswith(" (report 5); GPU; up to 1.31x")
    assert said[start + 2].startswith("  rank 40–43 (node gpu-0005): 4 times, since ")
    assert said[-1].split()[-4:] == ["0.97", "rank", "40–43,", "76"]
    until_ten = [replace(one, verdicts=()) if one.number > 10 else one for one in found]
    assert re.search(
        r" 6 times, from [\d:]+ \(report 5\) to [\d:]+ \(report 10\); GPU",
        overview("runs/a", until_ten, found[-1], 12),
    )


def test_a_report_without_any_score() -> None:
    shown = one(4, gpu=False, sections=())
    said = text(shown)
    assert "no rank is named" in said and "Scores" not in said


def test_nothing_in_a_name_acts_on_a_terminal() -> None:
    shown = one(
        8,
        {3: 1.3},
        sections=("x\x1b[31mRED\x07",),
        rank_to_node=dict.fromkeys(range(8), "n\x1b[2J\n\u202e"),
        withheld=("because of \x9b1m",),
        kernel_note="\x1b]0;title",
    )
    for width in (None, 80):
        said = overview("runs/\x1b[1m", [shown, shown], shown, 2, width)
        assert all(text.isprintable() for text in said.splitlines())
        assert r"\x9b1m" in said and r"\x1b]0;title" in said and r"n\x1b[2J\n\u202e" in said
