"""Real jobs with `--ft-metrics-file` and `--ft-metrics-port`: what Prometheus reads, and that it delays nothing."""

from __future__ import annotations

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

from holdfast.cli.main import main
from holdfast.fault_tolerance.launcher.exit_codes import Outcome
from tests.launcher.conftest import Job, Jobs
from tests.launcher.test_metrics_table import Values, samples
from tests.processes import Spawner, wait_until

CRASHES_ONCE = """
client = connect()
step = 0
while not os.path.exists(os.environ["NOTES"] + f"/over-{CYCLE}"):
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


def over(job: Job, cycle: int) -> None:
    (job.notes / f"over-{cycle}").touch()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scrape(port: int) -> Values:
    """What the port serves; empty where nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return samples(answer.read().decode())
    except OSError:
        return {}


def read(file: Path) -> Values:
    return samples(file.read_text()) if file.exists() else {}


def trains(cycle: int, found: Values) -> bool:
    """Whether both ranks of this cycle have done steps for two readings."""
    is_new = found.get(("holdfast_cycle",)) == cycle
    return is_new and all(("holdfast_rank_steps_per_second", rank) in found for rank in "01")


@pytest.mark.slow
def test_crash_and_restart_are_exported(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> None:
    port, file = free_port(), jobs.folder / "out" / "job.prom"
    file.parent.mkdir()
    job = jobs(CRASHES_ONCE, LIMITS, RESTARTS, f"--ft-metrics-port={port}", "--ft-metrics-file=out/job.prom")
    wait_until(lambda: trains(0, scrape(port)) and trains(0, read(file)))
    found = scrape(port)
    assert found["holdfast_job_state", "running"] == 1
    assert found["holdfast_ranks",] == found["holdfast_ranks_running",] == 2
    assert found["holdfast_rank_step", "0"] > 5
    assert 0 < found["holdfast_rank_steps_per_second", "0"] < 60
    assert found["holdfast_rank_heartbeat_age_seconds", "1"] < 30
    assert found["holdfast_rank_section_limit_seconds", "1", "step"] == 60
    assert found["holdfast_goodput_seconds", "training"] > 0
    assert ("holdfast_exit_code",) not in found
    assert {name for name, *_ in read(file)} == {name for name, *_ in found}

    over(job, 0)
    wait_until(lambda: trains(1, read(file)) and scrape(port)["holdfast_restarts_total", "crash"] == 1)
    found = scrape(port)
    assert found["holdfast_incidents_total", "crash"] == 1
    assert 0 < found["holdfast_last_failure_resume_seconds",] < 30

    over(job, 1)
    job.end(0)
    found = read(file)
    assert found["holdfast_job_state", "ended"] == 1 and found["holdfast_exit_code",] == 0
    assert found["holdfast_ranks_running",] == 0
    counted = {key: value for key, value in found.items() if key[0].endswith("_total") and value}
    assert counted == {("holdfast_restarts_total", "crash"): 1, ("holdfast_incidents_total", "crash"): 1}
    assert main(["goodput", str(job.run_dir), "--json"]) == 0
    for bucket, seconds in json.loads(capsys.readouterr().out)["seconds"].items():
        near = 0.3 if bucket == "stopping" else 0.01  # the file is written before the launcher's exit
        assert found["holdfast_goodput_seconds", bucket] == pytest.approx(seconds, abs=near)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert [path.name for path in file.parent.iterdir()] == ["job.prom"]
    assert scrape(port) == {}, "the port is closed"


def test_stop_signal_leaves_the_last_state_and_nothing_else(jobs: Jobs) -> None:
    port, file = free_port(), jobs.folder / "out" / "job.prom"
    file.parent.mkdir()
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
def test_folder_that_is_removed_costs_one_warning(jobs: Jobs) -> None:
    file = jobs.folder / "out" / "job.prom"
    file.parent.mkdir()
    job = jobs(CRASHES_ONCE, LIMITS, RESTARTS, f"--ft-metrics-file={file}")
    wait_until(lambda: trains(0, read(file)))
    shutil.rmtree(file.parent)
    job.wait_for("the metrics cannot be written")
    over(job, 0)
    job.wait_for("resumed")
    time.sleep(5)  # it is not logged again
    file.parent.mkdir()
    wait_until(lambda: trains(1, read(file)))
    over(job, 1)
    said = job.end(0)
    assert said.count("metrics") == 1 and "No such file or directory" in said
    assert read(file)["holdfast_restarts_total", "crash"] == 1


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
    over(job, 0)
    job.wait_for("resumed")
    over(job, 1)
    said = job.end(0)
    assert said.count("metrics") == 1 and "No space left on device" in said
    assert read(file) == before and before["holdfast_job_state", "running"] == 1
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "job.prom"]


@pytest.mark.slow
def test_scrapers_that_never_read_delay_nothing(jobs: Jobs) -> None:
    port = free_port()
    job = jobs(CRASHES_ONCE, LIMITS, RESTARTS, f"--ft-metrics-port={port}")
    wait_until(lambda: trains(0, scrape(port)))
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    for number, connection in enumerate(held):
        if number % 2:
            with suppress(OSError):  # closed, since there are too many
                connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 100)
    try:
        over(job, 0)
        resumed = job.wait_for(r"resumed (\S+) s after")
        assert float(resumed.group(1)) < 10
        wait_until(lambda: scrape(port), 30.0, "slow scrapers are closed after 10 s")
        over(job, 1)
        began = time.monotonic()
        said = job.end(0)
        assert time.monotonic() - began < 30
        assert "Traceback" not in said
    finally:
        for connection in held:
            connection.close()


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
    assert [verdict["rank"] for verdict in told[-1]["verdicts"]] == [1]
    assert [one["kind"] for one in read("incidents")] == ["exit"]
    assert (started.run_dir / "straggler-state.rank-0.npz").exists()
    assert len(re.findall(r"STRAGGLER: rank 1 \(node ", said)) == 2  # once in each cycle

    metrics = samples((jobs.folder / "job.prom").read_text())
    assert metrics["holdfast_straggler_findings",] == 1
    slowdown = told[-1]["verdicts"][0]["slowdown"]
    assert metrics["holdfast_straggler_slowdown_ratio",] == pytest.approx(slowdown, abs=0.01)
