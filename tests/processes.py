"""Real processes for tests: start one, wait for what it does, stop it.

Owns `spawn`, the fixture that every test with processes uses. What always holds: output goes to files, so a full pipe
never blocks what is tested and what a killed process wrote is still there; every wait ends as soon as its event is
seen, and after its ceiling fails with the process's last lines; after the test nothing in the process's group lives.

Does not cover: children that left the process group. Ending those is the work of what is tested, and the leak fixture
reports the ones it forgot.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar, cast

import psutil
import pytest

T = TypeVar("T")
Environ = Mapping[str, str | None]
"""Laid over the test's environment; None takes a name out of it."""

CEILING = 120.0
"""Seconds after which a wait fails. Generous: reached only when something is broken, or on a very busy machine."""

POLL = 0.01


def wait_until(predicate: Callable[[], T | None], ceiling: float = CEILING, what: str = "") -> T:
    """The predicate's first true value; fails after `ceiling` seconds. For events that are no process's output."""
    deadline = time.monotonic() + ceiling
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"did not happen within {ceiling:g} s: {what or predicate}")
        time.sleep(POLL)


def alive(pid: int) -> bool:
    """Whether this process runs. A zombie does not: init may take seconds to reap an orphan."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def free_ports(count: int) -> tuple[int, ...]:
    """Ports that are free now, and below those that the kernel gives to connections: these may take one meanwhile."""
    free: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.SystemRandom().sample(range(10_000, 20_000), 1_000):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind(("", port))
                free.append(port)
            if len(free) == count:
                return tuple(free)
    raise OSError(f"there are no {count} free ports")


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]


class Spawned:
    """A running command. `stdout` and `stderr` are the files that its output goes to."""

    def __init__(self, process: subprocess.Popen[bytes], stdout: Path, stderr: Path) -> None:
        self.process = process
        self.stdout = stdout
        self.stderr = stderr
        self._known: dict[Path, tuple[int, str]] = {}

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; -n when signal n ended it."""
        return self.process.poll()

    def out(self) -> str:
        return self._text(self.stdout)

    def err(self) -> str:
        return self._text(self.stderr)

    def _text(self, file: Path) -> str:
        """A wait looks a hundred times a second, and the file only grows: it is read when it is longer."""
        size = file.stat().st_size
        known, text = self._known.get(file, (-1, ""))
        if size != known:
            text = file.read_text(errors="replace")
            self._known[file] = size, text
        return text

    def output(self) -> str:
        """Everything it wrote so far: standard output, then standard error."""
        return self.out() + self.err()

    def wait_for(self, what: str | Callable[[], T], ceiling: float = CEILING) -> re.Match[str] | T:
        """Wait until the output matches a regular expression (multi-line), or until a predicate is true.

        Returns the match or the predicate's value. Fails with the last lines of the output when the ceiling is
        reached, or when the process ended and what it waits for did not come.
        """
        look = (lambda: re.search(what, self.output(), re.MULTILINE)) if isinstance(what, str) else what
        deadline = time.monotonic() + ceiling
        while True:
            ended = self.returncode is not None  # asked before the look: its last words count
            found = look()
            if found:
                return found
            if ended:
                self._fail(f"ended with {self.returncode} and did not show {what!r}")
            if time.monotonic() > deadline:
                self._fail(f"did not show {what!r} within {ceiling:g} s")
            time.sleep(POLL)

    def wait(self, ceiling: float = CEILING) -> int:
        """Wait for its end; returns its exit code, -n when signal n ended it."""
        try:
            return self.process.wait(ceiling)
        except subprocess.TimeoutExpired:
            self._fail(f"still runs after {ceiling:g} s")

    def send_signal(self, number: int) -> None:
        """Send a signal to this process alone."""
        self.process.send_signal(number)

    def send_signal_to_group(self, number: int) -> None:
        """Send a signal to the process group, as a terminal does for Ctrl-C."""
        os.killpg(self.pid, number)

    def stop(self, number: int = signal.SIGTERM, ceiling: float = CEILING) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        if self.returncode is None:
            self.send_signal(number)
        return self.wait(ceiling)

    def kill(self) -> None:
        """SIGKILL to the whole group, and reap. Safe to call twice."""
        if self.process.returncode is None:  # not yet reaped, so the group's number is still ours
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.process.wait(CEILING)

    def _fail(self, why: str) -> NoReturn:
        command = " ".join(map(str, cast(list[object], self.process.args)))[:300]
        lines = self.output().splitlines()[-60:]
        pytest.fail("\n".join([command, f"  {why}. Its last lines:", *lines, *where_they_are(self.pid)]))


class Spawner:
    """Starts commands, each in a session of its own, and ends them after the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Spawned] = []

    def __call__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        env: Environ | None = None,
        cwd: str | os.PathLike[str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Spawned:
        """Start a command."""
        number = len(self._started)
        stdout, stderr = self._folder / f"{number}.out", self._folder / f"{number}.err"
        merged: dict[str, str | None] = {**os.environ, **(env or {})}
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = subprocess.Popen(
                list(command),
                env={name: value for name, value in merged.items() if value is not None},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        self._started.append(Spawned(process, stdout, stderr))
        return self._started[-1]

    def python(self, code_or_file: str | Path, *args: str, env: Environ | None = None) -> Spawned:
        """Start this Python: a Path is run as a script, a string as `-c` code."""
        what = [str(code_or_file)] if isinstance(code_or_file, Path) else ["-c", code_or_file]
        return self([sys.executable, *what, *args], env=env)

    def end_all(self) -> None:
        for spawned in reversed(self._started):
            spawned.kill()


@pytest.fixture
def spawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawner]:
    """Start processes: `spawn(["ft_launcher", ...])` or `spawn.python("print(1)")`. See `Spawned` for what follows."""
    spawner = Spawner(tmp_path_factory.mktemp("spawn"))
    yield spawner
    spawner.end_all()


# -- where a process and its children are, for the report of a test that waited in vain: a hang leaves nothing else


MOST = 20
"""Processes. More than that is a wrong one, and a report too long to read."""


def where_they_are(pid: int) -> list[str]:
    """Lines: each process, where the kernel has it, and its Python stacks if py-spy is installed and may look."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    return [line for each in family[:MOST] for line in _where(each)]


def _where(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error, OSError):
        command = " ".join(" ".join(process.cmdline()).split())[:120]
        lines = [f"-- {process.pid} ({process.status()}) {command}"]
        for task in sorted(Path(f"/proc/{process.pid}/task").iterdir()):
            lines.append(f"   thread {task.name} {(task / 'comm').read_text().strip()}: {_kernel(task)}")
        return lines + _python(process.pid)
    return []


def _kernel(task: Path) -> str:
    with contextlib.suppress(OSError):
        return (task / "wchan").read_text() or "?"
    return "?"


def _python(pid: int) -> list[str]:
    found = shutil.which("py-spy", path=f"{Path(sys.executable).parent}")
    if found is None:
        return []
    # Not blocking: a stack that is a little wrong is better than a process that is stopped while others wait for it.
    line = [found, "dump", "--nonblocking", "--pid", str(pid)]
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(line, capture_output=True, text=True, timeout=10, check=False)
        return [f"   {text}" for text in done.stdout.splitlines()[3:]]
    return []
