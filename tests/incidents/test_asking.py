"""Asking real processes where they are: those that answer, that cannot, and that must not be signalled."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.processes import proc
from holdfast.incidents.gathering.answers import answer, dumped_thread
from holdfast.incidents.gathering.asking import Asked, ask
from tests.incidents.witnesses import HOLDS_GIL, Rank
from tests.processes import Spawner, wait_until

WAITS = """
import threading
begin_thread()
def wait_here():
    say("ready")
    threading.Event().wait()
threading.Thread(target=wait_here, name="loader", daemon=True).start()
def in_main():
    time.sleep(60)
import time
in_main()
"""

SLEEPS = """
import time
def wait_here():
    say("ready")
    time.sleep(60)
"""


def test_all_stacks_from_the_rank_itself(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, WAITS).ready().with_thread()
    found = rank.ask()
    assert found.stacks_from == "the rank itself" and not found.no_stacks
    assert rank.functions(found) == ["in_main", "<module>"]
    loader = next(thread for thread in found.stacks if thread.name == "loader")
    assert not loader.main and "wait_here" in [frame.function for frame in loader.frames]
    assert found.stacks[0].frames[0].file.endswith("rank.py") and found.stacks[0].frames[0].line > 0
    assert len(found.stacks) == 2  # not the helper
    assert found.no_collectives == "unavailable: the program has no process group"
    assert not found.collectives


def test_a_rank_that_never_gives_the_gil_back_answers_a_signal(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, "begin_thread()\n" + HOLDS_GIL).stuck()
    found = rank.ask()
    assert found.stacks_from == "faulthandler"
    assert rank.functions(found) == ["hold", "<module>"]
    assert "GIL" in found.no_collectives
    again = rank.ask()  # its file now holds more than one
    assert again.stacks == found.stacks
    quiet = rank.ask(may_signal=False)
    assert not quiet.stacks and "GIL" in quiet.no_stacks and "may not be signalled" in quiet.no_stacks


def test_without_its_thread_a_rank_answers_the_signal(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, SLEEPS + "wait_here()").ready()
    assert rank.armed() == {"pid": rank.process.pid, "signal": 45, "descriptor": 900, "thread": False}
    found = rank.ask()
    assert rank.functions(found) == ["wait_here", "<module>"]
    assert "no thread that answers" in found.no_collectives
    assert rank.process.returncode is None


def test_two_askers_at_once_and_many_after_another(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, WAITS).ready().with_thread()
    found: list[Asked] = []
    askers = [threading.Thread(target=lambda: found.extend(rank.ask() for _ in range(5))) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert len(found) == 20 and {each.stacks_from for each in found} == {"the rank itself"}


def test_an_answer_to_an_earlier_question_is_none(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, "begin_thread()\n" + HOLDS_GIL).stuck()
    told = {"questions": ["00" * 8], "pid": rank.process.pid, "complete": True, "threads": []}
    Path(f"{rank.prefix}.answer").write_text(json.dumps(told))
    assert rank.ask().stacks_from == "faulthandler"


def test_a_stopped_rank_is_not_signalled(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, WAITS).ready().with_thread()
    os.kill(rank.process.pid, signal.SIGSTOP)
    wait_until(lambda: (found := proc.stat(rank.process.pid)) and found.state == "T")
    found = rank.ask()
    assert found.no_stacks == "it is stopped and cannot answer" and not found.stacks
    os.kill(rank.process.pid, signal.SIGCONT)
    wait_until(lambda: rank.ask().stacks_from == "the rank itself")
    assert Path(f"{rank.prefix}.stack").stat().st_size == 0  # no signal came late


@pytest.mark.parametrize(
    ("deed", "why"),
    [
        ("os.close(900)", "closed the descriptor"),
        ("os.dup2(os.open('other', os.O_WRONLY | os.O_CREAT), 900)", "something else"),
        ("import ctypes; ctypes.CDLL(None).signal(45, 0)", "does not handle"),
        ("import faulthandler; faulthandler.unregister(45)", "wrote nothing"),
        ("import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [45])", "holds signals back"),
    ],
)
def test_what_is_not_surely_armed_is_not_signalled(
    spawn: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rank = Rank(spawn, tmp_path, f"{deed}\n{SLEEPS}wait_here()").ready()
    found = rank.ask()
    assert why in found.no_stacks and not found.stacks
    assert rank.process.returncode is None
    assert not (tmp_path / "other").exists() or not (tmp_path / "other").read_bytes()


def test_another_program_in_the_same_process_is_not_signalled(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, "os.execv('/bin/sh', ['sh', '-c', 'echo ready; sleep 60; true'])").ready()
    found = rank.ask()
    assert "does not handle" in found.no_stacks
    assert rank.process.returncode is None


def test_a_process_that_has_armed_nothing_is_not_signalled(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, "import time; say('ready'); time.sleep(60)", HOLDFAST_WITNESS="off").ready()
    assert rank.armed() is None
    assert rank.ask().no_stacks == "this process is not prepared to be asked"
    lie = {"pid": rank.process.pid, "signal": 45, "descriptor": 900, "thread": True}
    Path(f"{rank.prefix}.armed").write_text(json.dumps(lie))
    Path(f"{rank.prefix}.stack").touch()
    assert "does not handle" in rank.ask().no_stacks
    assert rank.process.returncode is None


def test_what_others_have_put_in_the_place_of_the_files(spawn: Spawner, tmp_path: Path) -> None:
    """Links are not followed, and a FIFO that nobody reads, or that is a socket or a file, holds nobody up."""
    rank = Rank(spawn, tmp_path, WAITS).ready().with_thread()
    way, box = Path(f"{rank.prefix}.ask"), tmp_path / "box"
    way.rename(box)
    for put in (lambda: way.symlink_to(box), way.touch, lambda: os.mkfifo(way), lambda: None):
        put()
        assert rank.ask().stacks_from == "faulthandler"
        way.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(way))
        assert rank.ask().stacks_from == "faulthandler"
    way.unlink()
    box.rename(way)
    assert rank.ask().stacks_from == "the rank itself"
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
    pid, started = rank.process.pid, proc.start_time(rank.process.pid)
    assert started is not None
    assert (
        ask(rank.prefix, pid, started + 1, time.monotonic() + 1, may_signal=True).no_stacks
        == "the process is gone"
    )
    rank.process.kill()
    assert (
        ask(rank.prefix, pid, started, time.monotonic() + 1, may_signal=True).no_stacks
        == "the process is gone"
    )


def test_no_time_is_no_wait(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, "begin_thread()\n" + HOLDS_GIL).stuck()
    begun = time.monotonic()
    found = ask(rank.prefix, rank.process.pid, proc.start_time(rank.process.pid) or 0, begun, may_signal=True)
    assert time.monotonic() - begun < 0.5 and (found.no_stacks or found.stacks)


@given(
    st.one_of(
        st.binary(),
        st.text().map(str.encode),
        st.recursive(st.none(), st.lists).map(json.dumps).map(str.encode),
    )
)
def test_no_text_is_an_answer_by_accident(text: bytes) -> None:
    assert answer(text, "00", 1) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "frames", "main", "group", "members", "entries"]), inner, max_size=4
        )
    ),
)


@given(VALUES, VALUES)
def test_no_answer_makes_it_raise(threads: object, groups: object) -> None:
    said = {"questions": ["00"], "pid": 1, "complete": True, "threads": threads, "groups": groups}
    answer(json.dumps(said).encode(), "00", 1)


@given(st.text())
def test_no_dump_makes_it_raise(text: str) -> None:
    dumped_thread(text)
    dumped_thread("Stack (most recent call first):\n  File " + text)


def test_what_faulthandler_writes() -> None:
    text = (
        'Stack (most recent call first):\n  File "a "b".py", line 3 in inner\n  File ???, line ??? in <module>\n  ...\n'
        'Stack (most recent call first):\n  File "c.py", line 1 in later\n'
    )
    thread = dumped_thread(text)
    assert thread is not None
    assert [(each.file, each.line, each.function) for each in thread.frames] == [
        ('a "b".py', 3, "inner"),
        ("", 0, "<module>"),
    ]
    assert dumped_thread("  <no Python frame>\n") is None


def test_the_asker_needs_the_standard_library_alone() -> None:
    """The monitor has no more."""
    import subprocess

    code = "import sys; sys.path.insert(0, sys.argv[1]); import holdfast.incidents.gathering.asking"
    source = str(Path(__file__).resolve().parents[2] / "src")
    subprocess.run([sys.executable, "-I", "-S", "-c", code, source], check=True)
