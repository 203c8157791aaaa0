"""The life of a zygote: deaf, tied to the launcher, importing; then forking a standby for every gate that it is sent.

It tells the launcher `refused` (a module, and why) and ends, or `ready`, and after each request `forked`. Which module
it is importing stands in a file in memory that the launcher can read when the zygote hangs.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any, NoReturn

from . import appearance, folders, known, preload, process, sacrifice, standby, surroundings, wire
from .output import Kept
from .settings import Settings
from .watch import Watch

OWN: list[str] = []
"""Modules that a standby forgets when it leaves, found before the fork: to look through all names in a standby would
have the kernel copy the page of every one."""
WORK, LONGEST_REST = 0.01, 1.0  # seconds
DEAF = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def serve(settings: dict[str, Any]) -> None:
    """Returns only in a standby that was let through; everything else ends the process, or raises."""
    zygote = Zygote(settings)
    zygote.say("here")
    try:
        zygote.import_all()
        zygote.fork_on_request()
    except BaseException as error:
        zygote.end(failed=repr(error))


class Zygote:
    """One zygote; in a standby, what it has inherited. `settings`: launcher (its pid), channel and note
    (descriptors), modules (entries, see :mod:`.preload`), without (names of packages), signals (to be deaf to), and
    gently (whether to rest half of the time)."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._launcher = int(settings["launcher"])
        standby.tie(self._launcher)
        self._name = appearance.name()
        self._pretend("zygote")
        numbers = {*DEAF, *map(signal.Signals, settings["signals"])}
        self._score = sacrifice.offer()
        self._handlers = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        self._channel = socket.socket(fileno=settings["channel"])
        self._note = int(settings["note"])
        self._installed = preload.roots()
        self._modules = preload.wanted(settings["modules"], frozenset(settings["without"]), self._installed)
        self._kept = Kept()
        self._gently, self._worked = bool(settings["gently"]), time.process_time()
        self._changes: dict[str, str | None] = {}

    def _pretend(self, what: str) -> None:
        """Nobody who looks for the script's processes is to find this one."""
        appearance.call(f"hf-{what}")
        appearance.show([f"holdfast: {what} of launcher {self._launcher}"], {})

    def import_all(self) -> None:
        """Import the list, and tell the launcher that this zygote is ready."""
        if why := surroundings.unfit():
            self.end(failed=why)
        before = dict(os.environ)
        there = set(sys.modules)
        self._kept.begin()
        self._settings = Settings()
        with Watch(self._refuse, self._installed, list(self._handlers), self._rest) as watch:
            failed = preload.load(self._modules, self._tell, lambda name: self._look(watch, name))
            if fault := watch.trial():
                self.end(failed=fault)
        self._kept.end()
        folders.give_up()
        self._changes = _changes(before, dict(os.environ))
        self._tell("")
        self._folders = folders.kept()
        OWN.extend(name for name in sys.modules if name.partition(".")[0] == __package__)
        gc.collect()
        gc.freeze()
        names = sorted({name.partition(".")[0] for name in sys.modules.keys() - there})
        self.say("ready", names=names, modules=len(sys.modules), failed=failed)

    def _rest(self) -> None:
        """As long as it has worked since, so that training is not in want of a processor."""
        if self._gently and (worked := time.process_time() - self._worked) > WORK:
            time.sleep(min(worked, LONGEST_REST))
            self._worked += worked

    def _tell(self, name: str) -> None:
        wire.note(self._note, name)

    def _look(self, watch: Watch, name: str) -> None:
        if (
            process.has_initialised_cuda()
        ):  # first: it also opens files and starts threads, and no trial may fork
            self._refuse([name], "it initialises CUDA")
        if (
            changed := self._settings.changed()
        ):  # before the watch: a handler of signals may be in the way of a trial
            self._refuse([name], changed)
        if found := watch.changed():
            module, why = found
            self._refuse([name, module or name], why)

    def _refuse(self, stack: list[str], why: str) -> NoReturn:
        """Whatever was importing it has to go without being imported here, too."""
        names = (*stack, wire.noted(self._note))
        without = sorted({name.partition(".")[0] for name in names if name})
        self.end(refused=stack[-1], why=why, without=without)

    def say(self, word: str, **more: Any) -> None:
        """Tell the launcher. Raises OSError when it is gone."""
        wire.send(self._channel, {"said": word, **more})

    def end(self, **message: Any) -> NoReturn:
        """Tell the launcher why, and end."""
        try:
            folders.give_up()
            self.say("end", **message)
        finally:
            os._exit(1)

    def fork_on_request(self) -> None:
        """One standby for each gate that comes; returns in the standby that was let through."""
        while (request := wire.receive(self._channel)) is not None:
            if process.threads() > 1 and (process.fork_fault() or process.more_than_one_thread()):
                self.end(failed="a thread has started in the zygote")
            _, gates = request
            for gate in gates:
                pid = standby.fork(self._launcher)
                if pid == 0:
                    return self._stand_by(gate, gates)
                self.say("forked", pid=pid)
            wire.close(gates)
        os._exit(0)

    def _stand_by(self, gate: int, gates: Iterable[int]) -> None:
        try:
            self._channel.close()
            wire.close({self._note, *gates} - {gate})
            self._pretend("standby")
            standby.wait(socket.socket(fileno=gate), self._become)
        except BaseException:
            os._exit(1)  # before it has said that it goes: the launcher starts another process in its place

    def _become(self, message: dict[str, Any]) -> None:
        appearance.call(self._name)
        appearance.show(sys.orig_argv, message["environment"])
        standby.set_environment(message["environment"], self._changes)
        standby.renew()
        folders.renew(self._folders)
        known.repair()
        self._kept.repeat()
        sacrifice.withdraw(self._score)
        for number, handler in self._handlers.items():
            if handler is None:  # not set by Python: nobody knows to what
                continue
            signal.signal(number, handler)


def _changes(before: dict[str, str], after: dict[str, str]) -> dict[str, str | None]:
    """Variables that were set (to what) or removed (None)."""
    removed: dict[str, str | None] = dict.fromkeys(before.keys() - after.keys())
    return removed | {name: value for name, value in after.items() if before.get(name) != value}
