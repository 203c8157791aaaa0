"""Real ranks over gloo: the guide's examples, reports without a collective, process groups, injected slowness."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

from tests.processes import Spawner
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
    assert len(job.reports) == 9 and not job.verdicts, job.told()
