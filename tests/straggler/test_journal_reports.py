"""Reports in the journal: small at any size, of each cycle, never at the cost of training, and read back whole."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal.event import Event, decode, encode
from holdfast.journal.reader import read_run
from holdfast.journal.writer import Journal
from holdfast.straggler.readings.kept import KeptReport, reports
from holdfast.straggler.record import KIND, LISTED, SECTIONS, VERDICTS, record_of
from holdfast.straggler.state_file import WAITING, ReportLog
from tests.processes import Spawner, wait_until
from tests.straggler.readings.history import job, line, report, verdict

FILE = "journal-n0.rank-0.jsonl"


def test_reports_of_two_cycles_are_read_beside_the_launcher_s_records(tmp_path: Path) -> None:
    launcher = Journal(str(tmp_path), "n0")
    launcher.record("run_start")
    for cycle in range(2):
        launcher.record("cycle_start", cycle=cycle)
        log = ReportLog(str(tmp_path), "n0", 0, cycle)
        for _ in range(2):
            before = time.time()
            log.write(report(8))
            after = time.time()
        log.close(timeout=30)
        log.write(report(8))
    launcher.close(timeout=30)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"journal-n0{end}" for end in (".jsonl", ".rank-0.jsonl")
    ]
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    events = [event for event in read_run(str(tmp_path)) if event.kind == "straggler_report"]
    assert [(event.get("cycle"), event.get("report")) for event in events] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert {event.node for event in events} == {"n0"}
    assert before <= events[-1].t + 1e-6 <= after + 2e-6
    assert [one.cycle for one in reports(read_run(str(tmp_path)))] == [0, 0, 1, 1]


def written(place: Path, count: int = 1) -> None:
    log = ReportLog(str(place), "n0", 0)
    for _ in range(count):
        log.write(report(2))
    log.close(timeout=30)


def test_the_directory_is_made_private(tmp_path: Path) -> None:
    place = tmp_path / "a" / "run"
    written(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert len(read_run(str(place))) == 1


def test_a_directory_that_others_can_write_is_one_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o777)
    written(tmp_path, 3)
    (line,) = capfd.readouterr().err.splitlines()
    assert "can be written by others (mode 0777)" in line and "Training and supervision continue" in line
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Path]:
    """A run directory in which the journal is a FIFO without a reader: writing hangs, as on a dead mount."""
    tmp_path.chmod(0o700)
    os.mkfifo(tmp_path / FILE)
    yield tmp_path
    with open(os.open(tmp_path / FILE, os.O_RDONLY), "rb") as reader:
        reader.read()


def test_a_disk_that_hangs_costs_only_the_records(hanging: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = ReportLog(str(hanging), "n0", 0)
    made = report(64)
    began = time.monotonic()
    for _ in range(WAITING + 10):
        log.write(made)
    assert time.monotonic() - began < 60
    log.close(timeout=0.1)
    assert "some are lost" in capfd.readouterr().err
    assert log._journal._queue.qsize() <= WAITING + 1


ENDS = """
import sys
from holdfast.straggler.state_file import ReportLog
from tests.straggler.readings.history import report
log = ReportLog(sys.argv[1], "n0", 0)
log.write(report(64))
print("bye", flush=True)
"""


@pytest.mark.parametrize("hangs", [False, True])
def test_a_program_that_ends_without_shutdown(tmp_path: Path, spawn: Spawner, hangs: bool) -> None:
    """Its report is kept; and it ends although its disk hangs."""
    tmp_path.chmod(0o700)
    if hangs:
        os.mkfifo(tmp_path / FILE)
    process = spawn.python(ENDS, str(tmp_path))
    assert process.wait(60) == 0, process.output()
    assert ("not written within 1 s" in process.err()) == hangs
    assert hangs or len(read_run(str(tmp_path))) == 1


def test_a_run_directory_that_vanishes_is_told_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = ReportLog(str(tmp_path / "run"), "n0", 0)
    log.write(report(8))
    wait_until(lambda: list((tmp_path / "run").glob("*.jsonl")) and log._journal._queue.empty())
    shutil.rmtree(tmp_path / "run")
    for _ in range(3):
        log.write(report(8))
    log.close(timeout=30)
    assert capfd.readouterr().err.count("it is gone, with the reports that were in it") == 1


# -- what the journal keeps of a report: small at any size, and the ranks that matter are in it


def kept(told: Any) -> dict[str, Any]:
    """As it is read back from the journal."""
    event = event_of(encode(KIND, record_of(told), t=1.0, mono=1.0, node="n0"))
    assert event.kind == KIND
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
    assert [one["rank"] for one in fields["verdicts"]] == list(range(VERDICTS))


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
    expected: dict[tuple[str, str, str | None], Any] = {
        ("gpu", "relative", None): gpu,
        ("gpu", "individual", None): told.gpu_individual_perf_scores,
    }
    for name in ("data_loading", "fwd"):
        expected["section", "relative", name] = told.section_relative_perf_scores[name]
        expected["section", "individual", name] = told.section_individual_perf_scores[name]
    titles = [(column["of"], column["score"], column.get("section")) for column in fields["columns"]]
    assert titles == list(expected)
    assert rows[76][1] == [round(scores[76], 3) for scores in expected.values()]
    column = fields["columns"][0]
    assert column["quantiles"][0] == round(gpu[76], 3) and column["quantiles"][-1] == 1.0
    assert fields["verdicts"][0]["evidence"] == told.verdicts()[0].evidence
    assert fields["kernels"] == {"source": "cupti", "records": 1_204_332, "dropped": 0, "share": 0.98}


Scores = dict[int, float]
GPU, GPU_INDIVIDUAL = {0: 0.5, 1: 0.9}, {0: 0.6, 1: 0.6}
SECTION, SECTION_INDIVIDUAL = {"a": {0: 0.7, 1: 0.8}, "b": {0: 1.0, 1: math.nan}}, {"a": {0: 1.0, 1: 0.95}}
UNKNOWN = {0: math.nan, 1: math.nan}


@pytest.mark.parametrize(
    ("gpu", "section", "gpu_individual", "section_individual", "overall"),
    [
        (GPU, SECTION, GPU_INDIVIDUAL, SECTION_INDIVIDUAL, [500, 900]),
        ({0: math.nan, 1: 0.9}, SECTION, GPU_INDIVIDUAL, SECTION_INDIVIDUAL, [700, 900]),
        ({}, SECTION, GPU_INDIVIDUAL, SECTION_INDIVIDUAL, [700, 800]),
        ({}, {}, GPU_INDIVIDUAL, SECTION_INDIVIDUAL, [600, 600]),
        ({}, {}, UNKNOWN, SECTION_INDIVIDUAL, [1000, 950]),
        (UNKNOWN, {"a": UNKNOWN}, {}, {}, [None, None]),
    ],
)
def test_the_overall_score_is_the_gpu_s_then_the_lowest_section_s(
    gpu: Scores,
    section: dict[str, Scores],
    gpu_individual: Scores,
    section_individual: dict[str, Scores],
    overall: list[int | None],
) -> None:
    told = report(
        2,
        gpu_relative_perf_scores=gpu,
        section_relative_perf_scores=section,
        gpu_individual_perf_scores=gpu_individual,
        section_individual_perf_scores=section_individual,
    )
    assert kept(told)["overall"] == overall


def test_ranks_of_a_process_group_keep_their_numbers() -> None:
    ranks = (4, 5, 6, 12)
    told = report(4, sections=(), gpu_relative_perf_scores=dict.fromkeys(ranks, 0.9))
    fields = kept(replace(told, gpu_individual_perf_scores={}, rank_to_node=dict.fromkeys(ranks, "n0")))
    assert fields["ranks"] == [[4, 3], [12, 1]]
    assert fields["overall"] == [900] * 4


def test_a_record_is_plain_json() -> None:
    json.dumps(record_of(report(8, nan=(3,))), allow_nan=False)


# -- reports as they are read back: in order, whole, and whatever else stands in the journal


def event_of(line: bytes) -> Event:
    event = decode(line)
    assert event is not None
    return event


def read(*lines: bytes) -> list[KeptReport]:
    return reports([event_of(one) for one in lines])


def test_a_run_with_a_restart(tmp_path: Path) -> None:
    found = reports(read_run(str(job(tmp_path, 512, reports=5, restart=3))))
    assert [(one.number, one.cycle) for one in found] == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]
    last = found[-1]
    assert (len(last.overall), last.nodes, len(last.columns)) == (512, 64, 6)
    (verdict,) = last.verdicts
    assert str(verdict) == (
        "rank 76 (node gpu-0009): GPU, 1.31 × slower since report 3: kernels take 31 % longer than on the median of "
        "511 comparable ranks"
    )
    assert min(last.overall, key=lambda rank: last.overall[rank] or 1.0) == 76 == last.rows[0][0]


def own(rank: int, number: int, **more: Any) -> bytes:
    """A report of one rank about itself, as with `gather_on_rank0=False`."""
    whole = report(6, {4: 1.5}, gpu=False, seed=number)

    def mine(scores: Any) -> dict[int, float]:
        return {rank: scores[rank]}

    told = replace(
        whole,
        gather_on_rank0=False,
        rank=rank,
        rank_to_node={rank: f"n{rank // 2}"},
        gpu_relative_perf_scores={},
        gpu_individual_perf_scores={},
        section_relative_perf_scores={n: mine(s) for n, s in whole.section_relative_perf_scores.items()},
        section_individual_perf_scores={n: mine(s) for n, s in whole.section_individual_perf_scores.items()},
        generate_report_elapsed_time=1.0 + rank,
        _verdicts=(),
        withheld=("not gathered",),
    )
    return line(number, 300.0 * number + rank, told, **more)


def test_the_ranks_own_reports_of_one_step_are_one() -> None:
    order = [3, 1, 0, 2, 5, 4]
    found = read(*(own(rank, number) for number in (1, 2) for rank in order))
    ranks = [*range(6)]
    assert [(one.number, list(one.overall), one.nodes) for one in found] == [(1, ranks, 3), (2, ranks, 3)]
    whole = report(6, {4: 1.5}, gpu=False, seed=2)
    last = found[-1]
    assert (last.rows[0][0], last.rows[0][1]) == (4, "n2")
    titles = [(column["section"], column["score"]) for column in last.columns]
    assert titles == [(name, kind) for name in ("data_loading", "fwd") for kind in ("relative", "individual")]
    for rank, _, scores in last.rows:
        assert scores[0] == round(whole.section_relative_perf_scores["data_loading"][rank], 3)
        assert scores[3] == round(whole.section_individual_perf_scores["fwd"][rank], 3)
    assert (last.withheld, last.elapsed_ms, sorted(last.holders)) == (("not gathered",), 6.0, ranks)


def test_a_rank_that_never_told_is_missing_and_a_second_run_is_not_mixed_in() -> None:
    found = read(own(0, 1), own(1, 1), own(0, 2), own(0, 1), own(1, 1))
    found.sort(key=lambda one: (one.t, len(one.overall)))
    assert [list(one.overall) for one in found] == [[0, 1], [0, 1], [0]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("ranks", wrong) for wrong in (None, [[0]], [[0, 7]], [[0, 2**31 + 1]], [[0, 9], [9, -1]])),
        *(("overall", wrong) for wrong in (3, [math.inf] * 8)),
        *(("rows", wrong) for wrong in ([[1]], {"a": 1}, [[1, "n", []]])),
        *(("verdicts", wrong) for wrong in (["x"], [{"rank": 1}])),
        ("columns", [{"of": "gpu"}]),
        ("kernels", 3),
        ("rank", "x"),
        ("nodes", math.inf),
        ("elapsed_ms", 10**400),
    ],
)
def test_a_record_that_makes_no_sense_does_not_spoil_the_others(name: str, value: object) -> None:
    event, later = event_of(line(1, 0.0, report(8))), event_of(line(2, 600.0, report(8)))
    odd = replace(event, t=event.t + 1, mono=event.mono + 1, fields={**event.fields, name: value})
    impossible = replace(event, t=1e18)  # no calendar has it
    assert [one.t for one in reports([event, odd, impossible, later])] == [event.t, later.t]


def test_what_a_newer_version_says_of_a_verdict_is_no_matter() -> None:
    event = event_of(line(1, 0.0, report(8, {3: 1.3})))
    (told,) = event.fields["verdicts"]
    newer = {**event.fields, "verdicts": [{**told, "clock_mhz": 1200}]}
    (found,) = reports([replace(event, fields=newer)])
    assert [one.rank for one in found.verdicts] == [3]
