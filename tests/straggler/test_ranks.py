"""Real ranks over gloo: the guide's examples, groups, injected slowness; a failure is logged once, never raised."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.straggler import CallableId, Detector, Statistic
from holdfast.straggler.sections import Sections
from tests.processes import Spawner
from tests.straggler.jobs import EXPECTED, printed, run_all, start


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
# The soak has twenty seeds of each kind.


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_rank_and_the_reason_are_named(spawn: Spawner, tmp_path: Path) -> None:
    healthy, *slowed = run_all(spawn, tmp_path, ["healthy", *EXPECTED], seed=1)
    assert len(healthy.reports) == 9 and not healthy.blamed_others, healthy.told()
    for job in slowed:
        assert job.found and not job.blamed_others, job.told()
        if job.kind == "gc":
            assert any(one["evidence"].startswith("garbage collection took ") for one in job.verdicts)


# -- A failure of the detector itself is logged once, and never raised into the training


def fails(*_: object, **__: object) -> NoReturn:
    raise LookupError("on purpose")


FAILING: dict[str, tuple[int, list[str] | None]] = {
    "take": (2, ["0", "1", "2"]),
    "kernels": (2, []),
    "scores": (2, ["2"]),
    "verdicts": (0, None),
    "keep": (0, []),  # a report that could not be kept is a report
}
"""The rank on which a part fails in the second report, and the ranks without a score in it."""


def test_ranks_need_no_others_and_a_failure_is_logged_once(spawn: Spawner, tmp_path: Path) -> None:
    """Every part of programs/sessions.py, whose docstrings say what happens."""
    ranks = start(spawn, tmp_path, "sessions.py", 3, "3")
    seen = [dict(lines) for lines in printed(ranks)]

    def logged(part: str) -> list[list[str]]:
        head = f"LOG {part} "
        lines = [rank.err().splitlines() for rank in ranks]
        return [[line.removeprefix(head) for line in of if line.startswith(head)] for of in lines]

    alone = seen[0]["alone"]
    assert alone[:16] == [None] * 16 and len(alone) == 19
    assert all(0 < scores["step"]["0"] <= 1 for scores in alone[16:])
    assert [one["alone"] for one in seen[1:]] == [[], []]
    refused = "Detector.initialize: process_group must be a group that this rank is in"
    assert [one["groups"] for one in seen] == [
        [refused, rank, {"step": {f"{rank}": 1.0}}, {f"{rank}": f"node-{rank}"}] for rank in range(3)
    ]
    for part, (on_rank, unknown) in FAILING.items():
        assert [total for rank in seen for _, total in rank[part]] == [3.0] * 9, part
        assert [[report for report, _ in rank[part]] for rank in seen[1:]] == [[None] * 3] * 2, part
        lines = logged(part)
        assert [len(of) for of in lines] == [int(rank == on_rank) for rank in range(3)], (part, lines)
        assert "LookupError: on purpose" in lines[on_rank][0]
        first, second, third = (report for report, _ in seen[0][part])
        assert None not in (*first["step"].values(), *third["step"].values()), part
        if unknown is not None:  # else there is no report
            assert [rank for rank, score in second["step"].items() if score is None] == unknown, part
        else:
            assert second is None, part
    assert logged("settings")[:2] == [[], []]
    (line,) = logged("settings")[2]
    assert "scores_to_compute is 'relative_perf_scores' on rank 2 and 'all' on rank 0" in line
    assert "report_time_interval is 7.0 on rank 2 and 60.0 on rank 0" in line
    assert "node_name" not in line and "gather_on_rank0" not in line
    for rank in range(2):  # the last one died in step 20
        assert seen[rank]["killed"] == [
            *[[False, False]] * 16, *[[rank == 0, True]] * 4, *[[False, True]] * 10
        ]  # fmt: skip
        (line,) = logged("killed")[rank]
        assert line.startswith("straggler reports have ended: ")
    assert "killed" not in seen[2]


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
