"""Writes the table of docs/metrics.md from the launcher's own, and the dashboard from the list of its panels.

    python -m tests.launcher.metrics_page

Does not cover: the text around the table.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.fault_tolerance.launcher.metrics import FAMILIES

ROOT = Path(__file__).parents[2]
PAGE, DASHBOARD = ROOT / "docs" / "metrics.md", ROOT / "examples" / "grafana" / "holdfast.json"
BEGIN, END = "<!-- begin: metrics -->", "<!-- end -->"
HEAD = ["| metric | type | labels | meaning |", "|---|---|---|---|"]

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
JOB = 'run_id=~"$run_id"'
PANELS = (
    # kind, title, unit, columns of 24, rows, (query, legend)
    ("stat", "State", "none", 6, 5, [(f'holdfast_job_state{{{JOB}}} == 1', "{{node}}: {{state}}")]),
    ("stat", "Cycle", "none", 3, 5, [(f"max(holdfast_cycle{{{JOB}}})", "cycle")]),
    ("stat", "Ranks running", "none", 3, 5, [
        (f"sum(holdfast_ranks_running{{{JOB}}})", "running"), (f"sum(holdfast_ranks{{{JOB}}})", "all")]),
    ("stat", "Goodput", "percentunit", 3, 5, [
        (f'sum(holdfast_goodput_seconds{{{JOB}, bucket="training"}}) / sum(holdfast_goodput_seconds{{{JOB}}})',
         "share")]),
    ("stat", "Last failure", "s", 6, 5, [
        (f"max(holdfast_last_failure_detect_seconds{{{JOB}}})", "detected after"),
        (f"max(holdfast_last_failure_resume_seconds{{{JOB}}})", "resumed after")]),
    ("stat", "Spare and suspected nodes", "none", 3, 5, [
        (f"max(holdfast_spare_nodes{{{JOB}}})", "spare"), (f"max(holdfast_nodes_suspected{{{JOB}}})", "suspected")]),
    ("timeseries", "Steps per second", "none", 12, 8, [
        (f"holdfast_rank_steps_per_second{{{JOB}}}", "{{node}} rank {{local_rank}}")]),
    ("timeseries", "Time since the last heartbeat", "s", 12, 8, [
        (f"holdfast_rank_heartbeat_age_seconds{{{JOB}}}", "{{node}} rank {{local_rank}}")]),
    ("timeseries", "Step", "none", 12, 8, [(f"holdfast_rank_step{{{JOB}}}", "{{node}} rank {{local_rank}}")]),
    ("timeseries", "Open sections: share of the timeout", "percentunit", 12, 8, [
        (f"holdfast_rank_section_age_seconds{{{JOB}}} / holdfast_rank_section_limit_seconds{{{JOB}}}",
         "{{node}} rank {{local_rank}} {{section}}")]),
    ("timeseries", "Where the time went", "s", 12, 8, [
        (f"sum by (bucket) (holdfast_goodput_seconds{{{JOB}}})", "{{bucket}}")]),
    ("timeseries", "Incidents in an hour", "none", 6, 8, [
        (f"sum by (kind) (increase(holdfast_incidents_total{{{JOB}}}[1h])) > 0", "{{kind}}")]),
    ("timeseries", "Restarts", "none", 6, 8, [
        (f"sum by (cause) (holdfast_restarts_total{{{JOB}}}) > 0", "{{cause}}")]),
    ("timeseries", "Stragglers", "none", 12, 8, [
        (f"holdfast_straggler_findings{{{JOB}}}", "findings"),
        (f"holdfast_straggler_slowdown_ratio{{{JOB}}}", "largest slowdown")]),
    ("table", "Launchers that have ended", "none", 12, 8, [(f"holdfast_exit_code{{{JOB}}}", "exit code")]),
)  # fmt: skip


def page(text: str) -> str:
    """`text` with the table as it is today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = []
    for each in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        rows.append(f"| `holdfast_{each.name}` | {each.type} | {labels} | {each.meaning} |")
    return "\n".join([before + BEGIN, "", *HEAD, *rows, "", END]) + after


def dashboard() -> str:
    """The dashboard: Grafana's JSON model of schema version 39, as Grafana 11 and newer write and read it."""
    panels: list[dict[str, Any]] = []
    x = y = 0
    for number, (kind, title, unit, width, height, queries) in enumerate(PANELS, 1):
        if x + width > 24:
            x, y = 0, y + panels[-1]["gridPos"]["h"]
        instant = {"instant": True, "format": "table"} if kind == "table" else {}
        targets = [
            {
                "datasource": DATASOURCE,
                "refId": chr(65 + at),
                "expr": query,
                "legendFormat": legend,
                **instant,
            }
            for at, (query, legend) in enumerate(queries)
        ]
        named = {"textMode": "name"} if title == "State" else {}
        last = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, **named}
        panels.append(
            {
                "id": number,
                "type": kind,
                "title": title,
                "datasource": DATASOURCE,
                "gridPos": {"x": x, "y": y, "w": width, "h": height},
                "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
                "options": last if kind == "stat" else {},
                "targets": targets,
            }
        )
        x += width
    run = "label_values(holdfast_ranks, run_id)"
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "run_id",
            "label": "Run",
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"query": run, "refId": "run_id", "qryType": 5},
            "definition": run,
            "refresh": 2,
            "sort": 2,
            "includeAll": False,
            "multi": False,
        },
    ]
    found = {
        "uid": "holdfast-job",
        "title": "Holdfast job",
        "tags": ["holdfast"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": panels,
    }
    return json.dumps(found, indent=2) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    DASHBOARD.parent.mkdir(exist_ok=True)
    DASHBOARD.write_text(dashboard(), encoding="utf-8")
