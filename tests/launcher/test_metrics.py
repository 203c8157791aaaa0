"""Metrics of real jobs with `--ft-metrics-file` and `--ft-metrics-port`; and their table, page and dashboard."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import socket
import stat
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.cli.main import main
from holdfast.fault_tolerance.board.values import Identity, Limits, OpenSection, Snapshot
from holdfast.fault_tolerance.launcher.exit_codes import Outcome
from holdfast.fault_tolerance.launcher.metrics import EVENTS, FAMILIES, INCIDENTS, STATES, JobMetrics
from holdfast.journal.event import Event
from holdfast.journal.goodput import BUCKETS
from tests.jobs import Job, Jobs
from tests.processes import Spawner, free_port, wait_until

CRASHES_ONCE = """
client = connect()
step = 0
while not told(f"over-{CYCLE}"):
    step += 1
    with client.section("step"):
        client.heartbeat(step)
        time.sleep(0.02)
meet()
if CYCLE == 0 and RANK == 1:
    kill_me(signal.SIGKILL)
"""
"""Each cycle ends when the test has made the file `over-<cycle>`: by a crash, then well."""
LIMITS = "--ft-rank-section-timeouts=step:60"
RESTARTS = "--max-restarts=3"


def scrape(port: int) -> Values:
    """What the port serves; empty where nothing listens. At most ten times a second: to parse it takes long."""
    time.sleep(0.1)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            return samples(answer.read().decode())
    except OSError:
        return {}


def read(file: Path) -> Values:
    return samples(file.read_text()) if file.exists() else {}


def trains(cycle: int, found: Values) -> bool:
    """Whether both ranks of this cycle have done steps for two readings."""
    is_new = found.get(("holdfast_cycle",)) == cycle
    return is_new and all(("holdfast_rank_steps_per_second", rank) in found for rank in "01")


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """For metrics, in a folder of its own."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "job.prom"


@pytest.mark.slow
def test_crash_and_restart_are_exported(
    jobs: Jobs, port: int, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = jobs(CRASHES_ONCE, LIMITS, RESTARTS, f"--ft-metrics-port={port}", "--ft-metrics-file=out/job.prom")

    def both_train() -> tuple[Values, Values] | None:
        """What the port and the file say, of a moment at which rank 0 did the steps that it meant to do."""
        of_port, of_file = scrape(port), read(file)
        if trains(0, of_port) and trains(0, of_file) and of_port["holdfast_rank_step", "0"] > 5:
            if 0 < of_port["holdfast_rank_steps_per_second", "0"] < 60:
                return of_port, of_file
        return None

    found, written = wait_until(both_train)
    assert found["holdfast_job_state", "running"] == 1
    assert found["holdfast_ranks",] == found["holdfast_ranks_running",] == 2
    assert found["holdfast_rank_heartbeat_age_seconds", "1"] < 60
    assert found["holdfast_rank_section_limit_seconds", "1", "step"] == 60
    assert found["holdfast_goodput_seconds", "training"] > 0
    assert ("holdfast_exit_code",) not in found
    assert {name for name, *_ in written} == {name for name, *_ in found}

    job.tell("over-0")
    wait_until(lambda: trains(1, read(file)))

    def restarted() -> Values | None:
        new = scrape(port)
        return new if new.get(("holdfast_restarts_total", "crash")) == 1 else None

    found = wait_until(restarted)
    assert found["holdfast_incidents_total", "crash"] == 1
    assert 0 < found["holdfast_last_failure_resume_seconds",] < 60

    job.tell("over-1")
    job.end(0)
    found = read(file)
    assert found["holdfast_job_state", "ended"] == 1 and found["holdfast_exit_code",] == 0
    assert found["holdfast_ranks_running",] == 0
    counted = {key: value for key, value in found.items() if key[0].endswith("_total") and value}
    assert counted == {("holdfast_restarts_total", "crash"): 1, ("holdfast_incidents_total", "crash"): 1}
    assert main(["goodput", str(job.run_dir), "--json"]) == 0
    for bucket, seconds in json.loads(capsys.readouterr().out)["seconds"].items():
        at_least = 0.0 if bucket == "stopping" else seconds - 0.01  # it is written before the launcher's exit
        assert at_least <= found["holdfast_goodput_seconds", bucket] <= seconds + 0.01
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert [path.name for path in file.parent.iterdir()] == ["job.prom"]
    assert scrape(port) == {}, "the port is closed"


def test_stop_signal_leaves_the_last_state_and_nothing_else(jobs: Jobs, port: int, file: Path) -> None:
    job = jobs("say('started'); wait()", f"--ft-metrics-port={port}", f"--ft-metrics-file={file}")
    job.hear("started", ranks=[0, 1])
    os.kill(job.pid, signal.SIGINT)
    assert "FAILED" not in job.end(130)
    found = read(file)
    assert found["holdfast_job_state", "ended"] == 1 and found["holdfast_exit_code",] == 130
    assert found["holdfast_incidents_total", "preemption"] == 1
    assert [path.name for path in file.parent.iterdir()] == ["job.prom"]
    assert scrape(port) == {}


def refused(job: Job) -> str:
    """The one line with which it was refused, before a rank was started."""
    said = job.end(Outcome.USAGE.code)
    assert job.spawned.out() == ""
    (line,) = said.splitlines()
    return line


def test_file_that_cannot_be_written_is_refused(jobs: Jobs) -> None:
    (jobs.folder / "null.prom").symlink_to("/dev/null")
    for path, why in (
        ("missing/job.prom", "No such file or directory"),
        ("null.prom", "it is no regular file"),
    ):
        line = refused(jobs("say('started')", "--ft-metrics-file", path))
        assert line.startswith("ft_launcher: error: --ft-metrics-file: /")
        assert f"{path} cannot be written: {why}" in line
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_taken_port_is_refused(jobs: Jobs) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        line = refused(jobs("say('started')", f"--ft-metrics-port={port}"))
    text = f"--ft-metrics-port: 127.0.0.1 port {port} cannot be used: Address already in use"
    assert line == f"ft_launcher: error: {text}"


def test_missing_package_is_one_line_and_the_file_does_without(jobs: Jobs) -> None:
    (jobs.folder / "without").mkdir()
    (jobs.folder / "without" / "prometheus_client.py").write_text("raise ImportError('not here')")
    paths = {"PYTHONPATH": f"{jobs.folder}/without:{Path(__file__).parents[2] / 'src'}"}
    line = refused(jobs("say('started')", f"--ft-metrics-port={free_port()}", env=paths))
    assert "prometheus-client is not installed" in line and "pip install prometheus-client" in line
    jobs("say('started')", "--ft-metrics-file=job.prom", env=paths).end(0)
    assert read(jobs.folder / "job.prom")["holdfast_job_state", "ended"] == 1


def test_launcher_without_the_options_imports_none_of_it(jobs: Jobs) -> None:
    job = jobs("say('started')", env={"PYTHONPROFILEIMPORTTIME": "1"})
    imported = set(re.findall(r"^import time:.*\| +([\w.]+)$", job.end(0), re.MULTILINE))
    assert "holdfast.fault_tolerance.launcher.launch" in imported
    unwanted = {"launcher.exporter", "launcher.metrics", "prometheus_client", "wsgiref", "http.server"}
    assert [name for name in imported if any(each in name for each in unwanted)] == []


@pytest.mark.slow
def test_full_disk_costs_one_warning_and_keeps_the_file_whole(jobs: Jobs, small_disk: Path) -> None:
    file = small_disk / "job.prom"
    job = jobs(CRASHES_ONCE, LIMITS, RESTARTS, f"--ft-metrics-file={file}")
    wait_until(lambda: trains(0, read(file)))
    with open(small_disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(bytes(4096))
    job.wait_for("the metrics cannot be written")
    before = read(file)
    job.tell("over-0")
    job.wait_for("resumed")
    job.tell("over-1")
    said = job.end(0)
    assert said.count("metrics") == 1 and "No space left on device" in said
    assert read(file) == before and before["holdfast_job_state", "running"] == 1
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "job.prom"]


@pytest.mark.slow
def test_scrapers_that_never_read_and_a_removed_folder_delay_nothing(
    jobs: Jobs, port: int, file: Path
) -> None:
    job = jobs(CRASHES_ONCE, LIMITS, RESTARTS, f"--ft-metrics-port={port}", f"--ft-metrics-file={file}")
    wait_until(lambda: trains(0, scrape(port)) and trains(0, read(file)))
    shutil.rmtree(file.parent)
    job.wait_for("the metrics cannot be written")
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    for number, connection in enumerate(held):
        if number % 2:
            with suppress(OSError):  # closed, since there are too many
                connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 100)
    try:
        job.tell("over-0")
        resumed = job.wait_for(r"resumed (\S+) s after")
        assert float(resumed.group(1)) < 10, "it waited until they were closed"
        wait_until(lambda: scrape(port), what="slow scrapers are closed after 10 s")
        file.parent.mkdir()
        wait_until(lambda: trains(1, read(file)))
        job.tell("over-1")
        said = job.end(0)
    finally:
        for connection in held:
            connection.close()
    assert "Traceback" not in said and "No such file or directory" in said
    assert said.count("metrics") == 1, "it is logged once"
    assert read(file)["holdfast_restarts_total", "crash"] == 1


# -- straggler reports of a job with a restart ---------------------------------------------------------------

PROGRAM = """
import time
import torch.distributed as dist
from holdfast.straggler import Detector
dist.init_process_group("gloo")
Detector.initialize()
for step in range(1, 31):
    with Detector.detection_section("data_loading", profile_cuda=False):
        time.sleep(0.2 if RANK == 1 else 0.02)
    if step % 5 == 0:
        Detector.generate_report()
if CYCLE == 0:
    os._exit(1)  # without shutdown
Detector.shutdown()
dist.barrier()
dist.destroy_process_group()
"""


def test_reports_of_both_cycles_are_told(jobs: Jobs, spawn: Spawner) -> None:
    started = jobs(PROGRAM, "--max-restarts", "1", "--ft-metrics-file=job.prom", nproc=4)
    said = started.end(0)

    def read(command: str) -> list[dict[str, Any]]:
        process = spawn([sys.executable, "-m", "holdfast", command, str(started.run_dir), "--json"])
        assert process.wait() == 0, process.err()
        found: list[dict[str, Any]] = json.loads(process.out())
        return found

    told = read("stragglers")
    assert [one["cycle"] for one in told][-6:] == [1] * 6 and {one["cycle"] for one in told} == {0, 1}
    named = {(one["cycle"], verdict["rank"]) for one in told for verdict in one["verdicts"]}
    assert named == {(0, 1), (1, 1)}
    assert [one["kind"] for one in read("incidents")] == ["exit"]
    assert (started.run_dir / "straggler-state.rank-0.npz").exists()
    # Once in each cycle, or again after a clearance.
    assert said.count("STRAGGLER: rank 1 (node ") >= 2

    metrics = samples((jobs.folder / "job.prom").read_text())
    verdicts = told[-1]["verdicts"]  # none on a machine that is busy with other work meanwhile
    assert metrics["holdfast_straggler_findings",] == len(verdicts)
    if verdicts:
        slowdown = verdicts[0]["slowdown"]
        assert metrics["holdfast_straggler_slowdown_ratio",] == pytest.approx(slowdown, abs=0.01)


# -- the metrics' table, their text, and what shows them: the page and the dashboard. No process


DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana" / "holdfast.json"
Values = dict[tuple[str, ...], float]
NOTHING: tuple[float, dict[int, Snapshot]] = (0.0, {})


def samples(text: str) -> Values:
    """Every sample by its name and the values of its labels, without those of all samples."""
    found = {}
    for sample in (each for family in text_string_to_metric_families(text) for each in family.samples):
        labels = sorted(sample.labels.keys() - {"run_id", "node"})
        found[(sample.name, *(sample.labels[each] for each in labels))] = sample.value
    return found


def of_kind(found: Values, name: str) -> Values:
    """The samples of this name that are not 0, by their first label."""
    return {key[1:]: value for key, value in found.items() if key[0] == name and value}


def event(kind: str, mono: float, **fields: object) -> Event:
    return Event(kind, 1000.0 + mono, mono, "a", fields, "a")


def board(cycle: int = 0, step: int | None = 5, sections: tuple[OpenSection, ...] = ()) -> Snapshot:
    limits = Limits(sections={"step": 30.0, "free": None})
    identity = Identity(100, 1, 0, 0, cycle, 1)
    heartbeat = 2_000_000_000
    return Snapshot(identity, True, False, 1, 3, heartbeat, step, 1, sections, 0, 1, 0, limits, None, True)


def start(metrics: JobMetrics, cycle: int, mono: float) -> None:
    metrics.take(event("cycle_start", mono, cycle=cycle))
    metrics.take(event("rank_start", mono, cycle=cycle, rank=0, local_rank=0, pid=100 + cycle))


def crash(metrics: JobMetrics, cycle: int, mono: float) -> None:
    end = {"cycle": cycle, "rank": 0, "pid": 100 + cycle, "signal": "SIGSEGV", "meaning": "SIGSEGV"}
    metrics.take(event("rank_exit", mono, **end))
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
    boards = {0: board(sections=(OpenSection(odd, 1_000_000_000),))}
    text = metrics.text(1003.0, 3.0, (3.0, boards), (0, False), None)
    assert samples(text)["holdfast_rank_section_age_seconds", "0", odd] == 2.0
    (cycle,) = (each for each in text_string_to_metric_families(text) if each.name == "holdfast_cycle")
    assert cycle.samples[0].labels["run_id"] == 'a"\\b\nc'


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
    why = {"cause": "exit", "sentence": "Rank 0 has ended itself.", "confidence": "high"}
    metrics.take(event("incident", 4.5, cycle=0, rank=0, **why))
    for now in (8.5, 30.0, 70.0):
        found = values(metrics, now)
        assert of_kind(found, "holdfast_incidents_total") == {("exit",): 1.0}
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
    slow = [{"rank": 3, "kind": "GPU", "slowdown": 1.4}, {"rank": 4, "kind": "host", "slowdown": 1.2}]
    report = event("straggler_report", 5.0, verdicts=slow)
    found = samples(job().text(1006.0, 6.0, NOTHING, (0, False), report))
    assert found["holdfast_straggler_findings",] == 2 and found["holdfast_straggler_slowdown_ratio",] == 1.4


def test_dashboard_queries_only_what_exists() -> None:
    found = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    labels = {each.name: {"run_id", "node", *each.labels} for each in FAMILIES}
    queries = [target["expr"] for panel in found["panels"] for target in panel["targets"]]
    queries += [each["definition"] for each in found["templating"]["list"] if "definition" in each]
    named = {name for query in queries for name in re.findall(r"holdfast_(\w+)", query)}
    assert len(named) > 10 and named <= labels.keys()
    for query in queries:
        allowed = set.union(*(labels[name] for name in re.findall(r"holdfast_(\w+)", query)))
        used = re.findall(r"(\w+)=~?\"", query) + re.findall(r"by \((\w+)\)", query)
        assert set(used) <= allowed, query
    ids = [panel["id"] for panel in found["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in found["panels"]]
    cells = []
    for at in places:
        rows = range(at["y"], at["y"] + at["h"])
        cells += itertools.product(range(at["x"], at["x"] + at["w"]), rows)
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
