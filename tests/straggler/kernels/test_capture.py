"""What stands between sections and the source: it never waits, overlooks nothing, and heals."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from holdfast.straggler.kernels.source import BUSY, Capture, KernelWindow
from holdfast.straggler.sections import SectionContext, Sections
from tests.straggler.doubles import Told

CEILING = 20.0


class Slow(Told):
    """Its start takes until it is let go."""

    def __init__(self, *windows: KernelWindow) -> None:
        super().__init__(*windows)
        self.reached, self.go = threading.Event(), threading.Event()

    def start(self, section: str) -> None:
        self.reached.set()
        assert self.go.wait(CEILING)
        super().start(section)


@pytest.fixture
def slow() -> Slow:
    return Slow(KernelWindow(), KernelWindow())


@pytest.fixture
def capture(slow: Slow) -> Iterator[Capture]:
    """While another thread starts its source."""
    capture = Capture(slow)
    thread = threading.Thread(target=lambda: capture.leave(capture.enter("theirs")))
    thread.start()
    assert slow.reached.wait(CEILING)
    yield capture
    slow.go.set()
    thread.join(CEILING)
    assert not thread.is_alive()


def ended(slow: Slow) -> None:
    slow.go.set()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(CEILING)


def test_no_section_waits_for_a_thread_that_starts_the_source(capture: Capture, slow: Slow) -> None:
    mine = capture.enter("mine")
    assert slow.calls == []
    ended(slow)
    assert slow.calls == ["start theirs"]  # the section of this thread is still open
    capture.leave(mine)
    assert slow.calls == ["start theirs", "stop"]


def test_whoever_starts_it_stops_it_if_all_sections_ended_meanwhile(capture: Capture, slow: Slow) -> None:
    capture.leave(capture.enter("mine"))
    ended(slow)
    assert slow.calls == ["start theirs", "stop"]
    capture.leave(capture.enter("next"))
    assert slow.calls == ["start theirs", "stop", "start next", "stop"]


def test_a_report_meanwhile_says_so_and_loses_nothing(capture: Capture, slow: Slow) -> None:
    assert capture.take() == KernelWindow(note=BUSY)
    ended(slow)
    assert capture.take() == KernelWindow()


def test_closed_meanwhile_it_is_closed_by_that_thread(capture: Capture, slow: Slow) -> None:
    capture.close()
    assert slow.calls == []
    ended(slow)
    assert slow.calls == ["start theirs", "close"]
    capture.leave(capture.enter("late"))
    capture.close()
    assert slow.calls == ["start theirs", "close"]


class Interrupted(Told):
    """A signal handler's exception comes in its first call of a kind."""

    def __init__(self, when: str) -> None:
        super().__init__(*[KernelWindow()] * 9)
        self._when = when

    def _meet(self, when: str) -> None:
        if when == self._when:
            self._when = ""
            raise KeyboardInterrupt

    def start(self, section: str) -> None:
        self._meet("start")
        super().start(section)

    def stop(self, late: bool = False) -> None:
        self._meet("stop")
        super().stop(late)


@pytest.mark.parametrize("when", ["start", "stop"])
def test_after_an_interrupt_in_the_source_it_starts_and_stops_again(when: str) -> None:
    source = Interrupted(when)
    sections = Sections(1, Capture(source))
    with pytest.raises(KeyboardInterrupt), sections.enter("a", True):
        pass
    for _ in range(2):
        with sections.enter("b", True):
            pass
    with sections.enter("c", True):
        assert source.calls[-1] == "start c"
    assert source.calls[-1] == "stop"


def test_what_is_not_to_be_profiled_pauses_the_source_within_what_is() -> None:
    source = Told(KernelWindow())
    sections = Sections(1, Capture(source))

    def enter(name: str) -> SectionContext:
        return sections.enter(name, name.islower())

    def beside() -> None:
        with enter("LOAD"):
            pass

    with enter("LOAD"), enter("fwd"):  # nothing is open around it
        pass
    with enter("step"):
        with enter("LOAD"), enter("MORE"), enter("fwd"):
            assert source.calls[2:] == ["start step", "pause", "resume"]
        thread = threading.Thread(target=beside)  # where this thread's section is not around it
        thread.start()
        thread.join()
    within = ["pause", "resume", "pause", "resume"]  # LOAD, fwd, the end of fwd, the end of LOAD
    assert source.calls == ["start fwd", "stop", "start step", *within, "stop"]


def test_sections_left_out_that_never_end_do_not_pile_up() -> None:
    capture = Capture(Told())
    for _ in range(10):
        section = capture.enter("step")
        assert section is not None and capture.enter("kept", profiled=False) is not None
        capture.leave(section)
        assert not capture._left_out
    capture.close()


def test_reports_within_a_section_of_each_step_or_of_all_steps_change_nothing() -> None:
    capture = Capture(source := Told(*[KernelWindow()] * 20))
    for _ in range(5):  # another entry each time
        key = capture.enter("step")
        capture.leave(capture.enter("fwd"))
        assert capture.take().note == ""
        capture.leave(key)
    assert source.calls == ["start step", "stop"] * 5
    key = capture.enter("all")  # nothing ends within it
    assert [capture.take().note for _ in range(5)] == [""] * 5
    capture.leave(key)
    assert source.calls[-2:] == ["start all", "stop"]


SHARED = """
import os, signal, sys, threading
from holdfast.straggler.kernels.source import Capture, FORKED, KernelWindow
from holdfast.straggler.sections import Sections
signal.alarm(60)
class Source:
    name, reason, calls, inside = "x", "", [], lambda: None
    def start(self, section): Source.calls.append("start " + section); Source.inside()
    def stop(self, late): Source.calls.append("stop"); Source.inside()
    def pause(self): Source.calls.append("pause"); Source.inside()
    def resume(self): Source.calls.append("resume"); Source.inside()
    def take(self): Source.inside(); return KernelWindow()
    def close(self): Source.calls.append("close")
capture = Capture(Source())
sections = Sections(INTERVAL, capture)
class Name(str):
    inside = lambda: None
    def __hash__(self):  # asked while the lock of the sections is held
        inside, Name.inside = Name.inside, lambda: None
        inside()
        return hash(str(self))
"""

SIGNALS = """
handled = []
def handler(*_):
    with sections.enter("save", True), sections.enter(f"new {len(handled)}", False):
        handled.append(capture.take().note)
signal.signal(signal.SIGUSR1, handler)
def interrupt():
    Source.inside = lambda: None
    before = len(handled)
    os.kill(os.getpid(), signal.SIGUSR1)
    while len(handled) == before: pass
for where in range(3):
    Source.inside = interrupt
    if where == 2: Source.inside = lambda: None
    Name.inside = interrupt if where == 2 else lambda: None
    with sections.enter(Name("step"), True):
        if where == 1: Source.inside = interrupt
Source.inside = interrupt
capture.take()
assert len(handled) >= (4 if INTERVAL == 1 else 3), handled  # of three entries, one is measured
with sections.enter("last", True): assert INTERVAL > 1 or Source.calls[-1] == "start last", Source.calls
assert Source.calls[-1] == "stop"
"""

FORKS = """
reached, go = threading.Event(), threading.Event()
def inside(): reached.set(); assert go.wait(50)
if WHERE == "source": Source.inside = inside
else: Name.inside = inside
def work():
    with sections.enter(Name("theirs"), True): pass
thread = threading.Thread(target=work)
thread.start()
assert reached.wait(50)
child = os.fork()
if child == 0:
    signal.alarm(60)
    Source.calls.clear()
    for name in ("mine", "other"):
        for _ in range(5):
            with sections.enter(name, True): pass
    ok = capture.take().note == FORKED and sections.take().keys() >= {"mine", "other"}
    capture.close()
    os._exit(0 if ok and not Source.calls else 1)
status = os.waitpid(child, 0)[1]
go.set(); thread.join(50)
Source.inside = lambda: None
with sections.enter("after", True): pass
assert status == 0, status
assert Source.calls[-1] == "stop"
"""


def passes(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("interval", [1, 3])
def test_a_signal_handler_may_enter_sections_wherever_it_interrupts(interval: int) -> None:
    passes(SHARED.replace("INTERVAL", str(interval)) + SIGNALS.replace("INTERVAL", str(interval)))


@pytest.mark.parametrize("where", ["source", "sections"])
def test_a_forked_child_does_not_wait_for_a_thread_that_it_does_not_have(where: str) -> None:
    passes(SHARED.replace("INTERVAL", "1") + FORKS.replace("WHERE", repr(where)))
