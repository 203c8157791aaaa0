"""Ranks from standbys, what is decided before, and what happens when zygote or standbys fail."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.launcher.warm.gpu_evidence import PASSED
from holdfast.fault_tolerance.launcher.warm.plan import (
    DYNAMO,
    NOT_TESTED,
    TORCH,
    Learned,
    Request,
    first_list,
    hidden,
    list_path,
    plan,
    read_list,
    script_text,
    unlike,
    why_cold,
    write_list,
)
from holdfast.fault_tolerance.launcher.warm.zygote import preload, wire
from holdfast.incidents.capture.waiting_on import system_call
from holdfast.journal.reader import journal_files
from tests.jobs import LAUNCHER, Job, Jobs, patient, records
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
    job = jobs(CRASHES.format(last=1), *RESTARTS, under=patient())
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
    # The start, the failure, the signal to rank 1, the restart, the report.
    assert len(job.end(0).splitlines()) == 5
    assert starts(job) == [(0, "warm"), (0, "warm"), (1, "warm"), (1, "warm")]
    begun = {record["pid"] for record in job.journal("rank_start") if record["cycle"] == 1}
    assert begun == {each.pid for each in waiting}
    assert not any(map(alive, family))


def test_a_killed_zygote_costs_its_standbys_nothing_and_ranks_nothing(jobs: Jobs) -> None:
    job = jobs(CRASHES.format(last=3), *RESTARTS, under=patient())
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
    job = jobs(CRASHES.format(last=1), *RESTARTS, under=patient(6.0))
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
    job = jobs(TORCH_IS_AHEAD, *RESTARTS, under=patient())
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
    job = jobs.command("--nproc-per-node", "2", *RESTARTS, str(script), under=patient())
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


def test_the_default_follows_the_evidence(spawn: Spawner, tmp_path: Path) -> None:
    """By default warm if the checks on a GPU have passed for this code; else one line tells how to turn it on."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"]).returncode != 0:
        pytest.skip("needs root, for a /dev of its own")
    (tmp_path / "dev").mkdir()
    script = tmp_path / "train.py"
    script.write_text("print('trained')\n")
    under = ["unshare", "--mount", "sh", "-c", OWN_DEV, "sh", tmp_path / "dev"]
    launcher = [*patient(), *LAUNCHER, "--nproc-per-node=1", "--ft-run-dir", tmp_path / "run"]
    job = spawn([*under, *launcher, "--ft-warm-start", "auto", script], cwd=tmp_path)
    assert (job.wait(), job.out()) == (0, "trained\n"), job.err()
    (journal,) = (tmp_path / "run").glob("journal-*.jsonl")
    (start,) = [record for record in records(journal) if record["kind"] == "rank_start"]
    assert start["start"] == ("warm" if PASSED else "cold")
    assert job.err().splitlines().count(LINE) == (0 if PASSED else 1)


# -- what is decided about a warm start before anything is tried: as functions of values


# -- an example, warm and cold -----------------------------------------------------------------------------

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def train(spawn: Spawner, folder: Path, mode: str) -> tuple[dict[str, Any], set[str]]:
    """The last checkpoint, and how the ranks were started."""
    place = folder / mode
    flags = ["--nproc-per-node=2", "--max-restarts=1", f"--ft-warm-start={mode}", f"--ft-run-dir={place}.run"]
    words = [f"--dir={place}", "--step-seconds=0"]
    environment = {"OMP_NUM_THREADS": "1", "HOLDFAST_FAULT": "kill@step=12,rank=1,cycle=0"}
    job = spawn([*patient(), *LAUNCHER, *flags, str(EXAMPLES / "plain_loop.py"), *words], env=environment)
    assert job.wait(150) == 0, job.output()
    (journal,) = map(Path, journal_files(f"{place}.run", of_ranks=False))
    written = records(journal)
    assert [each["cycle"] for each in written if each["kind"] == "restart"] == [1]
    starts = {each["start"] for each in written if each["kind"] == "rank_start"}
    return torch.load(max(place.glob("step-*.pt"))), starts


def tensors(state: Any) -> list[torch.Tensor]:
    """All that are in there, in order."""
    if isinstance(state, torch.Tensor):
        return [state]
    values = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else []
    return [each for value in values for each in tensors(value)]


@pytest.mark.variant
def test_the_same_weights(spawn: Spawner, tmp_path: Path) -> None:
    warm, were_warm = train(spawn, tmp_path, "on")
    cold, were_cold = train(spawn, tmp_path, "off")
    assert (were_warm, were_cold) == ({"warm"}, {"cold"})
    ours, theirs = tensors(warm), tensors(cold)
    assert len(ours) > 4 and all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


# -- what is decided about a warm start before anything is tried: as functions of values


@pytest.mark.parametrize(
    ("request_", "environment", "is_tested", "why"),
    [
        (Request("off", "train.py"), {}, True, "off"),
        (Request("on", "train.sh", no_python=True), {}, True, "not started as"),
        (Request("on", "train.py", run_path=True), {}, True, "`python SCRIPT`"),
        (Request("on", "train.py"), {"PYTHON_EXEC": "/usr/bin/other"}, True, "PYTHON_EXEC"),
        (Request("on", "train.py", numa=True), {}, True, "--numa-binding"),
        (Request("on", "train.py", ("--to", "log-${local_rank}")), {}, True, "command line of its own"),
        (Request("auto", "train.py"), {}, False, "NVIDIA driver"),
    ],
)
def test_what_starts_cold(request_: Request, environment: dict[str, str], is_tested: bool, why: str) -> None:
    assert why in why_cold(request_, environment, is_tested=is_tested)


def test_what_may_start_warm() -> None:
    assert not why_cold(Request("auto", "train.py"), {"PYTHON_EXEC": sys.executable}, is_tested=True)
    assert not why_cold(Request("on", "train.py", module=True), {}, is_tested=False)


def test_a_zygote_has_the_ranks_command_line_and_what_is_no_ranks_own() -> None:
    environment = {"HOME": "/root", "RANK": "7", "TORCHELASTIC_RUN_ID": "x", "HOLDFAST_RUN_DIR": "/x"}
    made = plan(Request("on", "train.py", ("--lr", "1"), several=True), environment)
    assert made.command == (sys.executable, "-u", "train.py", "--lr", "1")
    assert made.folder == os.path.realpath(".")
    added = {"OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_FR_BUFFER_SIZE": "2000"}
    assert made.environment == {"HOME": "/root", **added}
    one = plan(Request("on", "pack.train", module=True, several=False), {"OMP_NUM_THREADS": "3"})
    assert one.command == (sys.executable, "-u", "-m", "pack.train")
    assert one.environment["OMP_NUM_THREADS"] == "3"


VARIABLES = st.dictionaries(
    st.sampled_from(["HOME", "TZ", "RANK", "FT_X", "MASTER_PORT"]), st.text(max_size=2)
)


@given(VARIABLES, VARIABLES)
def test_only_a_ranks_own_variables_may_differ(zygote: dict[str, str], rank: dict[str, str]) -> None:
    shared = [name for name in ("HOME", "TZ") if zygote.get(name) != rank.get(name)]
    assert unlike(zygote, rank) == shared


def test_what_a_file_in_the_scripts_folder_hides(tmp_path: Path) -> None:
    for name in ("yaml.py", "numpy.cpython-311.so", "train.txt"):
        (tmp_path / name).touch()
    for name in ("torch", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    assert hidden(["torch", "yaml", "numpy", "data", "train"], str(tmp_path)) == ["numpy", "torch", "yaml"]
    assert hidden(["torch"], None) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os, sys\nfrom json import loads\n", ()),
        ("", ()),
        ("import holdfast.fault_tolerance as ft\n", ()),
        ("from holdfast.fault_tolerance import RankMonitorClient\n", ()),
        ("import holdfast.ptl_resiliency\n", TORCH),
        ("import os\ndef f():\n    import mine\n", TORCH),
        ("from . import model\n", TORCH),
        ("import torch\n", TORCH),
        ("this is no Python", TORCH),
        ("\0", TORCH),
        ("import torch\ntorch.optim.SGD([])\n", (*TORCH, *DYNAMO)),
        ("from torch.optim import SGD\n", (*TORCH, *DYNAMO)),
        ("from torch import nn, optim\n", (*TORCH, *DYNAMO)),
        ("import torch\ntorch.use_deterministic_algorithms(True)\n", (*TORCH, *DYNAMO)),
    ],
)
def test_first_list(source: str, expected: tuple[tuple[str, None], ...]) -> None:
    assert first_list(source.encode()) == expected


def test_script_text_of_a_pipe_is_left_to_the_rank(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "script.py")
    assert b"torch" in script_text(str(tmp_path / "script.py")), "and it returns without a writer"


def test_what_was_learned_is_kept_for_the_script_and_the_python(tmp_path: Path) -> None:
    file = list_path(str(tmp_path), "train.py", module=False)
    assert read_list(file) == Learned()
    known = Learned([("torch", "/x/torch/__init__.py"), ("sys", None)], {"wandb": "it starts a thread"})
    write_list(file, known)
    assert read_list(file) == known
    assert os.stat(file).st_mode & 0o777 == 0o600
    assert {path.name for path in Path(file).parent.iterdir()} == {os.path.basename(file)}
    write_list(file, Learned(None, {"x": "y"}))
    assert read_list(file).modules is None
    others = {
        list_path(str(tmp_path), "train.py", module=True),
        list_path(str(tmp_path), "a.py", module=False),
    }
    assert file not in others and len(others) == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format": 2, "modules": [], "refused": {}}',
        '{"format": 1, "modules": [[1, 2]], "refused": {}}',
    ],
)
def test_a_list_that_is_none_counts_for_nothing(tmp_path: Path, content: str) -> None:
    file = tmp_path / "list.json"
    file.write_text(content)
    assert read_list(str(file)) == Learned()
    (tmp_path / "link.json").symlink_to(file)
    assert read_list(str(tmp_path / "link.json")) == Learned()


def test_a_list_that_cannot_be_kept_costs_nothing() -> None:
    write_list("/proc/nowhere/list.json", Learned([]))


def test_only_what_is_installed_is_imported_ahead() -> None:
    installed = preload.roots()
    entries = [
        ("json", os.path.join(os.path.dirname(json.__file__), "__init__.py")),
        ("mine", "/home/me/mine.py"),
        ("sys", "built-in"),
        ("__main__", None),
        ("wandb.sdk", None),
        ("torch", None),
    ]
    names = [name for name, _ in preload.wanted(entries, frozenset({"wandb"}), installed)]
    assert names == ["json", "sys", "torch"]


@given(st.dictionaries(st.text(), st.text(), max_size=5), st.integers(0, 3))
def test_messages_arrive_with_their_descriptors(message: dict[str, str], count: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sent = [os.memfd_create("x") for _ in range(count)]
        wire.send(ours, message, sent)
        received = wire.receive(theirs)
        assert received is not None
        found, descriptors = received
        assert found == message and len(descriptors) == count
        assert [os.fstat(a).st_ino for a in sent] == [os.fstat(b).st_ino for b in descriptors]
        for descriptor in [*sent, *descriptors]:
            os.close(descriptor)
        ours.close()
        assert wire.receive(theirs) is None


class Read(socket.socket):
    """A socket of which the other side has read everything, and is gone, by the time it is sent."""

    other: socket.socket

    def sendmsg(self, *arguments: Any) -> int:
        sent = super().sendmsg(*arguments)
        wire.receive(self.other)
        self.other.close()
        return sent


def test_who_has_all_of_a_message_may_be_gone_before_the_call_ends() -> None:
    """A standby answers, and closes its gate, as soon as it has read: that is no failure of the sender's."""
    ours, theirs = socket.socketpair()
    with Read(fileno=ours.detach()) as sender:
        sender.other = theirs
        wire.send(sender, {"environment": {"PATH": "/bin"}})
