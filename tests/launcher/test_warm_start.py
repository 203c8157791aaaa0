"""Ranks from standbys, and what happens when zygote or standbys fail: the job continues, and one line reports it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from holdfast.fault_tolerance.launcher.warm.gpu_evidence import PASSED
from holdfast.fault_tolerance.launcher.warm.plan import NOT_TESTED
from holdfast.incidents.capture.waiting_on import system_call
from holdfast.journal.reader import journal_files
from tests.launcher.conftest import LAUNCHER, Job, Jobs
from tests.processes import Spawner, alive, wait_until

CRASHES = "say('pid', os.getpid())\nif CYCLE < {last}: wait()\n"
RESTARTS = ("--ft-warm-start", "on", "--max-restarts", "3")


def starts(job: Job) -> list[tuple[int, str]]:
    """Cycle and kind of start of each rank, in order."""
    return [(record["cycle"], record["start"]) for record in job.journal("rank_start")]


def named(job: Job, what: str) -> list[psutil.Process]:
    """The launcher's processes with this name: `zygote` or `standby`."""
    found = []
    for child in psutil.Process(job.pid).children():
        with suppress(psutil.NoSuchProcess):  # or it has just ended
            if child.name() == f"hf-{what}":
                found.append(child)
    return found


def standbys(job: Job, count: int) -> list[psutil.Process]:
    wait_until(lambda: len(named(job, "standby")) == count, what=f"{count} standbys")
    return named(job, "standby")


def idle_zygote(job: Job) -> psutil.Process:
    """The zygote, once the launcher has been told of all that it has forked: it waits for the next request."""
    (zygote,) = named(job, "zygote")
    wait_until(lambda: system_call(zygote.pid).name in ("recvmsg", "recvfrom"), what="the zygote to wait")
    return zygote


def kill_a_rank(job: Job, cycle: int) -> None:
    pid = int(job.hear(r".*pid (\d+)", ranks=[1], cycle=cycle)[1])
    job.hear(".*pid", ranks=[0], cycle=cycle)
    os.kill(pid, signal.SIGKILL)


def test_ranks_are_standbys_from_the_first_start_on_and_nothing_is_left(jobs: Jobs) -> None:
    """Signals to every process do not end zygote and standbys, and a standby that was killed is made anew."""
    job = jobs(CRASHES.format(last=1), *RESTARTS)
    job.hear("pid", ranks=[0, 1])
    killed = standbys(job, 2)[0]
    for pid in [*(each.pid for each in standbys(job, 2)), idle_zygote(job).pid]:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid, number)
    killed.kill()
    wait_until(
        lambda: killed not in (found := named(job, "standby")) and len(found) == 2, what="a new standby"
    )
    waiting = standbys(job, 2)
    assert all(process.parent() == psutil.Process(job.pid) for process in waiting)
    family = [process.pid for process in psutil.Process(job.pid).children(recursive=True)]
    kill_a_rank(job, 0)
    assert (
        len(job.end(0).splitlines()) == 5
    )  # the start, the failure, the signal to rank 1, the restart, the report
    assert starts(job) == [(0, "warm"), (0, "warm"), (1, "warm"), (1, "warm")]
    begun = {record["pid"] for record in job.journal("rank_start") if record["cycle"] == 1}
    assert begun == {each.pid for each in waiting}
    assert not any(map(alive, family))


def test_a_killed_zygote_costs_its_standbys_nothing_and_ranks_nothing(jobs: Jobs) -> None:
    job = jobs(CRASHES.format(last=3), *RESTARTS)
    job.hear("pid", ranks=[0, 1])
    standbys(job, 2)
    idle_zygote(job).kill()
    job.wait_for(r"warm start: its zygote \(pid \d+\) is lost: it ended\. Ranks start cold")
    for cycle in range(3):  # from the standbys that are there, then cold
        kill_a_rank(job, cycle)
    said = job.end(0)
    assert [kind for _, kind in starts(job)] == ["warm"] * 4 + ["cold"] * 4
    assert said.count("warm start") == 1


def test_a_standby_that_does_not_go_is_replaced_by_a_cold_start(jobs: Jobs) -> None:
    job = jobs(CRASHES.format(last=1), *RESTARTS)
    job.hear("pid", ranks=[0, 1])
    standbys(job, 2)[0].send_signal(signal.SIGSTOP)
    kill_a_rank(job, 0)
    job.end(0)
    assert starts(job)[2:] == [(1, "cold"), (1, "warm")]


def test_a_zygote_that_hangs_is_given_up_when_it_is_needed(jobs: Jobs) -> None:
    job = jobs(CRASHES.format(last=1), *RESTARTS)
    job.hear("pid", ranks=[0, 1])
    waiting = standbys(job, 2)
    idle_zygote(job).send_signal(signal.SIGSTOP)
    for process in waiting:
        process.kill()
    wait_until(lambda: not any(alive(each.pid) for each in waiting))
    kill_a_rank(job, 0)
    job.end(0)
    assert [kind for _, kind in starts(job)][2:] == ["cold", "cold"]


TORCH_IS_AHEAD = """
say("torch is ahead" if "torch" in sys.modules else "torch is missing", "pid", os.getpid())
import torch
if CYCLE < 1: wait()
"""


def test_a_zygote_that_is_killed_while_it_imports_is_tried_again(jobs: Jobs) -> None:
    """A signal from outside says nothing of the module that is being imported at that moment."""
    job = jobs(TORCH_IS_AHEAD, *RESTARTS)
    wait_until(lambda: bool(imports_torch(job)), what="the import of torch in a zygote")
    (zygote,) = imports_torch(job)
    os.kill(zygote, signal.SIGTERM)
    os.kill(zygote, signal.SIGKILL)
    job.hear("torch is ahead", ranks=[0, 1])
    standbys(job, 2)
    kill_a_rank(job, 0)
    job.hear("torch is ahead", ranks=[0, 1], cycle=1)
    assert "not imported ahead" not in job.end(0)
    assert {kind for _, kind in starts(job)} == {"warm"}


def imports_torch(job: Job) -> list[int]:
    """The zygotes that have begun to."""
    found = []
    for zygote in named(job, "zygote"):
        with suppress(OSError):
            if "libtorch_cpu" in Path(f"/proc/{zygote.pid}/maps").read_text():
                found.append(zygote.pid)
    return found


def test_edited_code_is_the_edited_one(jobs: Jobs) -> None:
    (jobs.folder / "helper.py").write_text("VERSION = 'old'\n")
    script = jobs.script("import helper\nsay(helper.VERSION, 'first')\nmeet()\nif CYCLE == 0: wait()\n")
    job = jobs.command("--nproc-per-node", "2", *RESTARTS, str(script))
    job.hear("old first", ranks=[0, 1])
    standbys(job, 2)
    (jobs.folder / "helper.py").write_text("VERSION = 'new one'\n")
    script.write_text(script.read_text().replace("'first'", "'second'"))
    os.kill(job.journal("rank_start")[0]["pid"], signal.SIGKILL)
    job.hear("new one second", ranks=[0, 1], cycle=1)
    job.end(0)
    assert {kind for _, kind in starts(job)} == {"warm"}


def test_a_module_in_the_scripts_folder_hides_an_installed_one(jobs: Jobs) -> None:
    """As in a cold start: the ranks find theirs first."""
    (jobs.folder / "code").mkdir()
    script = jobs.script("import torch\nsay(torch.MINE)\n", "code/train.py")
    (jobs.folder / "code" / "torch.py").write_text("MINE = 'not the one that was imported ahead'\n")
    job = jobs.command("--nproc-per-node", "2", *RESTARTS, str(script))
    job.hear("not the one that was imported ahead", ranks=[0, 1])
    job.end(0)
    assert {kind for _, kind in starts(job)} == {"cold"}


# -- where there is an NVIDIA driver -------------------------------------------------------------------------

# What a training needs of /dev, and the sign of a driver. A container may have no /proc/driver/nvidia.
OWN_DEV = """
set -e
dev=$1; shift
mount -t tmpfs none "$dev"
for name in null zero full random urandom; do touch "$dev/$name"; mount --bind "/dev/$name" "$dev/$name"; done
mkdir "$dev/shm"; mount --bind /dev/shm "$dev/shm"
ln -s /proc/self/fd "$dev/fd"
touch "$dev/nvidiactl"
mount --rbind "$dev" /dev
exec "$@"
"""
LINE = f"[holdfast] ranks start cold: {NOT_TESTED}"


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_the_default_follows_the_evidence(spawn: Spawner, tmp_path: Path, mode: str) -> None:
    """By default warm if the checks on a GPU have passed for this code; else one line tells how to turn it on."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"]).returncode != 0:
        pytest.skip("needs root, for a /dev of its own")
    (tmp_path / "dev").mkdir()
    script = tmp_path / "train.py"
    script.write_text("print('trained')\n")
    under = ["unshare", "--mount", "sh", "-c", OWN_DEV, "sh", tmp_path / "dev"]
    launcher = [*LAUNCHER, "--nproc-per-node=1", "--ft-run-dir", tmp_path / "run", "--ft-warm-start", mode]
    job = spawn([*under, *launcher, script], cwd=tmp_path)
    assert (job.wait(), job.out()) == (0, "trained\n"), job.err()
    (journal,) = (tmp_path / "run").glob("journal-*.jsonl")
    (start,) = [record for record in map(json.loads, journal.open()) if record["kind"] == "rank_start"]
    warm = mode == "on" or (mode == "auto" and bool(PASSED))
    assert start["start"] == ("warm" if warm else "cold")
    assert job.err().splitlines().count(LINE) == (mode == "auto" and not warm)


# -- the examples, warm and cold -----------------------------------------------------------------------------

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = {
    "plain_loop.py": ["--step-seconds=0"],
    "char_transformer/train.py": ["--steps=20"],
}


def train(spawn: Spawner, folder: Path, program: str, mode: str) -> tuple[dict[str, Any], set[str]]:
    """The last checkpoint, and how the ranks were started."""
    place = folder / mode
    flags = ["--nproc-per-node=2", "--max-restarts=1", f"--ft-warm-start={mode}", f"--ft-run-dir={place}.run"]
    words = [f"--dir={place}", *PROGRAMS[program]]
    environment = {"OMP_NUM_THREADS": "1", "HOLDFAST_FAULT": "kill@step=12,rank=1,cycle=0"}
    job = spawn([*LAUNCHER, *flags, str(EXAMPLES / program), *words], env=environment)
    assert job.wait(150) == 0, job.output()
    (journal,) = map(Path, journal_files(f"{place}.run", of_ranks=False))
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [each["cycle"] for each in records if each["kind"] == "restart"] == [1]
    starts = {each["start"] for each in records if each["kind"] == "rank_start"}
    return torch.load(max(place.glob("step-*.pt"))), starts


def tensors(state: Any) -> list[torch.Tensor]:
    """All that are in there, in order."""
    if isinstance(state, torch.Tensor):
        return [state]
    values = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else []
    return [each for value in values for each in tensors(value)]


@pytest.mark.variant
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_weights(spawn: Spawner, tmp_path: Path, program: str) -> None:
    warm, were_warm = train(spawn, tmp_path, program, "on")
    cold, were_cold = train(spawn, tmp_path, program, "off")
    assert (were_warm, were_cold) == ({"warm"}, {"cold"})
    ours, theirs = tensors(warm), tensors(cold)
    assert len(ours) > 4 and all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


# -- what a rank forks, and a killed launcher ----------------------------------------------------------------
