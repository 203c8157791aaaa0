"""The metrics' table, their text, and what shows them: the page and the dashboard. No process."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from holdfast.fault_tolerance.board.values import Identity, Limits, OpenSection, Snapshot
from holdfast.fault_tolerance.launcher.metrics import EVENTS, FAMILIES, INCIDENTS, STATES, JobMetrics
from holdfast.journal.event import Event
from holdfast.journal.goodput import BUCKETS

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana" / "holdfast.json"
Values = dict[tuple[str, ...], float]
NOTHING: tuple[float, dict[int, Snapshot]] = (0.0, {})


def samples(text: str) -> Values:
    """Every sample by its name and the values of its labels, without those of all samples."""
    return {
        (
            sample.name,
            *(sample.labels[each] for each in sorted(sample.labels.keys() - {"run_id", "node"})),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def event(kind: str, mono: float, **fields: object) -> Event:
    return Event(kind, 1000.0 + mono, mono, "a", fields, "a")


def board(cycle: int = 0, step: int | None = 5, sections: tuple[OpenSection, ...] = ()) -> Snapshot:
    limits = Limits(sections={"step": 30.0, "free": None})
    return Snapshot(
        Identity(100, 1, 0, 0, cycle, 1),
        True,
        False,
        1,
        3,
        2_000_000_000,
        step,
        1,
        sections,
        0,
        1,
        0,
        limits,
        None,
        True,
    )


def start(metrics: JobMetrics, cycle: int, mono: float) -> None:
    metrics.take(event("cycle_start", mono, cycle=cycle))
    metrics.take(event("rank_start", mono, cycle=cycle, rank=0, local_rank=0, pid=100 + cycle))


def crash(metrics: JobMetrics, cycle: int, mono: float) -> None:
    metrics.take(
        event("rank_exit", mono, cycle=cycle, rank=0, pid=100 + cycle, signal="SIGSEGV", meaning="SIGSEGV")
    )
    metrics.take(event("stop", mono, cycle=cycle))
    metrics.take(event("restart", mono, cycle=cycle + 1, restarts_used=1, max_restarts=3))


def job() -> JobMetrics:
    metrics = JobMetrics("run", "a")
    metrics.take(event("run_start", 0.0))
    return metrics


def values(metrics: JobMetrics, now: float, latest: tuple[float, dict[int, Snapshot]] = NOTHING) -> Values:
    return samples(metrics.text(1000.0 + now, now, latest, (0, False), None))


def test_names_units_and_types_follow_the_conventions() -> None:
    for each in FAMILIES:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", each.name)
        assert (each.type == "counter") == each.name.endswith("_total")
        assert not re.search(r"(milli|micro|minute|hour|mega|percent)", each.name)
    assert len({each.name for each in FAMILIES}) == len(FAMILIES)


def test_labels_are_escaped() -> None:
    metrics, odd = JobMetrics('a"\\b\nc', "a"), 'x"\\\n{},='
    start(metrics, 0, 1.0)
    text = metrics.text(
        1003.0, 3.0, (3.0, {0: board(sections=(OpenSection(odd, 1_000_000_000),))}), (0, False), None
    )
    found = samples(text)
    assert found["holdfast_rank_section_age_seconds", "0", odd] == 2.0
    (cycle,) = next(
        each for each in text_string_to_metric_families(text) if each.name == "holdfast_cycle"
    ).samples
    assert cycle.labels["run_id"] == 'a"\\b\nc'


def test_open_sections_have_age_and_limit() -> None:
    metrics = job()
    start(metrics, 0, 1.0)
    open_now = (OpenSection("step", 4_000_000_000), OpenSection("free", 1_000_000_000))
    found = values(metrics, 9.0, (5.0, {0: board(sections=open_now)}))
    assert found["holdfast_rank_section_age_seconds", "0", "step"] == 1.0
    assert found["holdfast_rank_section_limit_seconds", "0", "step"] == 30.0
    assert found["holdfast_rank_section_age_seconds", "0", "free"] == 4.0
    assert ("holdfast_rank_section_limit_seconds", "0", "free") not in found
    assert found["holdfast_rank_heartbeat_age_seconds", "0"] == 3.0, "when the board was read"


def test_rate_of_steps_is_of_this_cycle_only() -> None:
    metrics = job()
    start(metrics, 0, 1.0)
    name = "holdfast_rank_steps_per_second", "0"
    assert name not in values(metrics, 2.0, (2.0, {0: board(step=10)}))
    assert name not in values(metrics, 3.0, (2.0, {0: board(step=10)})), "the boards were not read since"
    assert values(metrics, 4.0, (4.0, {0: board(step=14)}))[name] == 2.0
    crash(metrics, 0, 5.0)
    start(metrics, 1, 6.0)
    old = values(metrics, 6.0, (5.0, {0: board(step=14)}))
    assert ("holdfast_rank_step", "0") not in old, "these boards are of the cycle before"
    assert name not in values(metrics, 7.0, (7.0, {0: board(cycle=1, step=3)}))


def test_states_and_kinds_are_closed_sets_from_the_start() -> None:
    found = values(job(), 1.0)
    assert {key[1] for key in found if key[0] == "holdfast_job_state"} == set(STATES)
    assert {key[1] for key in found if key[0] == "holdfast_incidents_total"} == set(INCIDENTS)
    assert {key[1] for key in found if key[0] == "holdfast_goodput_seconds"} == set(BUCKETS)
    spare = samples(job().text(1001.0, 1.0, NOTHING, (2, True), None))
    assert spare["holdfast_job_state", "spare"] == 1.0 and spare["holdfast_spare_nodes",] == 2.0


def test_incident_is_counted_once_when_its_kind_is_final() -> None:
    metrics = job()
    start(metrics, 0, 1.0)
    crash(metrics, 0, 2.0)
    start(metrics, 1, 3.0)
    assert values(metrics, 4.0)["holdfast_incidents_total", "crash"] == 0
    late = event(
        "incident", 4.5, cycle=0, rank=0, cause="exit", sentence="Rank 0 has ended itself.", confidence="high"
    )
    metrics.take(late)
    for now in (8.5, 30.0, 70.0):
        found = values(metrics, now)
        counted = {
            key[1]: count for key, count in found.items() if key[0] == "holdfast_incidents_total" and count
        }
        assert counted == {"exit": 1.0}
        assert found["holdfast_restarts_total", "exit"] == 1.0
    metrics.end()
    assert values(metrics, 80.0)["holdfast_restarts_total", "exit"] == 1.0


def test_long_job_keeps_a_bounded_number_of_events() -> None:
    metrics = job()
    for cycle in range(EVENTS // 4):
        start(metrics, cycle, 10.0 * cycle + 1.0)
        for second in range(5):
            metrics.take(event("progress", 10.0 * cycle + 2.0 + second, cycle=cycle, ranks=1))
        crash(metrics, cycle, 10.0 * cycle + 8.0)
    metrics.end()
    found = values(metrics, 10.0 * cycle + 9.0)
    assert len(metrics._events) <= EVENTS + 1
    assert sum(found["holdfast_goodput_seconds", each] for each in BUCKETS) > EVENTS


def test_newest_straggler_report_is_shown() -> None:
    one = {"rank": 3, "kind": "GPU", "slowdown": 1.4}
    report = event("straggler_report", 5.0, verdicts=[one], further_verdicts=[[4, "host", 1.2]])
    found = samples(job().text(1006.0, 6.0, NOTHING, (0, False), report))
    assert found["holdfast_straggler_findings",] == 2 and found["holdfast_straggler_slowdown_ratio",] == 1.4


def test_dashboard_queries_only_what_exists() -> None:
    found = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    labels = {each.name: {"run_id", "node", *each.labels} for each in FAMILIES}
    queries = [target["expr"] for panel in found["panels"] for target in panel["targets"]]
    queries += [each["definition"] for each in found["templating"]["list"] if "definition" in each]
    named = {name for query in queries for name in re.findall(r"holdfast_\w+", query)}
    assert len(named) > 10
    assert {name.removeprefix("holdfast_") for name in named} <= labels.keys()
    for query in queries:
        allowed = set.union(
            *(labels[name.removeprefix("holdfast_")] for name in re.findall(r"holdfast_\w+", query))
        )
        used = re.findall(r"(\w+)=~?\"", query) + re.findall(r"by \((\w+)\)", query)
        assert set(used) <= allowed, query
    ids = [panel["id"] for panel in found["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in found["panels"]]
    cells = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
