"""Keeps one monitor process in charge: starts it, replaces one that is dead or stopped, ends it at last.

Training does not notice any of this: ranks write their boards whether they are read or not. When no monitor can be
started, or each dies before its first scan, that is logged once and tried again, ever more rarely.
Does not cover: supervision meanwhile; training continues without it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..monitor.control import SCAN, Channel, ControlPage, Settings
from ..monitor.main import start
from ..processes import proc
from .inbox import Inbox

logger = logging.getLogger("holdfast.launcher")
MAIN = "holdfast.fault_tolerance.monitor.main"
SILENT = 3.0  # seconds without a tick (it ticks every second) after which a monitor is replaced
OWN_GAP = 2.0  # seconds this launcher itself may oversleep before it distrusts its own observation
NO_PROCESS = "no process can be started: {}"
LONGEST_PAUSE = 60.0  # seconds between two attempts to start a monitor when all before have failed
LOGGED_AT = 3  # failures in a row
ENDS = 1.0  # seconds in which a killed monitor ends, unless it is frozen or waits for a disk


class MonitorKeeper:
    """One monitor at a time, each with an epoch of its own; the keeper adds this and its own pid to the settings."""

    def __init__(
        self,
        settings: Settings,
        control: ControlPage,
        inbox: Inbox,
        on_replaced: Callable[[str], object],
    ) -> None:
        self._control, self._inbox, self._on_replaced = control, inbox, on_replaced
        own = os.getpid()
        self._settings = replace(settings, launcher_pid=own, launcher_start=proc.start_time(own) or 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._handle = -1  # pidfd: readable once the monitor has ended
        self._tick = -1
        self._tick_before = 0
        self._ticked = self._asked = time.monotonic()
        self.is_held = False  # no process may be started now: a sweep would end it
        self._failures = 0  # attempts in a row that did not lead to a single scan
        self._next_attempt = 0.0

    @property
    def pid(self) -> int:
        """Pid of the monitor in charge, or 0."""
        return self._process.pid if self._process else 0

    def open(self) -> None:
        """Start the first one; if none can be started, :meth:`check` tries again."""
        try:
            self.start()
        except OSError as error:
            self._count_failures(NO_PROCESS.format(error), time.monotonic(), failed=True)

    def move_to(self, control: ControlPage) -> None:
        """Use another control page, and a monitor that sees it."""
        self._control.epoch += 1  # the monitor that sees only the old page leaves
        control.epoch = self._control.epoch
        self._control = control
        self._next_attempt = 0.0
        self._replace("its control page was removed", time.monotonic())

    def start(self) -> None:
        """Put a new monitor in charge; the one before must not act from now on. OSError if none can be started."""
        self._control.epoch += 1
        self._tick_before = self._control.tick
        self._ticked = self._asked = time.monotonic()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                settings = replace(self._settings, epoch=self._control.epoch, channel=theirs.fileno())
                self._process = start(MAIN, settings, theirs.fileno())
                self._handle = os.pidfd_open(self._process.pid)
            except OSError:
                ours.close()
                self._end()
                raise
        self._channel = channel = Channel(ours)
        self._inbox.watch(channel.fileno(), lambda: self._on_readable(channel))
        handle = self._handle
        self._inbox.watch(handle, lambda: self._on_end(handle))

    def _on_readable(self, channel: Channel) -> None:
        if channel is not self._channel:
            return  # replaced between the wait and this call
        messages = self.messages()
        if not messages:
            # End of file: the monitor ends. Its pidfd is readable then; until then do not spin on this descriptor.
            self._inbox.ignore(channel.fileno())
        for message in messages:
            self._inbox.post(message)

    def _on_end(self, handle: int) -> None:
        self._inbox.ignore(handle)  # it stays readable, also while the next attempt has to wait
        if handle == self._handle and not self.is_held:
            self.check(time.monotonic())

    def messages(self) -> list[dict[str, Any]]:
        """What the monitor has reported so far; it reports before it acts. The inbox gets each as it is."""
        return list(self._channel.receive()) if self._channel else []

    def scan(self) -> None:
        """Have it read the boards now."""
        if self._channel:
            self._channel.send(SCAN)

    def check(self, now: float) -> None:
        """Replace the monitor if it is dead or stopped. Call it about once a second; a death is detected at once."""
        if now - self._asked > OWN_GAP:
            self._ticked = now  # this launcher was suspended itself: the monitor may have been too
        self._asked = now
        if self._control.tick != self._tick:
            self._tick, self._ticked = self._control.tick, now
        status = self._process.poll() if self._process else None
        if self._process is None:
            self._replace("there was none", now)
        elif status is not None:
            self._replace(f"it ended with status {status}", now)
        elif now - self._ticked > SILENT:
            self._replace(f"it made no progress for {SILENT:.0f} s", now)

    def _replace(self, why: str, now: float) -> None:
        if now < self._next_attempt:
            return
        before, never_scanned = self.pid, self._control.tick == self._tick_before
        for last_word in self.messages():
            self._inbox.post(last_word)
        self._end()
        try:
            self.start()
        except OSError as error:
            why = NO_PROCESS.format(error)
        else:
            self._on_replaced(f"monitor {before}: {why}; monitor {self.pid} takes over")
        self._count_failures(why, now, failed=never_scanned)

    def _count_failures(self, why: str, now: float, *, failed: bool) -> None:
        """Monitors in a row that were lost before their first scan: wait longer for the next, and log it once."""
        self._failures = self._failures + 1 if failed else 0
        self._next_attempt = now + min(LONGEST_PAUSE, 2.0**self._failures) if self._failures > 1 else now
        if self._failures == LOGGED_AT:
            logger.error("the monitor keeps dying (%s): training continues, hangs are not detected", why)

    def _end(self) -> None:
        if self._channel:
            self._inbox.ignore(self._channel.fileno())
            self._channel.close()
            self._channel = None
        if self._handle >= 0:
            self._inbox.ignore(self._handle)
            os.close(self._handle)
            self._handle = -1
        if self._process:
            self._process.kill()
            # One that is frozen or in a disk wait ends later, without having acted: it is superseded.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDS)
            self._process = None

    def close(self) -> None:
        """End it in good order: superseded, it leaves; otherwise it would take the launcher's end for a crash."""
        self._control.epoch += 1
        self.scan()
        if self._handle >= 0:
            ended = select.poll()  # at once, where Popen.wait polls ever more rarely
            ended.register(self._handle, select.POLLIN)
            ended.poll(500)
        self._end()
