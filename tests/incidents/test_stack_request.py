"""Asking real processes where they are: those that answer, that cannot, and that must not be signalled."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.processes import proc
from holdfast.incidents.capture.procfs import below
from holdfast.incidents.capture.stack_request import read_answer, request, signalled_thread, worker_stacks
from holdfast.incidents.evidence import Frame, Missing, StackSource, Thread
from tests.incidents.armed_ranks import Rank, fill, unhurried
from tests.processes import Spawner, wait_until

__all__ = ["unhurried"]  # a fixture

WAITS = """
import threading
begin_thread()
def wait_here():
    say("ready")
    threading.Event().wait()
threading.Thread(target=wait_here, name="loader", daemon=True).start()
def in_main():
    time.sleep(600)
import time
in_main()
"""

SLEEPS = """
import time
def wait_here():
    say("ready")
    time.sleep(600)
wait_here()
"""


HOLDS_GIL = """
begin_thread()
import ctypes
libc = ctypes.PyDLL(None)  # calls do not give the lock back
sys.setswitchinterval(1000)  # nor is it taken away between two of them
def hold():
    libc.write(1, b"ready\\n", 6)
    while True:
        libc.sleep(60)  # a signal ends it early
hold()
"""


@pytest.mark.usefixtures("unhurried")
def test_all_stacks_from_the_rank_itself(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, WAITS).ready().with_thread()
    found = rank.within("in_main", "<module>")
    assert found.stacks_from is StackSource.RANK and not found.no_stacks
    loader = next(thread for thread in found.stacks if thread.name == "loader")
    assert not loader.main and "wait_here" in [frame.function for frame in loader.frames]
    assert found.stacks[0].frames[0].file.endswith("rank.py") and found.stacks[0].frames[0].line > 0
    assert len(found.stacks) == 2  # not the helper
    assert found.stacks[0].tid == rank.process.pid and loader.tid > 0
    assert found.no_collectives is Missing.NO_GROUP
    assert not found.collectives


def test_a_rank_that_never_gives_the_gil_back_answers_a_signal(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, HOLDS_GIL).ready()
    # Its helper thread may have begun to wait for the lock early: then it takes no questions.
    wait_until(lambda: rank.ask().stacks_from is StackSource.SIGNAL)
    found = rank.within("hold", "<module>")
    assert found.stacks_from is StackSource.SIGNAL
    assert found.no_collectives is Missing.NO_ANSWER
    told = {"questions": ["00" * 8], "pid": rank.process.pid, "complete": True, "threads": []}
    Path(f"{rank.prefix}.answer").write_text(json.dumps(told))  # to an earlier question
    again = rank.ask()  # its file now holds more than one
    assert again.stacks == found.stacks
    begun = time.monotonic()
    started = proc.start_time(rank.process.pid) or 0
    found = request(rank.prefix, rank.process.pid, started, begun)
    assert time.monotonic() - begun < 60 and (found.no_stacks or found.stacks), "no time is no wait"


def test_a_rank_without_room_for_its_answer_holds_no_lock(
    spawn: Spawner, small_tmpfs: Callable[[str], Path]
) -> None:
    rank = Rank(spawn, small_tmpfs("4m"), WAITS).ready().with_thread()
    filler = rank.folder / "filler"
    fill(filler)
    found = rank.ask()
    assert found.stacks_from is not StackSource.RANK and found.no_collectives is Missing.FAILED
    assert f"{rank.folder} is full" in " ".join(found.notes)
    filler.unlink()
    assert wait_until(lambda: rank.ask().stacks_from is StackSource.RANK)


def test_without_its_thread_a_rank_answers_the_signal(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, SLEEPS).ready()
    assert rank.armed() == {"pid": rank.process.pid, "signal": 45, "descriptor": 900, "thread": False}
    found = rank.within("wait_here", "<module>")
    assert found.no_collectives is Missing.NO_HELPER
    assert rank.process.returncode is None


@pytest.mark.usefixtures("unhurried")
def test_two_askers_at_once_and_many_after_another(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, WAITS).ready().with_thread()
    with ThreadPoolExecutor(4) as askers:
        found = list(askers.map(lambda _: rank.ask(), range(20)))
    assert len(found) == 20 and {each.stacks_from for each in found} == {StackSource.RANK}


@pytest.mark.usefixtures("unhurried")
def test_a_stopped_rank_is_not_signalled(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, WAITS).ready().with_thread()
    os.kill(rank.process.pid, signal.SIGSTOP)
    wait_until(lambda: (found := proc.stat(rank.process.pid)) and found.state == "T")
    found = rank.ask()
    assert found.no_stacks is Missing.STOPPED and not found.stacks
    os.kill(rank.process.pid, signal.SIGCONT)
    wait_until(lambda: rank.ask().stacks_from is StackSource.RANK)
    assert Path(f"{rank.prefix}.stack").stat().st_size == 0  # no signal came late


@pytest.mark.parametrize(
    ("deed", "why"),
    [
        ("os.close(900)", "closed the descriptor"),
        ("os.dup2(os.open('other', os.O_WRONLY | os.O_CREAT), 900)", "something else"),
        ("import ctypes; ctypes.CDLL(None).signal(45, 0)", "does not handle"),
        ("import faulthandler; faulthandler.unregister(45)", "wrote nothing"),
        ("import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [45])", "holds signals back"),
        ("os.execv('/bin/sh', ['sh', '-c', 'echo ready; sleep 600; true'])", "does not handle"),
    ],
)
def test_what_is_not_surely_armed_is_not_signalled(
    spawn: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rank = Rank(spawn, tmp_path, f"{deed}\n{SLEEPS}").ready()
    found = rank.ask()
    assert found.no_stacks is Missing.NOT_SIGNALLED and why in " ".join(found.notes) and not found.stacks
    assert rank.process.returncode is None
    assert not (tmp_path / "other").exists() or not (tmp_path / "other").read_bytes()


def test_a_process_that_has_armed_nothing_is_not_signalled(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, "import time; say('ready'); time.sleep(600)", HOLDFAST_WITNESS="off").ready()
    assert rank.armed() is None
    assert rank.ask().no_stacks is Missing.NOT_ARMED
    lie = {"pid": rank.process.pid, "signal": 45, "descriptor": 900, "thread": True}
    Path(f"{rank.prefix}.armed").write_text(json.dumps(lie))
    Path(f"{rank.prefix}.stack").touch()
    assert "does not handle" in " ".join(rank.ask().notes)
    assert rank.process.returncode is None


@pytest.mark.usefixtures("unhurried")
def test_what_others_have_put_in_the_place_of_the_files(spawn: Spawner, tmp_path: Path) -> None:
    """Links are not followed, and a FIFO without a reader, or a socket or file in its place, delays no request."""
    rank = Rank(spawn, tmp_path, WAITS).ready().with_thread()
    way, box = Path(f"{rank.prefix}.ask"), tmp_path / "box"
    way.rename(box)
    for put in (lambda: way.symlink_to(box), way.touch, lambda: os.mkfifo(way), lambda: None):
        put()
        assert rank.ask().stacks_from is StackSource.SIGNAL
        way.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(way))
        assert rank.ask().stacks_from is StackSource.SIGNAL
    way.unlink()
    box.rename(way)
    assert rank.ask().stacks_from is StackSource.RANK
    for name in ("armed", "stack"):
        path = Path(f"{rank.prefix}.{name}")
        path.rename(tmp_path / "away")
        path.symlink_to(tmp_path / "away")
        way.rename(box)
        assert not rank.ask().stacks
        box.rename(way)
        path.unlink()
        (tmp_path / "away").rename(path)


def test_a_process_that_is_gone_or_another(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, WAITS).ready().with_thread()
    pid, started = rank.process.pid, proc.start_time(rank.process.pid) or 0
    another = request(rank.prefix, pid, started + 1, time.monotonic() + 1)
    rank.process.kill()
    gone = request(rank.prefix, pid, started, time.monotonic() + 1)
    assert another.no_stacks is gone.no_stacks is Missing.ENDED


NESTED = st.recursive(st.none(), st.lists).map(json.dumps)


@given(st.binary() | (st.text() | NESTED).map(str.encode))
def test_no_text_is_an_answer_by_accident(text: bytes) -> None:
    assert read_answer(text, "00", 1) is None


NAMES = st.sampled_from(["name", "frames", "main", "group", "members", "entries"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
)


@given(VALUES, VALUES)
def test_no_answer_makes_it_raise(threads: object, groups: object) -> None:
    said = {"questions": ["00"], "pid": 1, "complete": True, "threads": threads, "groups": groups}
    read_answer(json.dumps(said).encode(), "00", 1)


@given(st.text())
def test_no_dump_makes_it_raise(text: str) -> None:
    signalled_thread(text)
    signalled_thread("Stack (most recent call first):\n  File " + text)


def test_what_faulthandler_writes() -> None:
    text = (
        'Stack (most recent call first):\n  File "a "b".py", line 3 in inner\n  File ???, line ??? in <module>\n  ...\n'
        'Stack (most recent call first):\n  File "c.py", line 1 in later\n'
    )
    thread = signalled_thread(text)
    assert thread and thread.frames == (Frame("inner", 'a "b".py', 3), Frame("<module>", "", 0))
    assert signalled_thread("  <no Python frame>\n") is None


def test_the_asker_needs_the_standard_library_alone() -> None:
    """The monitor has no more."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import holdfast.incidents.capture.stack_request"
    source = str(Path(__file__).resolve().parents[2] / "src")
    subprocess.run([sys.executable, "-I", "-S", "-c", code, source], check=True)


DEEP = """
import time
def deeper(left):
    if left:
        return deeper(left - 1)
    say("ready")
    time.sleep(600)
def outermost():
    deeper(500)
begin_thread()
outermost()
"""


@pytest.mark.usefixtures("unhurried")
def test_a_deep_stack_keeps_both_ends(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, DEEP).ready().with_thread()
    functions = rank.functions(rank.within("deeper"))
    assert len(functions) == 64 and functions[-2:] == ["outermost", "<module>"]
    assert set(functions[:-2]) == {"deeper"}


CPP_THREAD = """
import ctypes, time
begin_thread()
def hook():
    say("ready", ctypes.CDLL(None).gettid())
    time.sleep(600)
callback = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: hook())
libc = ctypes.CDLL(None)
thread = ctypes.c_ulong()
libc.pthread_create(ctypes.byref(thread), None, callback, None)
libc.pthread_setname_np(thread, b"pt_autograd_0")
def in_main():  # so it has its name
    time.sleep(600)
in_main()
"""


@pytest.mark.usefixtures("unhurried")
def test_a_thread_that_c_started_has_its_frames_and_tid(spawn: Spawner, tmp_path: Path) -> None:
    """Such as autograd's while it runs a hook."""
    rank = Rank(spawn, tmp_path, CPP_THREAD).ready().with_thread()
    tid = int(rank.process.wait_for(r"ready (\d+)").group(1))  # type: ignore[union-attr]

    def of_the_hook() -> list[Thread]:
        found = [each for each in rank.within("in_main").stacks if not each.main]
        return found if [each.frames[0].function for each in found] == ["hook"] else []

    (thread,) = wait_until(of_the_hook)
    assert (thread.name, thread.tid) == ("pt_autograd_0", tid)


WORKERS = """
import time
begin_thread()
def stuck(number):
    say("worker", number, os.getpid())
    time.sleep(600)
def execs():
    os.execv("/bin/sleep", ["sleep", "600"])
for number in range(3):
    if os.fork() == 0:
        stuck(number) if number else execs()
def parent():
    say("ready")
    time.sleep(600)
parent()
"""


@pytest.mark.usefixtures("unhurried")
def test_forked_workers_have_their_stacks_and_programs_none(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, WORKERS).ready().with_thread()
    for number in (1, 2):
        rank.process.wait_for(f"worker {number}")
    wait_until(lambda: "sleep" in [proc.stat(pid).name for pid in below(rank.process.pid)])  # type: ignore[union-attr]
    workers = [(pid, proc.start_time(pid) or 0) for pid in below(rank.process.pid)]

    def stacks() -> list[str]:
        found = worker_stacks(rank.prefix, rank.process.pid, workers, time.monotonic() + 60)
        return [frames[0].function for frames in found.values()]

    wait_until(lambda: stacks() == ["stuck"] * 2)  # they may still write that they are there
    assert [stacks() for _ in range(3)] == [["stuck"] * 2] * 3
    rank.within("parent")
    assert all(proc.is_running(*worker) for worker in workers)
    assert worker_stacks(rank.prefix, rank.process.pid, workers, time.monotonic() - 1) == {}
    killed = [(pid, started + 1) for pid, started in workers]
    assert worker_stacks(rank.prefix, rank.process.pid, killed, time.monotonic() + 60) == {}


def test_one_asker_at_a_time_has_the_file_of_stacks(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, SLEEPS).ready()
    with Path(f"{rank.prefix}.stack").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = rank.ask(0.2)
        assert found.no_stacks is Missing.NOT_SIGNALLED and "same moment" in " ".join(found.notes)
    assert rank.ask().stacks_from is StackSource.SIGNAL
