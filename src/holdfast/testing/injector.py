"""Arms faults in a training process and lets them happen at their step or after their delay.

`inject("kill@step=12,rank=1")` in code, `Faults.from_env()` for the environment HOLDFAST_FAULT; both return a `Faults`,
which is also a context manager. What always holds: without faults for this rank `at_step` is one dictionary look-up; a
fault happens at most once per process; before it does, one line on stderr says so.
What this does not cover: a fault that must happen in the main thread (`Kind.in_main_thread`) waits while that thread is
in a long call into C, as Python's own signal handlers do.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from holdfast.testing.deadlock import Deadlock
from holdfast.testing.deeds import perform
from holdfast.testing.errors import FaultSpecError
from holdfast.testing.fault import KINDS, Fault
from holdfast.testing.grammar import parse
from holdfast.testing.place import Place, delay, is_for, resolve, target
from holdfast.testing.simulated import SimulatedFaultParams

__all__ = ["ENVIRONMENT", "Faults", "inject"]

ENVIRONMENT = "HOLDFAST_FAULT"
#: Brings a delayed fault into the main thread. A real-time signal near the end: nobody else is likely to use it.
WAKE_SIGNAL = signal.SIGRTMAX - 3

Description = str | Fault | SimulatedFaultParams | Mapping[str, Any] | Iterable[Fault]


def inject(
    faults: Description,
    *,
    environ: Mapping[str, str] = os.environ,
    announce: Callable[[Fault], None] | None = None,
) -> Faults:
    """Arms faults in this process from now on; every rank of the job must call it with the same faults.

    faults: text (`holdfast.testing.grammar`), a `Fault` or several, or `SimulatedFaultParams` (also as a dict).
    environ: where this process stands in the job (RANK, WORLD_SIZE, TORCHELASTIC_RESTART_COUNT).
    announce: called in the delayed fault's own daemon thread just before it happens here, with random choices made.
    Use it as a context manager to disarm what has not happened by the end of the block.
    Raises FaultSpecError (a ValueError).
    """
    return Faults(_as_faults(faults), Place.from_environ(environ), announce)


class Faults:
    """Armed faults. `at_step(step)` goes into the training loop; delayed faults need no call."""

    def __init__(
        self,
        faults: Iterable[Fault],
        place: Place | None = None,
        announce: Callable[[Fault], None] | None = None,
    ) -> None:
        self._place = Place.from_environ(os.environ) if place is None else place
        self._announce = announce
        self._at_step: dict[int, list[_Armed]] = {}
        self._timers: list[threading.Timer] = []
        self._woken: list[_Armed] = []
        self._handler_before: Any = None
        self._deadlocks: list[Deadlock] = []
        for index, fault in enumerate(faults):
            self._arm(index, resolve(fault, index, self._place))
        self._prepare()
        # Last, so that no fault happens while others are still being armed.
        for timer in self._timers:
            timer.start()

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Faults:
        """The faults of HOLDFAST_FAULT; none when it is not set. Raises FaultSpecError, which names the variable."""
        text = environ.get(ENVIRONMENT, "").strip()
        return cls(parse(text, ENVIRONMENT) if text else (), Place.from_environ(environ))

    def at_step(self, step: int, point: str | None = None) -> None:
        """Lets happen what is armed for this step on this rank.

        point: a name for this place of the loop, when there are several; a fault without `point=` happens at the first
            call of its step, one with it at the call of that name.
        """
        if self._deadlocks:
            self._prepare()
        if step not in self._at_step:
            return
        for armed in [a for a in self._at_step[step] if a.fault.point in (None, point)]:
            self._at_step[step].remove(armed)
            armed.happen(self._place, f"at step {step}")

    def close(self) -> None:
        """Disarms everything that has not happened yet. May be called twice."""
        self._at_step.clear()
        for timer in self._timers:
            timer.cancel()
        for timer in self._timers:
            if timer is not threading.current_thread():
                timer.join()
        self._timers.clear()
        if self._handler_before is not None:
            signal.signal(WAKE_SIGNAL, self._handler_before)
            self._handler_before = None

    def __enter__(self) -> Faults:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _arm(self, index: int, fault: Fault) -> None:
        if not is_for(fault, self._place):
            return
        if isinstance(fault.rank, int) and fault.rank >= self._place.world_size and self._place.rank == 0:
            _say(self._place, f"{fault} will not happen: this job has {self._place.world_size} ranks")
        deadlock = Deadlock(fault) if fault.kind == "deadlock" else None
        if deadlock is not None:
            self._deadlocks.append(deadlock)
        # In a skipped all_reduce it is the others that do something.
        if target(fault, self._place) == (fault.how == "skip"):
            return
        armed = _Armed(fault, deadlock)
        if fault.step is not None:
            self._at_step.setdefault(fault.step, []).append(armed)
        else:
            self._arm_timer(armed, delay(fault, index, self._place))

    def _arm_timer(self, armed: _Armed, seconds: float) -> None:
        if KINDS[armed.fault.kind].in_main_thread:
            self._handle_wake_signal()
        timer = threading.Timer(seconds, self._due, [armed, f"{seconds:.1f} s after it was armed"])
        timer.daemon = True
        timer.name = f"holdfast-fault-{armed.fault.kind}"
        self._timers.append(timer)

    def _due(self, armed: _Armed, when: str) -> None:
        if self._announce is not None:
            self._announce(armed.fault)
        if KINDS[armed.fault.kind].in_main_thread:
            self._wake_main_thread(armed)
        else:
            armed.happen(self._place, when)

    def _handle_wake_signal(self) -> None:
        if self._handler_before is not None:
            return
        if threading.current_thread() is not threading.main_thread():
            raise FaultSpecError("a delayed fault of this kind can be armed in the main thread only")
        self._handler_before = signal.signal(WAKE_SIGNAL, self._on_wake_signal) or signal.SIG_DFL

    def _wake_main_thread(self, armed: _Armed) -> None:
        self._woken.append(armed)
        # To the thread itself: this also ends a system call it may be waiting in.
        signal.pthread_kill(threading.main_thread().ident or 0, WAKE_SIGNAL)

    def _on_wake_signal(self, signum: int, frame: FrameType | None) -> None:
        while self._woken:
            self._woken.pop(0).happen(self._place, "after its delay")

    def _prepare(self) -> None:
        for deadlock in self._deadlocks:
            deadlock.prepare()


class _Armed:
    """A fault that will happen in this process."""

    def __init__(self, fault: Fault, deadlock: Deadlock | None) -> None:
        self.fault = fault
        self._perform = partial(perform, fault) if deadlock is None else deadlock.perform

    def happen(self, place: Place, when: str) -> None:
        _say(place, f"{self.fault} happens now, {when}")
        self._perform()


def _say(place: Place, text: str) -> None:
    # Past sys.stderr's buffer: the next thing this process does may be to die.
    os.write(2, f"[holdfast.testing] rank {place.rank}, cycle {place.cycle}: {text}\n".encode())


def _as_faults(faults: Description) -> tuple[Fault, ...]:
    if isinstance(faults, str):
        return parse(faults)
    if isinstance(faults, Fault):
        return (faults,)
    if isinstance(faults, (SimulatedFaultParams, Mapping)):
        return (SimulatedFaultParams.parse(faults).to_fault(),)
    return tuple(faults)
