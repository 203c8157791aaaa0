"""The corpus of faults, what counts as right, the pages of what was measured; and that compared faults can be done."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare import FAULTS, Contender
from benchmarks.faults import page
from benchmarks.faults import score as scoring
from benchmarks.faults.corpus import MOMENTS, TOTAL, Fault, Scenario, choose, faults, scenarios
from benchmarks.faults.injection import result
from benchmarks.faults.run import HOLDFAST, TORCHRUN, command
from benchmarks.faults.score import Facts, Report, Score, named_rank, recovered, scored
from benchmarks.table import filled, percentile

ROOT = Path(__file__).resolve().parents[2]


def one(name: str) -> Scenario:
    """The scenario of this name."""
    return next(each for each in scenarios() if each.name == name)


# What there is


def test_corpus_is_what_its_page_promises() -> None:
    every = faults().values()
    ill = [fault for fault in every if fault.verdict]
    held_out = [fault for fault in ill if fault.held_out]
    assert len(ill) >= 83 and len(every) - len(ill) >= 12
    assert len(held_out) >= 120 and sum(fault.program > 1 for fault in held_out) >= 110
    assert all(fault.what.endswith(".") and fault.do.__name__ == "_" for fault in every)  # no name on a stack
    assert {each.fault.held_out for each in choose(held_out=False)} == {False}
    assert {scenario.phase for scenario in scenarios()} == set(MOMENTS)
    assert {len(scenario.nodes) for scenario in scenarios()} == {1, 2}
    assert {scenario.world for scenario in scenarios()} >= {2, 3, 4, 8}
    names = [scenario.name for scenario in scenarios()]
    assert len(names) == len(set(names))
    for each in scenarios():
        assert 0 <= each.rank < each.world
        # Of two ranks in two collectives the wrong one cannot be named.
        assert each.world > 2 or "mismatched_collective" not in each.kinds[:1]


def test_label_that_is_invalid_is_refused() -> None:
    fine: dict[str, Any] = {"name": "a", "verdict": "lock", "phases": ("step",), "do": print, "what": ""}
    Fault(**fine)
    for changes, words in (
        ({"verdict": "tired"}, "no kind of verdict"),
        ({"phases": ("lunch",)}, "no phase"),
        ({"at": "roof"}, "no place"),
    ):
        with pytest.raises(ValueError, match=words):
            Fault(**{**fine, **changes})


def test_label_of_a_wait_at_the_start_is_startup_too() -> None:
    assert one("lock/init").kinds == ("lock", "startup")
    assert one("sleep/shutdown").kinds == ("user_code", "shutdown")
    assert one("lock/step").kinds == ("lock",)
    assert one("os_exit_0/init").hangs and not one("os_exit_0/step").hangs


def test_scenarios_are_chosen_by_name_and_phase() -> None:
    assert {each.name for each in choose(["lock"], ["init", "step"])} == {"lock/init", "lock/step"}
    assert [each.name for each in choose(["sleep/step/counted"])] == ["sleep/step/counted"]
    ill = {fault.name for fault in faults().values() if fault.verdict}
    assert {each.kind for each in choose(["healthy"])} == set(faults()) - ill
    assert {each.kind for each in choose(one_each=True)} == ill
    assert len(choose(one_each=True)) == len(ill)
    with pytest.raises(ValueError, match="no fault named slep"):
        choose(["slep"])
    with pytest.raises(ValueError, match="no phase named lunch"):
        choose(phases=["lunch"])


def test_the_result_is_known_without_training() -> None:
    assert result(0) == " ".join(["0.00"] * 8)
    assert result(1).split()[0] == f"{-sum((7 + 3 * shard) % 11 for shard in range(16)) / 4:.2f}"


def test_limits_go_to_whom_has_limits() -> None:
    ours = command(HOLDFAST, one("deaf/step"), 0, Path("/f"), 1)
    theirs = command(TORCHRUN, one("deaf/step"), 0, Path("/f"), 1)
    assert "--ft-rank-termination-signal=SIGTERM" in ours
    assert not any("--ft-" in word for word in theirs)
    two = command(HOLDFAST, one("other_node/step"), one("other_node/step").node, Path("/f"), 1)
    assert "--ft-param-rank_heartbeat_timeout=18" in two and "--nnodes=2" in two


# What counts

LOCK = one("lock/step")
VERDICT = {"kind": "lock", "rank": LOCK.rank, "node": "node-a:7", "confidence": "high"}
EVENTS: list[dict[str, Any]] = [
    {"kind": "cycle_start", "cycle": 0, "mono": 10.0},
    {"kind": "verdict", "mono": 23.1, "waited": 3.1, "limit": 3.0},
    {"kind": "signal_sent", "mono": 23.4},
    {"kind": "incident", "cycle": 0, "mono": 23.5, "evidence_mono": 23.3},
    {"kind": "cycle_start", "cycle": 1, "mono": 24.0},
    {"kind": "signal_sent", "mono": 24.5},
]
RIGHT = Facts(
    codes=(0,) * len(LOCK.nodes),
    happened=20.0,
    result=result(TOTAL),
    cycles=2,
    journals=(tuple(EVENTS),),
    reports=(Report("incidents/0001", VERDICT, 1, 0, tuple(range(LOCK.world)), 30),),
)


def with_verdict(**changes: object) -> Facts:
    """RIGHT with another verdict."""
    return replace(RIGHT, reports=(replace(RIGHT.reports[0], verdict={**VERDICT, **changes}),))


def without(kind: str) -> Facts:
    """RIGHT without these events."""
    return replace(RIGHT, journals=(tuple(event for event in EVENTS if event["kind"] != kind),))


def test_everything_right() -> None:
    score = scored(LOCK, RIGHT)
    assert score.right and score.before_kill and score.complete and not score.remarks
    assert score.to_find == pytest.approx(3.1) and score.ready == pytest.approx(0.3)
    assert score.verdict == f"rank {LOCK.rank}, lock, high"


def test_nothing_at_all_is_wrong_in_everything() -> None:
    score = scored(LOCK, Facts(codes=(1,)))
    assert not (score.found or score.culprit or score.kind_right or score.before_kill or score.complete)
    assert not score.recovered and score.clean and not score.wrong_and_sure
    assert "the fault did not happen" in score.remarks


def test_the_report_that_has_most_counts() -> None:
    elsewhere = {"kind": "elsewhere", "rank": None, "confidence": "high"}
    less = Report("run-b/incidents/0001", elsewhere, 1, 0, (0,), 9)
    assert scored(LOCK, replace(RIGHT, reports=(less, *RIGHT.reports))).right
    wrong = replace(less, verdict={"kind": "stopped", "rank": 0, "confidence": "high"})
    assert scored(LOCK, replace(RIGHT, reports=(wrong, *RIGHT.reports))).wrong_and_sure
    later = replace(RIGHT.reports[0], cycle=1)
    assert not scored(LOCK, replace(RIGHT, reports=(later,))).culprit


OTHER = (LOCK.rank + 1) % LOCK.world


@pytest.mark.parametrize(
    ("changes", "culprit", "kind", "wrong_and_sure"),
    [
        ({"rank": OTHER}, False, True, True),
        ({"rank": OTHER, "confidence": "low"}, False, True, False),
        ({"kind": "gil"}, True, False, True),
    ],
)
def test_a_wrong_verdict_is_worse_when_certain(
    changes: dict[str, object], culprit: bool, kind: bool, wrong_and_sure: bool
) -> None:
    score = scored(LOCK, with_verdict(**changes))
    assert (score.culprit, score.kind_right, score.wrong_and_sure) == (culprit, kind, wrong_and_sure)
    assert not score.right


def test_whom_a_fault_names_depends_on_what_it_is() -> None:
    assert not scored(LOCK, replace(RIGHT, happened=60.0)).found  # noticed before it happened
    slow = one("all_slow/step")
    assert not scored(slow, with_verdict(kind="slow")).culprit
    assert scored(slow, with_verdict(kind="slow", rank=None)).culprit


def test_evidence_after_the_kill_is_late() -> None:
    late = [*EVENTS[:3], {**EVENTS[3], "evidence_mono": 23.45}, *EVENTS[4:]]
    assert scored(LOCK, replace(RIGHT, journals=(tuple(late),))).before_kill is False
    assert scored(LOCK, without("incident")).before_kill is False
    assert scored(one("kill_9/step"), RIGHT).before_kill is None


def test_a_report_is_whole_or_it_is_not() -> None:
    changes: list[dict[str, Any]] = [{"ranks": (0,)}, {"lines": 41}, {"lines": 0}, {"schema": 3}]
    for change in changes:
        assert not scored(LOCK, replace(RIGHT, reports=(replace(RIGHT.reports[0], **change),))).complete


def test_what_is_left_and_what_is_not_back() -> None:
    left = scored(LOCK, replace(RIGHT, left=("process 7: sleep",)))
    assert not left.clean and not left.right and left.remarks == ("left: process 7: sleep",)
    assert not recovered(replace(RIGHT, codes=(0, None)))
    assert recovered(replace(RIGHT, codes=(0, None), lost=1))
    assert not recovered(replace(RIGHT, result="0.00"))


def test_a_lost_node_is_named_and_no_rank() -> None:
    lost = one("node_lost/step")
    ranks = tuple(range(sum(lost.nodes[:1])))
    verdict = {"kind": "node_lost", "rank": None, "node": "node-b:12", "confidence": "high"}
    found = replace(RIGHT, codes=(0, None), lost=1, reports=(Report("", verdict, 1, 0, ranks, 20),))
    assert scored(lost, found).right
    blamed = replace(found, reports=(replace(found.reports[0], verdict={**verdict, "node": "node-a"}),))
    assert scored(lost, blamed).wrong_and_sure


def test_a_healthy_job_is_left_alone() -> None:
    quiet = one("quiet/step")
    calm = replace(RIGHT, codes=(0,), cycles=1, journals=(({"kind": "stop", "mono": 1.0},),), reports=())
    assert scored(quiet, calm).right
    assert not scored(quiet, RIGHT).found and scored(quiet, RIGHT).wrong_and_sure


# What is read, and what is said


def test_what_a_job_left_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    run = tmp_path / "run-a"
    (run / "incidents" / "0001").mkdir(parents=True)
    (run / "incidents" / "0002").mkdir()
    (run / "journal-a.jsonl").write_text('{"kind": "verdict", "mono": 1}\n{"kind": "torn')
    (run / "journal-a.rank-0.jsonl").write_text('{"kind": "straggler_report"}\n')
    told = {"schema": 1, "verdict": VERDICT, "nodes": [{"cycle": 2, "ranks": [{"rank": 1}, {"rank": 0}]}]}
    (run / "incidents" / "0001" / "incident.json").write_text(json.dumps(told))
    (run / "incidents" / "0001" / "report.txt").write_text("a\nb\n")
    (run / "incidents" / "0002" / "incident.json").write_text("{")
    (tmp_path / "began-1-0").touch()
    (tmp_path / "happens-1").write_text('{"mono": 4.5}')
    (tmp_path / "happens-0").write_text("{")
    assert scoring.journals(tmp_path) == (({"kind": "verdict", "mono": 1},),)
    [report] = scoring.reports(tmp_path)
    assert (report.cycle, report.ranks, report.lines, report.schema) == (2, (0, 1), 2, 1)
    assert scoring.cycles(tmp_path) == 2 and scoring.happened(tmp_path) == 4.5
    assert scoring.cycles(tmp_path / "none") == 0 and scoring.text(tmp_path / "none") == ""


def test_what_a_peer_names() -> None:
    assert len(LOCK.nodes) == 1
    agent = "E1122 api.py:1] failed (exitcode: -9) local_rank: 1 (pid: 7) of binary: python"
    assert named_rank(agent, LOCK) == 1
    monitor = "[WARNING] [RankMonServer7@node-a:2] Section 'step' has been open for 5.90 seconds.\n" + agent
    assert named_rank(monitor, LOCK) == 2
    assert named_rank("all is well", LOCK) is None
    assert named_rank(agent, one("other_node/step")) is None, "a local rank of which node?"


def test_the_tables() -> None:
    wrong = replace(scored(LOCK, with_verdict(kind="gil")), scenario="lock/init")
    scores: list[Score] = [scored(LOCK, RIGHT), wrong]
    peers = {"torchrun": [Score("lock/step", "lock", held_out=False, healthy=False, culprit=False)]}
    run = page.Run([LOCK], scores, peers, {"hung_filesystem/checkpoint": "fuse needs root"}, 2)
    text = page.tables(run)
    assert "| culprit right | 2 of 2 (100.0 %) | 2 of 2 (100.0 %) | – |" in text
    assert "| wrong with high confidence | 1 | 1 | 0 |" in text
    lock = "| `lock` | A thread takes a lock that it has already."
    assert f"{lock} | 2 | 2 | **1 of 2** | 2 | 2 | 2 | 2 | 3.10 s |" in text
    other = page.peer_table(run)
    assert "| torchrun | 0 of 1 (0.0 %) |" in other and "| Holdfast | 1 of 1 (100.0 %) |" in other
    assert "- `lock/init`: not kind right, not certain of something else" not in text
    assert "- `lock/init`: kind right: no; certain of something else; verdict: rank" in text
    assert "Skipped: hung_filesystem/checkpoint (fuse needs root)" in text


# -- the comparison with torchrun and NVRx: what its page says, and that its faults can be done


MARKS = "<!-- measured -->", "<!-- end -->"
OURS = Contender("holdfast", "Holdfast", sys.executable, "holdfast.fault_tolerance.launcher")


def test_what_was_measured_takes_the_place_of_what_was() -> None:
    begin, end = MARKS
    once = filled(f"Title\n\n{begin}\n{end}\nMore\n", "first", *MARKS)
    assert filled(once, "second", *MARKS) == f"Title\n\n{begin}\nsecond\n{end}\nMore\n"
    with pytest.raises(ValueError, match="no place for it"):
        filled("Title\n", "first", *MARKS)


def test_the_99th_percentile_of_few_values_is_the_largest() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 99) == 99.0 and percentile(values, 50) == 50.0
    assert percentile(values[:50], 99) == max(values[:50])


QUICK = (
    "both ranks exit with 3",
    "the launcher is killed with -9",
    "SIGTERM to every process at once (preemption)",
    "a misspelt key in the YAML",
)


@pytest.mark.slow
@pytest.mark.parametrize("what", QUICK)
def test_a_fault_is_done_and_judged(what: str) -> None:
    """Some of them: `make compare` does them all, and its page would show one that cannot be done."""
    assert FAULTS[what](OURS).good is True
