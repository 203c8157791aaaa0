"""Ranks whose main thread has ended and whose process cannot end: found, described, and ended where that is right."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import Job, Jobs, patient

BEGIN = """
import atexit, multiprocessing, threading
from concurrent.futures import ThreadPoolExecutor
def hold():
    while True:
        time.sleep(0.1)
def again():
    raise RuntimeError("a second exception")
"""
KEEPERS = {
    "thread": ("threading.Thread(target=hold, name='upload').start()", "'upload', which is in"),
    "lock": ("lock = threading.Lock()\nlock.acquire()\nthreading._register_atexit(lock.acquire)", "is at its exit"),
    "atexit": ("atexit.register(hold)", "hold()"),
    # It ends by itself: what a rank that has succeeded leaves is waited for.
    "child": (
        "multiprocessing.get_context('fork').Process(target=time.sleep, args=(10,)).start()",
        "its child process",
    ),
    "pool": ("pool = ThreadPoolExecutor(2)\npool.submit(sys.exit)\npool.submit(hold)", "'ThreadPoolExecutor-0_"),
    "second exception": ("atexit.register(hold)\natexit.register(again)", "hold()"),
    "process group": (
        """
import ctypes, torch, torch.distributed as dist
from datetime import timedelta
store = f"file://{os.environ['NOTES']}/store"
if os.fork() == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it ends with the rank
    dist.init_process_group("gloo", init_method=store, rank=1, world_size=2)
    os.kill(os.getpid(), signal.SIGSTOP)
dist.init_process_group("gloo", init_method=store, rank=0, world_size=2)
dist.all_reduce(torch.ones(1), async_op=True)
atexit.register(dist.destroy_process_group)
""",
        "is at its exit",
    ),
}  # fmt: skip
"""What keeps the process, and a part of how that is described."""
CLIENT = """
client = connect()
client.heartbeat(step=7)
"""


def block(condition: str, text: str) -> str:
    return f"if {condition}:\n{textwrap.indent(text, '    ')}\n"


def script(keep: str, end: str, *, has_client: bool) -> str:
    """It cannot end in cycle 0, and ends at once in any other."""
    return BEGIN + (CLIENT if has_client else "") + block("CYCLE == 0", keep + end) + "say('ended')\n"


def one(job: Job, kind: str) -> dict[str, Any]:
    """The only record of this kind."""
    (found,) = job.journal(kind)
    return found


def listed(job: Job) -> str:
    """What `holdfast incidents` prints."""
    command = [sys.executable, "-m", "holdfast", "incidents", str(job.run_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize(
    ("keepers", "warm"),
    [(("thread", "lock", "pool", "second exception"), "on"), (("atexit", "child", "process group"), "off")],
    ids=["warm", "cold"],
)
def test_exit_after_exception_that_cannot_end_is_ended(
    jobs: Jobs, keepers: tuple[str, ...], warm: str
) -> None:
    """One in each cycle, with and without the client."""
    text = BEGIN
    for cycle, keeper in enumerate(keepers):
        first = (CLIENT if cycle % 2 else "") + KEEPERS[keeper][0] + "\nraise ValueError('bad batch')"
        text += block(f"CYCLE == {cycle}", first)
    flags = ["--ft-exit-timeout=1", f"--max-restarts={len(keepers)}", f"--ft-warm-start={warm}"]
    job = jobs(text + "say('ended')\n", *flags, nproc=1, under=patient())
    job.end(0)
    assert job.lines(f"cycle {len(keepers)} ended")
    for cycle, keeper in enumerate(keepers):
        failing, delayed, incident = (
            next(each for each in job.journal(kind) if each["cycle"] == cycle)
            for kind in ("rank_failing", "exit_delayed", "incident")
        )
        assert (failing["error"]["type"], failing["error"]["message"]) == ("ValueError", "bad batch")
        assert "line" in failing["error"]["traceback"] and delayed["has_raised"]
        assert KEEPERS[keeper][1] in delayed["kept_by"]
        sent = job.journal("signal_sent")[cycle]
        assert sent["signal"] == "SIGKILL" and sent["by"] == "launcher"
        assert sent["mono"] - failing["error"]["at"] >= 0.99
        assert incident["rank"] == 0 and incident["cause"] == "exception"
        assert "ValueError: bad batch" in incident["sentence"] and "did not end" in incident["sentence"]
        record = json.loads((Path(incident["report"]) / "incident.json").read_text())
        assert record["nodes"][0]["ranks"][0]["stacks"] or keeper == "process group"
    assert not job.journal("verdict")


STANDS = """
if RANK == 1:
    import ctypes
    mutex, until = ctypes.create_string_buffer(64), (ctypes.c_long * 2)(int(time.time()) + 70, 0)
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    ctypes.PyDLL(None).pthread_mutex_timedlock(mutex, until)  # PyDLL keeps the GIL
"""


@pytest.mark.slow
def test_last_rank_that_stands_in_native_code_is_reported_and_never_ended(jobs: Jobs) -> None:
    """As in a destructor that joins a thread and keeps the GIL, after all others have ended."""
    job = jobs(script(STANDS, "", has_client=True), nproc=2, under=patient())
    assert job.spawned.wait(ceiling=200) == 0
    delayed, incident = one(job, "exit_delayed"), one(job, "incident")
    assert 60 <= delayed["seconds"] < 80 and not delayed["has_finished"]
    assert incident["rank"] == 1 and "<module>" in incident["sentence"]
    assert not job.journal("signal_sent", "verdict", "restart")
    assert "rank 1" in listed(job).lower()


def test_exception_hook_setting_ends_the_process_at_once(jobs: Jobs) -> None:
    text = script(
        "threading.Thread(target=hold).start()\n", "raise ValueError('bad batch')", has_client=False
    )
    job = jobs(text, "--ft-install-exception-hook", "--max-restarts=1", nproc=1)
    job.end(0)
    raised = one(job, "rank_failing")["error"]["at"]
    assert one(job, "signal_sent")["mono"] - raised < 10, "the exit timeout by default"
    assert not job.journal("exit_delayed")


def test_checkpoint_section_at_the_exit_that_hangs_is_a_hang(jobs: Jobs) -> None:
    saves = "def save():\n    with client.section('checkpointing'):\n        hold()\natexit.register(save)\n"
    text = script(saves, "raise ValueError('bad batch')", has_client=True)
    flags = ["--ft-exit-timeout=3", "--ft-rank-section-timeouts=checkpointing:5", "--max-restarts=1"]
    job = jobs(text, *flags, nproc=1)
    job.end(0)
    verdict = one(job, "verdict")
    assert (verdict["reason"], verdict["section"]) == ("section", "checkpointing")


def test_checkpoint_section_that_an_exception_left_open_ends(jobs: Jobs) -> None:
    """It has no limit of its own; the exception stays the cause."""
    saves = "client.start_section('checkpointing')\nthreading.Thread(target=hold).start()\n"
    text = script(saves, "raise ValueError('disk')", has_client=True)
    flags = ["--ft-rank-section-timeouts=checkpointing:3", "--max-restarts=1"]
    job = jobs(text, *flags, nproc=1, under=patient())
    assert "section 'checkpointing' is open" in job.end(0)
    assert "ValueError: disk" in one(job, "restart")["reason"]
    assert "ValueError: disk" in one(job, "incident")["sentence"]


def test_exception_with_a_hook_of_the_program_has_failed(jobs: Jobs) -> None:
    """One that never calls the hook before."""
    hook = "threading.Thread(target=hold).start()\nsys.excepthook = lambda *error: say('hooked')\n"
    text = script(hook, "raise ValueError('bad batch')", has_client=False)
    job = jobs(text, "--ft-exit-timeout=1", nproc=1, under=patient())
    job.end(1)
    assert one(job, "rank_failing")["error"]["message"] == "bad batch"
    assert one(job, "exit_delayed")["has_raised"]
    assert "ValueError: bad batch" in listed(job)


def test_interrupted_rank_is_no_failure_for_the_exit_timeout(jobs: Jobs) -> None:
    """Ctrl-C in a terminal, while another thread saves."""
    saves = "threading.Thread(target=lambda: (time.sleep(4), say('saved'))).start()\nsay('waits')\nwait()\n"
    job = jobs(script(saves, "", has_client=False), "--ft-exit-timeout=1", nproc=1)
    job.hear("waits", ranks=[0])
    job.spawned.send_signal(signal.SIGINT)
    job.end(130)
    assert job.lines("saved") and not job.journal("rank_failing", "exit_delayed")


def test_training_in_another_thread_is_supervised(jobs: Jobs) -> None:
    trains = """
def train():
    for step in range(60):
        client.heartbeat(step=step)
        time.sleep(0.1)
    hold()
threading.Thread(target=train).start()
"""
    flags = ["--ft-finished-timeout=5", "--ft-rank-heartbeat-timeout=3", "--max-restarts=1"]
    job = jobs(script(trains, "", has_client=True), *flags, nproc=1)
    job.end(0)
    assert one(job, "verdict")["reason"] == "heartbeat"


def test_ranks_that_wait_for_a_failed_one_are_not_blamed(jobs: Jobs) -> None:
    """Their timeout passes first; the exception came before."""
    waits = "if RANK == 1:\n    threading.Thread(target=hold).start()\n    raise ValueError('bad batch')\nhold()\n"
    flags = ["--ft-exit-timeout=8", "--ft-rank-heartbeat-timeout=3", "--max-restarts=1"]
    job = jobs(script(waits, "", has_client=True), *flags, nproc=2)
    job.end(0)
    reason = one(job, "restart")["reason"]
    assert "ValueError: bad batch" in reason and "rank 1" in reason


@pytest.mark.parametrize("keepers", [("thread",), ("child", "process group")], ids=["one rank", "two ranks"])
def test_exit_after_good_end_that_cannot_end_is_a_success(jobs: Jobs, keepers: tuple[str, ...]) -> None:
    """Nor is it a hang: what a rank that has succeeded still does sends no heartbeats. The launcher's way to what else
    keeps a rank is the same."""
    text = BEGIN + "client = RANK and connect()\n"
    for rank, keeper in enumerate(keepers):
        # The only heartbeat comes after the imports, which may take longer than its timeout.
        heartbeat = "client.heartbeat(step=7)\n" if rank else ""
        text += block(f"RANK == {rank}", f"{KEEPERS[keeper][0]}\n{heartbeat}say('finished')")
    flags = ["--ft-finished-timeout=4", "--ft-rank-heartbeat-timeout=3"]
    job = jobs(text, *flags, nproc=len(keepers), under=patient())
    job.end(0)
    delayed = {each["rank"]: each for each in job.journal("exit_delayed")}
    for rank, keeper in enumerate(keepers):
        assert not delayed[rank]["has_raised"] and KEEPERS[keeper][1] in delayed[rank]["kept_by"]
    assert not job.journal("restart", "rank_failing", "verdict")
    assert one(job, "run_end")["exit_code"] == 0
    incident, *_ = job.journal("incident")
    assert "--ft-finished-timeout" in (Path(incident["report"]) / "report.txt").read_text()
    if len(keepers) == 1:
        assert (incident["rank"], incident["cause"]) == (0, "shutdown")
        assert KEEPERS[keepers[0]][1] in incident["sentence"]


SHOWS = """
import ctypes
ctypes.pythonapi.PyRun_SimpleString(b"raise ValueError('shown by C code')")
try:
    1 / 0
except ZeroDivisionError as error:
    sys.last_value, sys.last_traceback = error, error.__traceback__
time.sleep(1.5)
try:
    1 / 0
except ZeroDivisionError:
    sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
    sys.excepthook(*sys.exc_info())
time.sleep(1.5)
threading.Thread(target=time.sleep, args=(1.5,)).start()
"""


def test_exception_after_which_the_program_continues_ends_nothing(jobs: Jobs) -> None:
    """It is noted like one that ends the program; another thread keeps the process after the good end."""
    job = jobs(script(SHOWS, "", has_client=False), "--ft-exit-timeout=0", nproc=1)
    job.end(0)
    assert not job.journal("rank_failing", "signal_sent", "exit_delayed")


def test_checkpoint_section_at_the_exit_has_its_own_time(jobs: Jobs) -> None:
    saves = """
def save():
    with client.section("checkpointing"):
        time.sleep(6)
    say("saved")
atexit.register(save)
"""
    text = script(saves, "raise ValueError('bad batch')", has_client=True)
    flags = ["--ft-exit-timeout=3", "--ft-rank-section-timeouts=checkpointing:60", "--max-restarts=1"]
    job = jobs(text, *flags, nproc=1)
    job.end(0)
    assert job.lines("saved") and not job.journal("signal_sent", "verdict")
