"""The health of this node: checked before it asks for a place and while its ranks train, and reported.

The first check runs while the launcher prepares the rest. Each later check is a thread, of which one runs at a time.
The controller decides what follows.
What always holds: the launcher waits for no check; each answer to `CheckHealth` comes, whatever hangs; a finding is
reported once, until it is gone. A restart waits only for memory of GPUs that ranks of this launcher hold.
Does not cover: pids of a container's own namespace where NVML has those of the machine: a restart does not wait then.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.health import ABSENT, GOOD, SICK, Finding, host, probe, programs
from holdfast.health.checks import Checks, Wanted
from holdfast.health.storage import CHECK as STORAGE
from holdfast.in_time import TooLate, UnderWay
from holdfast.journal.writer import Journal

from .control.messages import Health, Put, Suspected
from .store import StoreClient, StoreGone

if TYPE_CHECKING:
    from ..config import FaultToleranceConfig

logger = logging.getLogger("holdfast.launcher")
DOMAIN = 1.0
"""Seconds to wait for the NVLink domain, before the job's store is joined."""
MEMORY_INTERVAL = 0.05
"""Seconds between two readings of the memory of GPUs."""
CLOCK_KEY = "clock"
"""In the store: the time that a node has reported last."""


class NodeHealth:
    """The checks of this node, from the launcher's start on; `post` takes events, from any thread."""

    def __init__(
        self, wanted: Wanted, config: FaultToleranceConfig, journal: Journal, post: Callable[[object], object]
    ) -> None:
        self._wanted, self._config, self._journal, self._post = wanted, config, journal, post
        self._checks = Checks(wanted)
        self._lock = threading.Lock()  # held by one check after the other
        self._reported: dict[tuple[str, str], Finding] = {}
        self._posted: Health | None = None  # the newest, if it is sick
        self._cycle, self._next = 0, 0.0  # when the next check is due while ranks train, in monotonic seconds
        self._stops_waiting = threading.Event()
        self._pauses = 0  # begun or ended, since ranks were stopped
        self.store: StoreClient | None = None
        self.is_closed = False
        self._first: UnderWay[list[Finding]] | None = None
        with suppress(RuntimeError):  # no thread can be started
            self._first = UnderWay(self._run)

    def _run(self, *, trains: bool = False) -> list[Finding]:
        with self._lock:
            return self._checks.run(trains=trains)

    def notes(self) -> tuple[str, ...]:
        """What was found and is not gone, in a sentence each, for reports."""
        return tuple(f"Health of the node, {each.line}." for each in self._reported.values())

    def domain(self) -> str:
        """The NVLink domain of the GPUs; "" where there is none, or the driver does not answer."""
        if not self._wanted.driver:
            return ""
        with suppress(probe.Unanswered, ValueError):
            (found,) = self._checks.gpus.ask("cluster", DOMAIN)
            return found if isinstance(found, str) else ""
        return ""

    # -- checks -----------------------------------------------------------------------------------------------

    def check(self, cycle: int) -> None:
        """Check in full, and answer by `Health`. The launcher's first check serves for the first one."""
        self._cycle = cycle
        first, self._first = self._first, None

        def work() -> None:
            try:
                found = self._run() if first is None else first.answer(2 * self._wanted.seconds + 1.0)
                self._report([*found, *self._clock()])
            except TooLate:
                logger.warning("the check of this node's health has no result")
            except Exception as error:
                self._journal.record("launcher_error", what="the check of this node", error=repr(error))
            finally:
                self._post_health(cycle, is_asked=True)

        try:
            UnderWay(work)
        except RuntimeError:
            self._post(Health(cycle))

    def every_second(self, cycle: int, *, trains: bool) -> None:
        """While ranks train: the checks of the interval, if they are due."""
        interval, now = self._config.node_health_check_interval, time.monotonic()
        if not trains or interval is None:
            self._next = now + (interval or 0.0)
            return
        if now < self._next or self._lock.locked():
            return
        self._cycle, self._next = cycle, now + interval
        pauses = self._pauses

        def work() -> None:
            found = self._run(trains=True)
            if pauses != self._pauses:
                return  # the ranks were stopped meanwhile, and processes of the check may be missing
            is_full = any(each.check == STORAGE for each in found)
            self._report([*found, *(self._clock() if is_full else [])])
            self._post_health(cycle)

        with suppress(RuntimeError):
            UnderWay(work)

    def pause(self, is_paused: bool) -> None:
        """Ranks are being stopped, and no process may be started; or they are gone."""
        self._pauses += 1
        programs.pause(is_paused)

    def take_first(self) -> None:
        """Report what the first check finds, where no controller asks for it."""
        first, self._first = self._first, None
        if first is not None:
            with suppress(RuntimeError):
                UnderWay(lambda: self._report(first.answer(2 * self._wanted.seconds + 1.0)))

    def _clock(self) -> list[Finding]:
        store = self.store
        if store is None:
            return []

        def swap(text: str) -> str:
            try:
                reported = store.ask(CLOCK_KEY, 1.0)
                store.ask(Put(CLOCK_KEY, text), 1.0)
            except StoreGone:
                return ""
            return reported

        return host.check_clock(self._wanted.node, swap)

    def _post_health(self, cycle: int, *, is_asked: bool = False) -> None:
        """Post what makes this node sick in this cycle, if it has changed."""
        sick = [each for each in self._reported.values() if each.verdict == SICK]
        is_own = not sick or any(each.is_hardware or each.check == "command" for each in sick)
        health = Health(cycle, "; ".join(map(_safe, sick)), is_own)
        before, self._posted = self._posted, health if sick else None
        if is_asked or self._posted != before:
            self._post(health)

    def _report(self, found: list[Finding]) -> None:
        """Log and record what is new; forget what is gone."""
        bad = {each.key: each for each in found if each.verdict not in (GOOD, ABSENT)}
        checked = {each.check for each in found}
        new = [] if self.is_closed else [each for key, each in bad.items() if key not in self._reported]
        self._reported = {key: each for key, each in self._reported.items() if key[0] not in checked} | bad
        for each in new:
            line = _safe(each)
            logger.warning("health of this node: %s (%s)", line, each.verdict)
            fields = {
                "check": each.check,
                "verdict": each.verdict,
                "text": line,
                "hardware": each.is_hardware,
            }
            self._journal.record("health", cycle=self._cycle, **fields)
            if each.is_hardware:
                suspect = {"suspect": self._wanted.node, "facts": f"node {self._wanted.node}: {line}"}
                self._journal.record("node_suspected", cycle=self._cycle, **suspect)
                self._post(Suspected())

    # -- the memory of GPUs -----------------------------------------------------------------------------------

    def await_memory(self, pids: Collection[int], then: Callable[[], object]) -> bool:
        """Wait until these ended processes hold no GPU memory, then call; False: there is nothing to wait for."""
        config = self._config
        if not pids or not self._wanted.driver or not config.gpu_memory_reclaim_timeout:
            return False
        seconds, tolerance = config.gpu_memory_reclaim_timeout, config.gpu_memory_tolerance_mb or 0.0
        self._stops_waiting.clear()

        def work() -> None:
            began = time.monotonic()
            held: list[list[int]] = []
            # Whatever the answer is, the ranks start.
            with suppress(probe.Unanswered, ValueError, TypeError, LookupError):
                while not self._stops_waiting.is_set():
                    (holders,) = self._checks.gpus.ask("holders", self._wanted.seconds)
                    held = [each for each in holders if each[1] in pids] if isinstance(holders, list) else []
                    if not held or sum(each[2] for each in held) <= tolerance:
                        break
                    if time.monotonic() - began >= seconds:
                        who = ", ".join(
                            f"process {pid} holds {size} MiB of GPU {gpu}" for gpu, pid, size in held
                        )
                        text = f"GPU memory is not free {seconds:g} s after the ranks ended: {who}"
                        logger.error("%s. The ranks start nevertheless", text)
                        self._journal.record("gpu_memory_held", cycle=self._cycle, text=text)
                        break
                    self._stops_waiting.wait(MEMORY_INTERVAL)
            waited = time.monotonic() - began
            if waited > 1.0:
                logger.info("waited %.1f s for the GPU memory of the ranks that ended", waited)
            then()

        try:
            UnderWay(work)
        except RuntimeError:
            return False
        return True

    def stop_waiting(self) -> None:
        """A stop signal came: start the ranks, which then get it."""
        self._stops_waiting.set()

    def close(self) -> None:
        """End the processes that check."""
        self.is_closed = True
        self.stop_waiting()
        self._checks.close()


def _safe(finding: Finding) -> str:
    """The finding without secrets, which a command of the user's may print."""
    from holdfast.incidents.report.redaction import redacted_text

    return redacted_text(finding.line, os.environ)
