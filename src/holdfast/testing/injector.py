"""Arms faults in a training process; each happens at its step or after its delay.

`inject("kill@step=12,rank=1")` in code, `Faults.from_env()` for the environment HOLDFAST_FAULT; both return a `Faults`,
which is also a context manager. Without faults for this rank `at_step` is one dictionary look-up. A fault happens at
most once per process, after one line on stderr. All ranks of a cycle make the same random choice without a message,
because it is drawn from values that are equal on all of them.
Does not cover: a fault that must happen in the main thread (`Kind.in_main_thread`) waits while that thread is in a long
call into C, as Python's own signal handlers do; processes without RANK and WORLD_SIZE count as a job of one rank.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from holdfast.testing.actions import perform
from holdfast.testing.fault import KINDS, Fault, FaultSpecError, SimulatedFaultParams, parse

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

ENVIRONMENT = "HOLDFAST_FAULT"
"""The faults to inject, as `KIND@KEY=VALUE,…`; read by `Faults.from_env` and `python -m holdfast.testing`."""
#: Brings a delayed fault into the main thread. A real-time signal near the end: no other program is likely to use it.
WAKE_SIGNAL = signal.SIGRTMAX - 3

Armed = tuple[Fault, Callable[[], None]]
"""A fault that will happen in this process, and what makes it happen."""

Description = str | Fault | SimulatedFaultParams | Mapping[str, Any] | Iterable[Fault]


def inject(
    faults: Description,
    *,
    environ: Mapping[str, str] = os.environ,
    announce: Callable[[Fault], None] | None = None,
) -> Faults:
    """Arms faults in this process from now on; every rank of the job must call it with the same faults.

    faults: text (`holdfast.testing.fault`), a `Fault` or several, or `SimulatedFaultParams` (also as a dict).
    environ: where this process stands in the job (RANK, WORLD_SIZE, TORCHELASTIC_RESTART_COUNT).
    announce: called in the delayed fault's own daemon thread just before it happens here, with random choices made.
    Use it as a context manager to disarm what has not happened by the end of the block.
    Raises FaultSpecError (a ValueError).
    """
    return Faults(_as_faults(faults), JobPlace.from_environ(environ), announce)


def simulate(params: SimulatedFaultParams) -> Faults:
    """Arm a callback's fault on every rank, and announce it in the documented words when it happens.

    The words come from a thread of the rank in which it happens, on stdout and stderr. A stream that is closed stops
    neither the training nor the fault. The rank and the moment are the same everywhere, without communication.

    Returns:
        The armed fault; `close` disarms it.
    """

    def announce(fault: Fault) -> None:
        # `random` has become one of the two other documented names.
        chosen = {"kill": "rank_killed", "stop": "rank_hung"}
        kind = chosen[fault.kind] if params.fault_type == "random" else params.fault_type
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or a stand-in for one
                words = f"\n####\nSimulating fault: {kind}; rank to fail: {fault.rank}\n#####\n"
                print(words, end="", file=stream, flush=True)

    return inject(params, announce=announce)


class Faults:
    """Armed faults. `at_step(step)` goes into the training loop; delayed faults need no call."""

    def __init__(
        self,
        faults: Iterable[Fault],
        place: JobPlace | None = None,
        announce: Callable[[Fault], None] | None = None,
    ) -> None:
        self._place = JobPlace.from_environ(os.environ) if place is None else place
        self._announce = announce
        self._at_step: dict[int, list[Armed]] = {}
        self._timers: list[threading.Timer] = []
        self._woken: list[Armed] = []
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
        return cls(parse(text, ENVIRONMENT) if text else (), JobPlace.from_environ(environ))

    def at_step(self, step: int, point: str | None = None) -> None:
        """Lets happen what is armed for this step on this rank.

        point: a name for this place of the loop, when there are several; a fault without `point=` happens at the first
            call of its step, one with it at the call of that name.
        """
        if self._deadlocks:
            self._prepare()
        if step not in self._at_step:
            return
        for armed in [each for each in self._at_step[step] if each[0].point in (None, point)]:
            self._at_step[step].remove(armed)
            self._happen(armed, f"at step {step}")

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
        if fault.cycle not in ("each", self._place.cycle):
            return
        if isinstance(fault.rank, int) and fault.rank >= self._place.world_size and self._place.rank == 0:
            _report(self._place, f"{fault} will not happen: this job has {self._place.world_size} ranks")
        action: Callable[[], None] = partial(perform, fault)
        if fault.kind == "deadlock":
            self._deadlocks.append(Deadlock(fault))
            action = self._deadlocks[-1].perform
        # In a skipped all_reduce it is the others that do something.
        if (fault.rank in ("all", self._place.rank)) == (fault.how == "skip"):
            return
        if fault.step is not None:
            self._at_step.setdefault(fault.step, []).append((fault, action))
            return
        if KINDS[fault.kind].in_main_thread:
            self._handle_wake_signal()
        seconds = delay(fault, index, self._place)
        timer = threading.Timer(seconds, self._due, [(fault, action), f"{seconds:.1f} s after it was armed"])
        timer.daemon = True
        timer.name = f"holdfast-fault-{fault.kind}"
        self._timers.append(timer)

    def _due(self, armed: Armed, when: str) -> None:
        if self._announce is not None:
            self._announce(armed[0])
        if KINDS[armed[0].kind].in_main_thread:
            self._woken.append(armed)
            # To the thread itself: this also ends a system call it may be waiting in.
            signal.pthread_kill(threading.main_thread().ident or 0, WAKE_SIGNAL)
        else:
            self._happen(armed, when)

    def _handle_wake_signal(self) -> None:
        if self._handler_before is not None:
            return
        if threading.current_thread() is not threading.main_thread():
            raise FaultSpecError("a delayed fault of this kind can be armed in the main thread only")
        self._handler_before = signal.signal(WAKE_SIGNAL, self._on_wake_signal) or signal.SIG_DFL

    def _on_wake_signal(self, signum: int, frame: FrameType | None) -> None:
        while self._woken:
            self._happen(self._woken.pop(0), "after its delay")

    def _happen(self, armed: Armed, when: str) -> None:
        fault, action = armed
        _report(self._place, f"{fault} happens now, {when}")
        action()

    def _prepare(self) -> None:
        for deadlock in self._deadlocks:
            deadlock.prepare()


def _report(place: JobPlace, text: str) -> None:
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


# Where this process is in the job


@dataclass(frozen=True, slots=True)
class JobPlace:
    """A rank's place: `cycle` counts restarts, `job` is text that is equal on all ranks and differs between jobs."""

    rank: int = 0
    world_size: int = 1
    cycle: int = 0
    job: str = ""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> JobPlace:
        """Reads what torchrun and ft_launcher set. Raises FaultSpecError for a value that is no number."""
        # Of two jobs that were both given no --rdzv-id, only the port differs.
        names = "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"
        return cls(
            rank=_number(environ, "RANK", 0),
            world_size=_number(environ, "WORLD_SIZE", 1),
            cycle=_number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
            job="|".join(environ.get(name, "") for name in names),
        )


def resolve(fault: Fault, index: int, place: JobPlace) -> Fault:
    """The fault with its own random choices made: kind `random` becomes `kill` or `stop`, rank becomes a number."""
    draw = _draw(fault, index, place, "choice")
    # Always drawn in this order, so that one choice does not depend on whether the other was asked for.
    kind, rank = draw.choice(["kill", "stop"]), draw.randrange(place.world_size)
    return replace(
        fault,
        kind=kind if fault.kind == "random" else fault.kind,
        rank=rank if fault.rank == "random" else fault.rank,
    )


def delay(fault: Fault, index: int, place: JobPlace) -> float:
    """Seconds from arming to a delayed fault: `after` + U(0, 1) · `rand`."""
    return (fault.after or 0.0) + _draw(fault, index, place, "delay").random() * fault.rand


def _draw(fault: Fault, index: int, place: JobPlace, purpose: str) -> random.Random:
    seed = place.job if fault.seed is None else str(fault.seed)
    return random.Random(f"{seed}/{place.cycle}/{index}/{purpose}")


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or (name == "WORLD_SIZE" and int(text) == 0):
        raise FaultSpecError(f"environment {name}={text!r} is not a number that a launcher would have set")
    return int(text)


# The fault `deadlock`


class Deadlock:
    """One `deadlock` fault on one rank: first `prepare` on every rank, then `perform` on those that act.

    It has a process group of its own. An extra collective in the job's own group would not hang on gloo: it would meet
    the next collective of the other ranks, which has another size, and end with an error. All ranks make the group
    together, as torch demands, at the first moment when torch.distributed is initialised.
    Does not cover: jobs without torch.distributed. torch is never imported here before the job has done so.
    """

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._group: ProcessGroup | None = None

    def prepare(self) -> None:
        """Makes the group once it can be made. Collective: every rank must call it at the same point of the program."""
        if self._group is not None or "torch" not in sys.modules:
            return
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            seconds = self._fault.duration
            self._group = dist.new_group(timeout=None if seconds is None else timedelta(seconds=seconds))

    def perform(self) -> None:
        """Enters the all_reduce and waits there until torch's timeout (`for=`), which ends it with torch's error."""
        if self._group is None:
            raise FaultSpecError(
                f"{self._fault}: torch.distributed was not initialised when the fault was armed or at the first "
                "at_step; call init_process_group before, or use the fault 'sleep'"
            )
        import torch
        import torch.distributed as dist

        on_gpu = dist.get_backend(self._group) == "nccl"
        dist.all_reduce(torch.ones(1, device="cuda" if on_gpu else "cpu"), group=self._group)
        if on_gpu:
            torch.cuda.synchronize()  # On a GPU the call above only enqueues.
