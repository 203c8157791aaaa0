"""`holdfast diagnose` ends in its time, whatever the processes of the machine do meanwhile."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.incidents.report import store
from tests.incidents.cases_for_reports import NAMES, judged
from tests.processes import Spawned, Spawner, wait_until

SECONDS = 0.5
"""For `--seconds`."""
LATEST = SECONDS + 2.0
"""Seconds after which the command has ended, where it has a core: tests try again until it had one."""

# In a mount namespace of its own, where no environment of the children can be opened: a pipe without a writer is over
# each. A process that is busy with its memory map keeps a reader waiting in the same way.
BLOCKED = """
import os, subprocess, sys, time
parent, fifo = int(sys.argv[1]), sys.argv[2]
for pid in open(f"/proc/{parent}/task/{parent}/children").read().split():
    subprocess.run(["mount", "--bind", fifo, f"/proc/{pid}/environ"], check=True)
from holdfast.cli.main import main
began = time.monotonic()
code = main(["diagnose", *sys.argv[1:2], "--seconds", sys.argv[3]])
print("took", time.monotonic() - began, file=sys.stderr, flush=True)
os._exit(code)  # threads still wait for the pipe
"""

# A tree of sleeping processes: each of the first generation has as many children.
TREE = """
import os, sys, time
first, second = int(sys.argv[1]), int(sys.argv[2])
for _ in range(first):
    if os.fork() == 0:
        for _ in range(second):
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
        os.write(1, b"ready\\n")
        time.sleep(600)
        os._exit(0)
print("runs", flush=True)
time.sleep(600)
"""

# The process that is asked for ends while its command looks at the list of all processes.
ENDS_MEANWHILE = """
import os, signal, sys

def end_once(event, found, done=[]):
    if not done and event == "os.listdir" and str(found[0]) == "/proc":
        done.append(True)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

pid = os.spawnvp(os.P_NOWAIT, "sleep", ["sleep", "600"])
from holdfast.cli.main import main
sys.addaudithook(end_once)
sys.exit(main(["diagnose", str(pid), "--seconds", "0.5"]))
"""


def diagnosed(process: Spawned) -> float:
    """How long the command takes for this process, in seconds."""
    began = time.monotonic()
    assert main(["diagnose", str(process.pid), "--seconds", str(SECONDS)]) == 0
    return time.monotonic() - began


def test_diagnose_of_environments_that_block_ends_in_time(spawn: Spawner, tmp_path: Path) -> None:
    separate = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*separate, "true"], capture_output=True).returncode:
        pytest.skip("a mount namespace takes root")
    process = spawn.python(TREE, "40", "0")
    process.wait_for(lambda: process.out().count("ready") == 40)
    os.mkfifo(tmp_path / "fifo")
    arguments = [str(process.pid), str(tmp_path / "fifo"), str(SECONDS)]

    def in_time() -> bool:
        command = spawn([*separate, sys.executable, "-c", BLOCKED, *arguments])
        assert command.wait() == 0, command.output()
        took = re.search(r"^took (\S+)$", command.err(), re.MULTILINE)
        return took is not None and float(took[1]) < LATEST

    wait_until(in_time)


@pytest.mark.slow
def test_diagnose_of_2000_processes_ends_in_time(spawn: Spawner) -> None:
    process = spawn.python(TREE, "40", "49")
    process.wait_for(lambda: process.out().count("ready") == 40)
    assert len(os.listdir("/proc")) > 2000
    wait_until(lambda: diagnosed(process) < LATEST)


def test_diagnose_of_a_process_that_ends_meanwhile_is_one_line(spawn: Spawner) -> None:
    process = spawn.python(ENDS_MEANWHILE)
    assert process.wait() == 2, process.output()
    (line,) = process.err().splitlines()
    assert line.startswith("holdfast: error: process ")
    assert "ended" in line


# What is written.


@pytest.fixture
def place(tmp_path: Path) -> str:
    """The folder of a report, below one whose name needs quotes."""
    run = tmp_path / "my run; x"
    run.mkdir()
    found = store.allocate_incident_dir(str(run), "run-1", 0)
    store.write_report(found, *judged(NAMES[0]))
    return found


@pytest.mark.parametrize("is_link", [True, False])
def test_page_of_an_incident_replaces_a_file_and_is_private(
    place: str, tmp_path: Path, is_link: bool
) -> None:
    target, page = tmp_path / "target", tmp_path / "page.html"
    target.write_text("precious")
    target.chmod(0o644)
    if is_link:
        page.symlink_to(target)
    else:
        page.touch(0o644)
    assert main(["incidents", place, "--html", str(page)]) == 0
    assert target.read_text() == "precious"
    assert not page.is_symlink()
    assert page.stat().st_mode & 0o777 == 0o600


def test_report_in_a_folder_with_a_space_names_a_command_that_works(place: str) -> None:
    (line,) = [each for each in (Path(place) / "report.txt").read_text().splitlines() if "--html" in each]
    assert shlex.split(line.partition("holdfast ")[2])[:2] == ["incidents", place]
