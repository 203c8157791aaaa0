"""What the callback makes of one report: texts as documented, metrics, stragglers; and a straggler in a real job."""

from __future__ import annotations

import logging
import math
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.autoresume.ledger import Ledger
from holdfast.autoresume.outcome import account_of
from holdfast.autoresume.policy import nodes_to_exclude
from holdfast.autoresume.run_dir import LEDGER, read_records
from holdfast.callbacks.completion import record_suspects
from holdfast.callbacks.straggler_findings import (
    Confirmation,
    StragglerSettings,
    findings,
    lines,
    metrics,
    suspects,
    suspects_by_score,
    why_sections,
)
from holdfast.journal.incidents import incidents
from holdfast.journal.reader import read_run
from holdfast.straggler import Report, Verdict
from tests import preloading
from tests.processes import Spawner
from tests.ptl_resiliency.small import of_csv

SETTINGS = StragglerSettings(300.0, True, True, 1, 0.7, 0.7, False, True, 1, None)
NAN = {0: math.nan, 1: math.nan, 2: math.nan}


def report(**kwargs: Any) -> Report:
    fields: dict[str, Any] = {
        "gpu_relative_perf_scores": {0: 1.0, 1: 0.5, 2: 0.9},
        "section_relative_perf_scores": {"training_step": {0: 0.8, 1: 1.0, 2: 0.25}, "own": {0: 0.1}},
        "gpu_individual_perf_scores": {0: 0.95, 1: 0.97, 2: 1.0},
        "section_individual_perf_scores": {"training_step": {0: 0.6, 1: 0.9, 2: 1.0}, "own": {0: 0.1}},
        "rank_to_node": {0: "n0", 1: "n0", 2: "n1"},
        "local_section_summaries": {},
        "local_kernel_summaries": {},
        "generate_report_elapsed_time": 1.0,
        "gather_on_rank0": True,
        "rank": 0,
        "kernel_source": "cupti",
    }
    return Report(**(fields | kwargs))


CPU = {
    "kernel_source": "none",
    "kernel_source_reason": "no NVIDIA driver",
    "gpu_relative_perf_scores": NAN,
    "gpu_individual_perf_scores": NAN,
}


def texts(one: Report, settings: StragglerSettings = SETTINGS) -> list[tuple[int, str]]:
    return list(lines(findings(one, settings), one, settings))


def test_gpus() -> None:
    found = findings(report(), SETTINGS)
    assert found.stragglers and not found.by_section
    assert texts(report()) == [
        (
            logging.WARNING,
            "STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. "
            "Affected ranks: {StragglerId(rank=1, node='n0')}",
        ),
        (
            logging.INFO,
            "\nGPU relative performance:\n Worst performing 1/3 ranks:\n  Rank=1 Node=n0 Score=0.50\n"
            " Best performing 1/3 ranks:\n  Rank=0 Node=n0 Score=1.00",
        ),
        (
            logging.INFO,
            "\nGPU individual performance:\n Worst performing 1/3 ranks:\n  Rank=0 Node=n0 Score=0.95\n"
            " Best performing 1/3 ranks:\n  Rank=2 Node=n1 Score=1.00",
        ),
    ]
    assert metrics(found) == {
        "gpu_relative_perf/min": 0.5,
        "gpu_relative_perf/median": 0.9,
        "gpu_relative_perf/max": 1.0,
        "gpu_individual_perf/min": 0.95,
        "gpu_individual_perf/median": 0.97,
        "gpu_individual_perf/max": 1.0,
    }


def test_gpus_that_became_slower() -> None:
    warned = texts(report(gpu_relative_perf_scores={}, gpu_individual_perf_scores={0: 0.69, 1: 0.7, 2: 0.1}))
    assert warned[0] == (
        logging.WARNING,
        "STRAGGLER DETECTION WARNING: Some GPUs performance dropped. "
        "Affected ranks: {StragglerId(rank=0, node='n0'), StragglerId(rank=2, node='n1')}",
    )


def test_without_gpus_the_section_is_scored_and_named() -> None:
    one = report(**CPU)
    found = findings(one, SETTINGS)
    assert found.stragglers and found.by_section
    assert [text.partition(":\n")[0] for _, text in texts(one)] == [
        "STRAGGLER DETECTION WARNING: Section training_step is slower on some ranks. "
        "Affected ranks: {StragglerId(rank=2, node='n1')}",
        "STRAGGLER DETECTION WARNING: Section training_step became slower on some ranks. "
        "Affected ranks: {StragglerId(rank=0, node='n0')}",
        "\nSection relative performance (training_step)",
        "\nSection individual performance (training_step)",
    ]
    assert metrics(found) == {
        "section_relative_perf/min": 0.25,
        "section_relative_perf/median": 0.8,
        "section_relative_perf/max": 1.0,
        "section_individual_perf/min": 0.6,
        "section_individual_perf/median": 0.9,
        "section_individual_perf/max": 1.0,
    }
    assert why_sections(one) == (
        "No GPU was measured (no NVIDIA driver): section training_step is scored by its wall time instead, "
        "with the same thresholds"
    )


def test_the_programs_own_sections_stop_nothing() -> None:
    fine = {0: 1.0, 1: 1.0, 2: 1.0}
    sections = {"training_step": fine, "own": {0: 0.1, 1: 1.0, 2: 1.0}}
    one = report(**CPU, section_relative_perf_scores=sections, section_individual_perf_scores=sections)
    assert not findings(one, SETTINGS).stragglers


def test_a_window_without_common_kernels_is_no_reason_to_judge_by_wall_time() -> None:
    one = report(**CPU | {"kernel_source": "cupti"})
    found = findings(one, SETTINGS)
    assert not found.by_section and not found.stragglers and metrics(found) == {}
    assert [text for _, text in texts(one)] == [
        "\nGPU relative performance:\n  no score on any of 3 ranks",
        "\nGPU individual performance:\n  no score on any of 3 ranks",
    ]


def test_gpus_of_other_ranks_only() -> None:
    """Rank 0's own source says nothing of the others'."""
    one = report(kernel_source="none", gpu_relative_perf_scores={0: math.nan, 1: 1.0, 2: 0.6})
    found = findings(one, SETTINGS)
    assert not found.by_section and found.stragglers
    assert metrics(found)["gpu_relative_perf/min"] == 0.6


def test_nothing_in_a_name_acts_on_a_terminal() -> None:
    odd = report(rank_to_node=dict.fromkeys(range(3), "\x1b[31m\n\x07"))
    said = "".join(text for _, text in texts(odd))
    assert r"Node=\x1b[31m\n\x07 Score" in said and "\x1b" not in said


def test_only_what_was_asked_for() -> None:
    relative = replace(SETTINGS, individual=False)
    assert set(metrics(findings(report(), relative))) == {
        "gpu_relative_perf/min",
        "gpu_relative_perf/median",
        "gpu_relative_perf/max",
    }
    assert len(texts(report(), relative)) == 2
    assert not findings(report(), replace(SETTINGS, relative=False)).stragglers


@pytest.mark.parametrize(("threshold", "listed"), [(0.4, 0), (0.7, 3)])
def test_with_0_scores_are_listed_only_with_stragglers(threshold: float, listed: int) -> None:
    settings = replace(SETTINGS, shown=0, relative_threshold=threshold)
    said = texts(report(), settings)
    assert len(said) == listed
    if listed:
        assert said[1][1].splitlines()[2:] == [
            "  Rank=1 Node=n0 Score=0.50",
            "  Rank=2 Node=n1 Score=0.90",
            "  Rank=0 Node=n0 Score=1.00",
        ]


SLOW = Verdict(1, "n0", (1,), "GPU", 2.0, 2, "its kernels take longer")
NODE = Verdict(None, "n0", (0, 1), "GPU", 2.0, 2, "its kernels take longer")
OTHER = Verdict(2, "n1", (2,), "GPU", 2.0, 2, "its kernels take longer")
FINE = {0: 1.0, 1: 1.0, 2: 1.0}


@pytest.mark.parametrize(
    ("reports", "stops"),
    [
        ([(0.5, SLOW), (0.5, SLOW)], [[], []]),
        ([(0.5, None), (0.5, None), (0.5, None)], [[], [], []]),
        ([(0.5, None), (0.5, None), (0.5, SLOW)], [[], [], [SLOW]]),
        ([(0.5, None), (0.5, None), (0.5, NODE)], [[], [], [NODE]]),
        ([(0.5, None), (0.5, None), (0.5, OTHER)], [[], [], []]),
        ([(0.5, SLOW), (1.0, SLOW), (0.5, SLOW), (0.5, SLOW), (0.5, SLOW)], [[], [], [], [], [SLOW]]),
    ],
    ids=range(6),
)
def test_low_scores_are_confirmed_by_a_verdict(
    reports: list[tuple[float, Verdict | None]], stops: list[list[Verdict]]
) -> None:
    confirmation, found = Confirmation(), []
    for score, verdict in reports:
        scores = {"gpu_relative_perf_scores": FINE | {1: score}, "gpu_individual_perf_scores": FINE}
        one = report(**scores, _verdicts=() if verdict is None else (verdict,))
        found.append(confirmation.of(findings(one, SETTINGS), one))
    assert found == stops


def test_the_nodes_to_leave_out_are_those_of_the_verdicts() -> None:
    again = Verdict(0, "n0", (0,), "host", 1.5, 2, "it waits for a CPU")
    blamed = suspects([SLOW, OTHER, again])
    assert [(one["suspect"], one["ranks"]) for one in blamed] == [("n0", [0, 1]), ("n1", [2])]
    assert blamed[0]["facts"] == f"the job was stopped for a straggler; {SLOW}; {again}"
    assert [(one["suspect"], one["ranks"]) for one in suspects([NODE])] == [("n0", [0, 1])]


@pytest.mark.parametrize(
    ("threshold", "blamed"), [(0.4, []), (0.7, [("n0", [1])]), (0.92, [("n0", [1]), ("n1", [2])]), (2.0, [])]
)
def test_by_scores_they_are_those_of_the_ranks_below(
    threshold: float, blamed: list[tuple[str, list[int]]]
) -> None:
    """Where all ranks are below, no node is to blame."""
    one = report()
    found = suspects_by_score(
        findings(one, replace(SETTINGS, individual=False, relative_threshold=threshold)), one
    )
    assert [(each["suspect"], each["ranks"]) for each in found] == blamed


def test_they_are_where_the_next_attempt_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    record_suspects(suspects([SLOW]))
    (event,) = read_run(str(tmp_path), frozenset(("node_suspected",)))
    assert (event.node, event.get("cycle")) == (socket.gethostname(), 2)
    assert account_of([event]).suspected == ("n0",)
    assert incidents([event]) == []
    monkeypatch.delenv("HOLDFAST_RUN_DIR")
    record_suspects(suspects([SLOW]))  # nowhere to write it


# -- A straggler in a real job, under ft_launcher and under plain `python`


ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "straggler.py"
PATHS = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def saved_step(folder: Path) -> int:
    return int(torch.load(folder / "stops" / "last.ckpt", weights_only=False)["global_step"])


@pytest.mark.slow
def test_three_ranks_end_once_a_verdict_confirms_it(spawn: Spawner, tmp_path: Path) -> None:
    """And what decides on the next attempt knows which node is to be left out."""
    preload, env = preloading.lightning(tmp_path / "installed")
    run_dir, env = tmp_path / "run", env | {"TMPDIR": str(tmp_path)}  # torch leaves an empty folder there
    holdfast = [sys.executable, "-m", "holdfast"]
    launcher = ["-m", "holdfast.fault_tolerance.launcher", preload, "--nproc-per-node=3", "--max-restarts=0"]
    chain = [*holdfast, "autoresume", "--run-dir", run_dir, "--max-failures=1", "--", sys.executable]
    job = spawn([*chain, *launcher, PROGRAM, tmp_path], env=env)
    assert job.wait(200) == 1, job.output()
    said = job.err()
    # Each rank has 7 batches of an epoch; told not to stop, it did not, though there were reports with a straggler.
    # Who waits for rank 0's buffers is no straggler.
    for name in ("goes_on", "late"):
        assert len(re.findall(rf"{name}: rank \d trained 35 steps", job.out())) == 3, job.output()
    warning = "Section training_step is slower on some ranks. Affected ranks: {StragglerId(rank=1, node="
    assert said.count(f"STRAGGLER DETECTION WARNING: {warning}") >= 2
    worst, best = r"  Rank=1 Node=\S+ Score=0\.\d\d", r"  Rank=\d Node=\S+ Score=1\.00"
    title = r"^Section relative performance \(training_step\):$"
    assert re.search(rf"{title}\n{worst}\n.*\n{best}$", said, re.M)
    times = len(re.findall(r"^Straggler report processing time: \d\.\d{3} sec\.$", said, re.M))
    reports = len(re.findall(title, said, re.M))
    # Rank 0 leaves a report out where the one before is not made yet; others have taken part in its exchange.
    assert times > 3 * reports if "reports were left out" in said else times == 3 * reports

    assert (
        "stop_if_detected: the job ends when a score is below its threshold in three successive reports"
        in said
    )
    assert "the default: one low score, as stop_on='scores' takes, may be noise" in said
    assert re.search(
        r"^The job ends for rank 1 \(node \S+\): section, \d+\.\d+ × slower since report", said, re.M
    )
    ends = re.findall(r"stops: rank (\d) exits with 1 at (\d+), job\.should_stop=True", job.out())
    assert sorted(ends) == [(str(rank), str(saved_step(tmp_path))) for rank in range(3)], job.output()
    assert len(re.findall(r"^Detected stragglers\. Terminating training\.\.\.$", said, re.M)) == 3
    assert f"Saved {tmp_path}/stops/last.ckpt before terminating" in said

    (attempt,) = Ledger.of(read_records(str(run_dir / LEDGER))[0]).attempts
    assert attempt.suspected == nodes_to_exclude([attempt]) == (socket.gethostname(),)
    stopped = r"the job was stopped for a straggler; rank 1 \(node \S+\): section, \d+\.\d+ × slower"
    for command in ("incidents", "nodes"):
        told = spawn([*holdfast, command, run_dir], env=env)
        assert told.wait(60) == 0, told.output()
        assert re.search(stopped, " ".join(told.out().split())), told.output()


@pytest.mark.slow
def test_one_rank_under_plain_python(spawn: Spawner, tmp_path: Path) -> None:
    """And what a logger has of it, which is on the disk although the job ended early."""
    job = spawn([sys.executable, PROGRAM, tmp_path], env=PATHS | {"TMPDIR": str(tmp_path)})
    assert job.wait(150) == 1, job.output()
    said = job.output()
    assert "Section training_step became slower on some ranks. Affected ranks: {StragglerId(rank=0" in said
    assert said.count("Detected stragglers. Terminating training...") == 1
    values = of_csv(tmp_path)
    kinds = [f"section_{kind}_perf/" for kind in ("relative", "individual")]
    assert {f"{kind}{part}" for kind in kinds for part in ("min", "median", "max")} <= values.keys()
    step, score = values["section_individual_perf/min"][-1]
    assert (step, score < 0.7) == (saved_step(tmp_path) - 1, True)
