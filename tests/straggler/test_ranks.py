"""Real ranks over gloo: the guide's examples, groups, injected slowness; a failure is logged once, never raised."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from holdfast.straggler import CallableId, Detector, Statistic
from holdfast.straggler.sections import Sections
from tests.processes import Spawned, Spawner
from tests.straggler.jobs import EXPECTED, printed, run, start


def test_both_examples_of_the_guide(spawn: Spawner, tmp_path: Path) -> None:
    first, second = printed(start(spawn, tmp_path, "guide.py", 2))
    assert second == [[[], False]] * 2
    names = (
        ("data_loading", "fwd"),
        ("__main__.DataLoaderClass.get_next_batch", "__main__.ModelClass.forward"),
    )
    for (reports, _), (loading, forward) in zip(first, names, strict=True):
        assert len(reports) == 3
        for report, stragglers in reports[1:]:
            relative = report["section_relative_perf_scores"]
            assert set(relative) == set(report["section_individual_perf_scores"]) == {loading, forward}
            assert relative[loading]["0"] == 1.0 and relative[loading]["1"] < 0.6
            assert relative[forward].keys() == {"0", "1"} and max(relative[forward].values()) == 1.0
            assert report["gpu_relative_perf_scores"] == {"0": None, "1": None}
            assert report["rank_to_node"] == dict.fromkeys("01", socket.gethostname())
            assert report["local_section_summaries"][loading]["NUM"] == 10
            assert report["local_section_summaries"][loading]["MED"] >= 2.0
            assert f"'{loading}': {{StragglerId(rank=1, node='{socket.gethostname()}')}}" in stragglers


FEW = """
import logging
from holdfast.straggler import Detector
logging.basicConfig(level=logging.INFO)
Detector.initialize()
for _ in range(3):
    with Detector.detection_section("fwd", profile_cuda=False):
        pass
    Detector.generate_report()
Detector.shutdown()
"""


def test_few_ranks_log_once_that_they_have_no_verdicts(spawn: Spawner) -> None:
    rank = spawn.python(FEW)
    assert rank.wait() == 0, rank.output()
    (line,) = (line for line in rank.err().splitlines() if "straggler" in line)
    needed = "the only rank is compared with no other: there must be 3 ranks that do the same work"
    assert f"straggler reports have no verdicts: {needed}. Scores are not affected" in line


def test_no_collective_when_alone_and_groups_of_one(spawn: Spawner, tmp_path: Path) -> None:
    first, second = printed(start(spawn, tmp_path, "quiet_and_groups.py", 2))
    alone, groups = zip(first, second, strict=True)
    assert alone[0][:16] == [None] * 16 and len(alone[0]) == 19
    assert all(0 < scores["step"]["0"] <= 1 for scores in alone[0][16:])
    assert alone[1] == []
    refused = "Detector.initialize: process_group must be a group that this rank is in"
    assert groups[0] == [refused, 0, {"step": {"0": 1.0}}, {"0": "node-0"}]
    assert groups[1] == [refused, 1, {"step": {"1": 1.0}}, {"1": "node-1"}]


@pytest.mark.slow
def test_the_program_of_the_page(spawn: Spawner, tmp_path: Path) -> None:
    """What docs/straggler.md begins with: the program runs, and prints what the page shows."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "straggler.md").read_text()
    program = tmp_path / "train.py"
    program.write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])
    shown = re.findall(r"```console\n\$ .*?\n(.*?)```", page, re.DOTALL)[0]
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2"]
    job = spawn([*launcher, program])
    assert job.wait() == 0, job.output()
    printed = re.findall(r"^\d+ \{.*StragglerId.*\}$", job.out(), re.MULTILINE)
    assert "data_loading': {StragglerId(rank=1," in printed[0]
    assert [line.partition(",")[0] for line in printed] == re.findall(
        r"^\d+ \{'.*?(?=,)", shown, re.MULTILINE
    )


# -- injected slowness on four ranks with DistributedDataParallel, on a machine with fewer cores than ranks, too.
# `make test` has one kind, since a job takes its time; the soak has twenty seeds of each.


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind", ["busy", *(pytest.param(kind, marks=pytest.mark.variant) for kind in EXPECTED if kind != "busy")]
)
def test_the_rank_and_the_reason_are_named(spawn: Spawner, tmp_path: Path, kind: str) -> None:
    job = run(spawn, tmp_path, kind, seed=1)
    assert job.found and not job.blamed_others, job.told()
    if kind == "gc":
        assert any(one["evidence"].startswith("garbage collection took ") for one in job.verdicts)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_rank_is_named_in_a_healthy_job(spawn: Spawner, tmp_path: Path) -> None:
    job = run(spawn, tmp_path, "healthy", seed=1)
    assert len(job.reports) == 9 and not job.blamed_others, job.told()


# -- A failure of the detector itself is logged once, and never raised into the training


def fails(*_: object, **__: object) -> NoReturn:
    raise LookupError("on purpose")


def failing(spawn: Spawner, folder: Path, size: int, what: str) -> tuple[list[Spawned], list[list[Any]]]:
    """The ranks, and the line that each printed, if it did."""
    ranks = start(spawn, folder, "failures.py", size, str(size), what)
    return ranks, [lines[0] if lines else [] for lines in printed(ranks)]


def logged(rank: Spawned) -> list[str]:
    return [line for line in rank.err().splitlines() if line.startswith("LOG")]


def test_a_rank_that_cannot_measure_leaves_the_others_their_report(spawn: Spawner, tmp_path: Path) -> None:
    ranks, seen = failing(spawn, tmp_path, 2, "take")
    first, second, third = (report for report, _ in seen[0])
    assert set(first["step"]) == {"0", "1"} and second["step"] == {"0": None, "1": None}
    assert None not in third["step"].values()
    assert [total for rank in seen for _, total in rank] == [1.0] * 6
    assert logged(ranks[0]) == []
    (line,) = logged(ranks[1])
    assert "LookupError: on purpose" in line


def test_a_rank_that_cannot_read_kernels_keeps_its_sections(spawn: Spawner, tmp_path: Path) -> None:
    ranks, seen = failing(spawn, tmp_path, 2, "kernels")
    assert all(None not in report["step"].values() for report, _ in seen[0])
    assert [len(logged(rank)) for rank in ranks] == [0, 1]


def test_a_rank_that_cannot_score_sends_unknown_values(spawn: Spawner, tmp_path: Path) -> None:
    ranks, seen = failing(spawn, tmp_path, 2, "scores")
    first, second, third = (report["step"] for report, _ in seen[0])
    assert second["1"] is None and second["0"] is not None
    assert None not in (*first.values(), *third.values())
    assert [total for rank in seen for _, total in rank] == [1.0] * 6
    assert [len(logged(rank)) for rank in ranks] == [0, 1]


@pytest.mark.parametrize("part", ["verdicts", "keep"])
def test_rank_0_that_fails_after_the_exchange_says_so(spawn: Spawner, tmp_path: Path, part: str) -> None:
    ranks, seen = failing(spawn, tmp_path, 2, part)
    made = [report is not None for report, _ in seen[0]]
    assert made == [True, part == "keep", True]  # a report that could not be kept is a report
    assert [total for rank in seen for _, total in rank] == [1.0] * 6
    assert [len(logged(rank)) for rank in ranks] == [1, 0]


def test_a_broken_collective_ends_reports_and_steps_are_counted(spawn: Spawner, tmp_path: Path) -> None:
    ranks, seen = failing(spawn, tmp_path, 3, "killed")
    assert seen[0][:20] == [[False, False]] * 16 + [[True, True]] * 4
    assert seen[1][:20] == [[False, False]] * 16 + [[False, True]] * 4
    assert seen[0][20:] == seen[1][20:] == [[False, True]] * 10
    for rank in ranks[:2]:
        (line,) = logged(rank)
        assert line.startswith("LOG straggler reports have ended: ")


def test_settings_that_differ_are_named_by_the_rank_that_differs(spawn: Spawner, tmp_path: Path) -> None:
    ranks, _ = failing(spawn, tmp_path, 3, "settings")
    assert [len(logged(rank)) for rank in ranks] == [0, 0, 1]
    (line,) = logged(ranks[2])
    assert "scores_to_compute is 'relative_perf_scores' on rank 2 and 'all' on rank 0" in line
    assert "report_time_interval is 7.0 on rank 2 and 60.0 on rank 0" in line
    assert "node_name" not in line and "gather_on_rank0" not in line


class Broken:
    """A capture whose calls fail."""

    enter = leave = fails


def test_a_section_whose_kernels_cannot_be_measured_is_timed(caplog: pytest.LogCaptureFixture) -> None:
    sections = Sections(1, Broken())  # type: ignore[arg-type]
    for _ in range(3):
        with sections.enter("step", True):
            pass
    assert sections.take()["step"][Statistic.NUM] == 3
    assert len(caplog.messages) == 1 and "LookupError: on purpose" in caplog.messages[0]


def test_a_section_that_fails_at_its_end_keeps_the_error_of_the_body(
    caplog: pytest.LogCaptureFixture,
) -> None:
    capture = Broken()
    capture.enter = lambda name, profiled: 1  # type: ignore[method-assign, assignment, misc, return-value]
    with pytest.raises(ZeroDivisionError), Sections(1, capture).enter("step", True):  # type: ignore[arg-type]
        raise ZeroDivisionError
    assert len(caplog.messages) == 1


def test_a_wrapped_call_is_made_whatever_becomes_of_its_name(caplog: pytest.LogCaptureFixture) -> None:
    class Model:
        def forward(self, x: int) -> int:
            return x + 1

    class Strange:
        def __format__(self, how: str) -> NoReturn:
            fails()

    Detector.initialize()
    Detector.wrap_callables([CallableId(Model, "forward", extra_args_fn=lambda given: {"x": Strange()})])
    assert [Model().forward(1) for _ in range(3)] == [2] * 3
    assert len(caplog.messages) == 1


def test_each_part_is_closed_though_others_fail(caplog: pytest.LogCaptureFixture) -> None:
    class Model:
        def forward(self) -> int:
            return 1

    original = Model.forward
    Detector.initialize()
    Detector.wrap_callables([CallableId(Model, "forward")])
    session = Detector._session
    assert session is not None
    session._capture.close = fails  # type: ignore[method-assign]
    session._host.close = fails  # type: ignore[method-assign]
    Detector.shutdown()
    assert Model.forward is original
    assert len(caplog.messages) == 2 and all("LookupError: on purpose" in one for one in caplog.messages)


def test_a_report_that_cannot_be_made_alone_is_none(caplog: pytest.LogCaptureFixture) -> None:
    Detector.initialize(gather_on_rank0=False)
    session = Detector._session
    assert session is not None
    session._scoring.own = fails  # type: ignore[method-assign]
    assert [Detector.generate_report(), Detector.generate_report()] == [None, None]
    assert len(caplog.messages) == 1
