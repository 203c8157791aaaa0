"""The life of a zygote and of its forks: deaf to the training's signals, tied to the launcher, forking on request.

A request comes with the other end of a new process's gate. The process waits there until it gets its role:

    rank     environment and output; it makes new what no two processes may share, and leaves `serve`
    zygote   a list of modules: it imports them, replies `ready` or `refused` at its gate, and takes requests there
    store    the host of the ranks' stores (:mod:`...store_host`), until its gate is closed

So a module that cannot be imported ahead never costs more than the fork that has tried it. A process ends with the
launcher, or when its gate or channel is closed. It has a session of its own, as cold ranks have.
Source: fork(2), prctl(2), PR_SET_PDEATHSIG and PR_SET_NAME; multiprocessing's authentication key; proc(5) on
oom_score_adj and environ.
Does not cover: random generators of other packages than Python, numpy and torch that were seeded by being imported; in
/proc a rank has the environment of its zygote, except for the place of its board.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from . import inspection, preload, wire

OWN: list[str] = []
"""Modules that a standby forgets when it becomes a rank, found before the fork: to look through all names in a standby
would have the kernel copy the page of every one."""
DEAF = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
ADOPTION = 2.0
"""Seconds in which the kernel has given an orphan to the launcher."""
STARTED = b"s"
BOARD = "FT_RANK_MONITOR_IPC_SOCKET"
PLACE = "HOLDFAST_PLACE"
"""A long variable in the environment with which the zygote was started. A rank writes its own variables into the memory
of that, so /proc/PID/environ has them. The processes that a rank leaves behind are found by its board there."""
OOM_SCORE, FIRST = "/proc/self/oom_score_adj", 1000
libc = ctypes.CDLL(None)


def serve(settings: dict[str, Any]) -> None:
    """Returns only in a standby that has become a rank; everything else ends the process, or raises, upon which the
    prologue ends it. That holds in each fork.

    Args:
        settings: `launcher`, its pid; `channel`, a descriptor; `signals`, more signals to ignore.
    """
    Zygote(settings).serve()


class Zygote:
    """One zygote, and in a fork what it has inherited."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._launcher = int(settings["launcher"])
        _tie(self._launcher)
        with open("/proc/self/comm") as file:
            self._name = file.read().rstrip("\n")
        _set_name("hf-zygote")
        self._oom_score = _offer_to_the_oom_killer()
        numbers = {*DEAF, *map(signal.Signals, settings["signals"])}
        self._handlers = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        self._channel = socket.socket(fileno=settings["channel"])
        libc.getenv.restype = ctypes.c_void_p
        self._place = libc.getenv(PLACE.encode()), len(os.environ.pop(PLACE, ""))
        self._environment = dict(os.environ)
        self._there = set(sys.modules)
        self._output = preload.Output()
        OWN.extend(name for name in sys.modules if name.partition(".")[0] == __package__)

    def serve(self) -> None:
        """One process for each gate that comes; returns in the one that has become a rank."""
        if why := inspection.unfit_from_the_start():
            self._end(failed=why)
        while (request := wire.receive(self._channel)) is not None:
            _, (gate,) = request
            if inspection.has_started_a_thread():
                self._end(failed="a thread has started in the zygote")
            if pid := _fork(self._launcher):
                wire.send(self._channel, {"forked": pid})
                os.close(gate)
            elif self._take_role(gate):
                return
        os._exit(0)

    def _end(self, **message: Any) -> None:
        """Report why, and end."""
        try:
            wire.send(self._channel, message)
        finally:
            os._exit(1)

    def _take_role(self, gate: int) -> bool:
        """Wait at the gate for a role; whether it is that of a rank."""
        self._channel.close()
        self._channel = socket.socket(fileno=gate)
        _set_name("hf-standby")
        os.setsid()
        with suppress(OSError):
            if found := wire.receive(self._channel):
                message, descriptors = found
                if message["role"] == "rank":
                    self._become_a_rank(message, descriptors)
                    return True
                if message["role"] == "zygote":
                    self._import(*descriptors)
                    return False
                self._leave_the_oom_killer()
                _host_a_store(message["module"], gate)
        os._exit(0)

    # -- a zygote ---------------------------------------------------------------------------------------------

    def _import(self, file: int) -> None:
        """Import this list, and report whether ranks can be forked from here."""
        _set_name("hf-zygote")
        failed: dict[str, str] = {}
        try:
            installed = preload.roots()
            with self._output.kept(), inspection.Inspection(installed, list(self._handlers)) as process:
                for name in preload.missing(wire.read_list(file), failed):
                    wire.note(file, name)
                    if why := preload.load(name):
                        failed[name] = why
                    process.see_new()
                wire.note(file, wire.ALL)
                if why := process.fault():
                    inspection.remove_folders()
                    self._end(refused=why)
        except BaseException as error:
            self._end(failed=repr(error))
        wire.note(file, "")
        os.close(file)
        inspection.remove_folders()
        gc.collect()
        gc.freeze()
        names = sorted({name.partition(".")[0] for name in sys.modules.keys() - self._there})
        wire.send(self._channel, {"ready": names, "failed": failed})

    # -- a rank -----------------------------------------------------------------------------------------------

    def _become_a_rank(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        # Where standard streams were closed, what was received may have one of their numbers.
        aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3) for descriptor in descriptors]
        wire.close(descriptors)
        for stream, descriptor in zip(message["streams"], aside, strict=True):
            os.dup2(descriptor, stream)
        wire.close(aside)
        _set_name(self._name)
        self._show_variables(message["environment"])
        self._set_environment(message["environment"])
        _renew()
        inspection.repair()
        self._output.repeat()
        self._leave_the_oom_killer()
        for number, handler in self._handlers.items():
            if handler is not None:  # set by Python
                signal.signal(number, handler)
        self._channel.send(STARTED)
        self._channel.close()

    def _leave_the_oom_killer(self) -> None:
        if self._oom_score is not None:
            _set_oom_score(self._oom_score)

    def _set_environment(self, given: Mapping[str, str]) -> None:
        """As given, and on top of it what the imported modules have set or removed."""
        now = dict(os.environ)
        os.environ.clear()
        os.environ.update(given)
        for name in self._environment.keys() - now.keys():
            os.environ.pop(name, None)
        os.environ.update(
            (name, value) for name, value in now.items() if self._environment.get(name) != value
        )

    def _show_variables(self, given: Mapping[str, str]) -> None:
        """The variables that the zygote does not have, as far as there is room, the board's first."""
        address, length = self._place
        if not address:
            return
        names = sorted(
            given.keys() - self._environment.keys(), key=lambda name: (name != BOARD, len(given[name]))
        )
        text = b""
        for entry in (os.fsencode(f"{name}={given[name]}") + b"\0" for name in names):
            text += entry if len(text) + len(entry) <= length else b""
        begin = address - len(PLACE) - 1
        ctypes.memset(begin, 0, len(PLACE) + 1 + length)
        ctypes.memmove(begin, text, len(text))


def _renew() -> None:
    """Make new what two processes must not have in common. Python's own `random` does so by itself at a fork."""
    if threading := sys.modules.get("threading"):
        threading.main_thread()._set_native_id()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()  # from the system, as at its import
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()
    if processes := sys.modules.get("multiprocessing.process"):
        processes.current_process().authkey = os.urandom(32)


def _host_a_store(module: str, control: int) -> None:
    """Run `serve` of this file, which belongs to Holdfast and imports nothing else of it."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("holdfast_store_host", module)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    _set_name("hf-store")
    found.serve(control)


# -- processes ---------------------------------------------------------------------------------------------------


def _fork(launcher: int) -> int:
    """0 in a new process, which is a child of the launcher; its pid in the zygote. OSError when there is none."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        parent = os.getpid()
        try:
            child = os.fork()
        except OSError:
            os._exit(1)
        if child != 0:
            os._exit(0)
        os.close(reader)
        _outlive(parent)
        _tie(launcher)
        # Only now does anybody know of it: one that is stopped before it is tied would outlive the launcher.
        os.write(writer, os.getpid().to_bytes(4, "little"))
        os.close(writer)
        return 0
    os.close(writer)
    os.waitpid(middle, 0)
    pid = os.read(reader, 4)
    os.close(reader)
    if not pid:
        raise BlockingIOError("no process can be forked")
    return int.from_bytes(pid, "little")


def _outlive(parent: int) -> None:
    """Wait until the parent has ended and the kernel has given away its children.

    Not sooner: while the kernel does so, it sends the parent-death signal to those that ask for it at that moment.
    """
    until = time.monotonic() + ADOPTION
    while time.monotonic() < until:
        try:
            with open(f"/proc/{parent}/stat", "rb") as file:
                if file.read().rpartition(b") ")[2][:1] in b"ZX":
                    return
        except OSError:
            return  # it has been waited for
        time.sleep(0.0002)


def _tie(launcher: int) -> None:
    """End with the launcher, whose child this process is, or is about to be."""
    until = time.monotonic() + ADOPTION
    while os.getppid() != launcher:
        if time.monotonic() > until:
            os._exit(1)
        time.sleep(0.0002)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)


def _set_name(short: str) -> None:
    """The name that `top` and `ps -e` show; of at most 15 bytes."""
    libc.prctl(PR_SET_NAME, short.encode())


def _offer_to_the_oom_killer() -> int | None:
    """Where memory runs out, the kernel ends this process before any rank. Returns the score that was in force; None:
    the kernel does not allow it."""
    try:
        with open(OOM_SCORE) as file:
            before = int(file.read())
        _set_oom_score(FIRST)
    except (OSError, ValueError):
        return None
    return before


def _set_oom_score(score: int) -> None:
    with open(OOM_SCORE, "w") as file:
        file.write(str(score))
