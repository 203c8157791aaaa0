"""One scenario under one launcher: started, watched to its end, its remains counted, and everything ended.

What always holds: whatever happens here, also Ctrl-C, nothing that was started lives on; it is found by a mark in its
environment, wherever it went. As root each node has a name and a /dev/shm of its own, so that what is left is known.
Does not cover: the end of this very process by SIGKILL; its jobs end by themselves then, but for those that hang.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from benchmarks.launchers import environment

from . import facts
from .facts import Facts
from .launching import ROOT, Runner, command, free_port
from .marked import MARK, Marked, below, command_of
from .point import VARIABLE
from .scenarios import Scenario
from .surroundings import around, tools

POLL, GRACE = 0.02, 2.0
"""Seconds between two looks; and for what is just on its way out."""

_IN_PLACE = (
    'mount --bind "$1" /dev/shm && mount --bind "$2" /etc/hosts && hostname "$3" && shift 3 && exec "$@"'
)


class Interrupted(Exception):
    """Somebody wants the whole corpus to end."""


class Job:
    """A scenario that runs."""

    def __init__(self, scenario: Scenario, runner: Runner, folder: Path, silent_port: int) -> None:
        self._scenario, self._runner, self._folder = scenario, runner, folder
        self._marked = Marked()
        self._silent_port = silent_port
        self._launchers: list[subprocess.Popen[bytes]] = []
        self._lost: int | None = None
        self._temporary = tempfile.mkdtemp(prefix="corpus-")

    def run(self, ceiling: float, patience: float | None, over: threading.Event) -> Facts:
        """To its end, for `ceiling` seconds, or until nothing has come of the fault for `patience` seconds.

        Raises Interrupted when `over` is set meanwhile.
        """
        with ExitStack() as stack:
            # Not in the folder: the path of a socket may have 107 bytes.
            stack.callback(shutil.rmtree, self._temporary, ignore_errors=True)
            around(self._scenario, self._folder, stack)
            stack.callback(self._end)  # before what is around it goes: a cgroup has to be empty
            began = time.monotonic()
            self._prepare()
            for node in range(len(self._scenario.nodes)):
                self._launchers.append(self._start(node))
            self._watch(began + ceiling, patience, over)
            took = time.monotonic() - began
            codes = tuple(
                None if node == self._lost else launcher.poll()
                for node, launcher in enumerate(self._launchers)
            )
            return self._facts(codes, tuple(self._left(codes)), took)

    def _prepare(self) -> None:
        (self._folder / "data").write_text("0")
        weights = {"step": 0, "weights": [0.0] * 8}
        (self._folder / "checkpoint").write_text(json.dumps(weights))
        (self._folder / "hosts").write_text("127.0.0.1 localhost node-a node-b\n")
        self._port = free_port()

    def _start(self, node: int) -> subprocess.Popen[bytes]:
        line = command(self._runner, self._scenario, node, self._folder, self._port)
        if tools():
            shm = self._shm(node)
            shm.mkdir()
            names = [str(shm), str(self._folder / "hosts"), f"node-{'ab'[node]}"]
            space = ["unshare", "--mount", "--uts", "--propagation", "private"]
            line = [*space, "sh", "-c", _IN_PLACE, "sh", *names, *line]
        with (self._folder / f"log-{node}").open("wb") as log:
            return subprocess.Popen(
                line,
                env=self._environment(),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        one = self._scenario
        given = {
            **{"kind": one.kind, "phase": one.phase, "rank": one.rank, "step": one.step},
            **{"everyone": one.everyone, "workers": one.workers},
            "port": self._silent_port,
        }
        return environment(
            **{MARK: self._marked.mark, VARIABLE: json.dumps(given)},
            XDG_STATE_HOME=str(self._folder),
            TMPDIR=self._temporary,
            PYTHONPATH=f"{ROOT}:{ROOT / 'src'}",
            GLOO_SOCKET_IFNAME="lo",
        )

    def _shm(self, node: int) -> Path:
        return Path(f"/dev/shm/corpus-{self._marked.mark}-{node}")

    def _watch(self, deadline: float, patience: float | None, over: threading.Event) -> None:
        while time.monotonic() < deadline:
            if over.is_set():
                raise Interrupted
            if all(
                node == self._lost or each.poll() is not None for node, each in enumerate(self._launchers)
            ):
                return
            if patience is not None and self._ignored(patience):
                return
            if self._lost is None and self._scenario.kind in ("node_lost", "launcher_lost"):
                self._lose()
            time.sleep(POLL)

    def _ignored(self, patience: float) -> bool:
        """Whether the fault happened so long ago, and no rank has been started again."""
        happened = facts.happened(self._folder)
        waited = happened is not None and time.monotonic() - happened > patience
        return waited and facts.cycles(self._folder) == 1

    def _lose(self) -> None:
        """Kill the node whose rank says that the moment has come; the launcher alone, or all that runs there."""
        note = self._folder / f"happens-{self._scenario.rank}"
        if not note.exists():
            return
        node = self._scenario.node
        if self._scenario.kind == "node_lost":
            for pid in [pid for pid in self._marked.processes() if below(pid, self._launchers[node].pid)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
        else:
            self._launchers[node].kill()
        self._lost = node
        note.write_text(json.dumps({"mono": time.monotonic()}))

    def _living(self) -> list[int]:
        """All but those of a node that the corpus itself has lost."""
        lost = None if self._lost is None else self._launchers[self._lost].pid
        return [pid for pid in self._marked.processes() if lost is None or not below(pid, lost)]

    def _left(self, codes: tuple[int | None, ...]) -> Iterator[str]:
        """What launchers that ended by themselves left behind."""
        if any(code is None and node != self._lost for node, code in enumerate(codes)):
            return
        deadline = time.monotonic() + GRACE
        while (living := self._living()) and time.monotonic() < deadline:
            time.sleep(POLL)
        yield from (f"process {pid}: {command_of(pid)}" for pid in living)
        for node in range(len(codes)):
            if node != self._lost and self._shm(node).exists():
                yield from (f"/dev/shm/{path.name}" for path in self._shm(node).iterdir())
        yield from self._boards()

    def _boards(self) -> Iterator[str]:
        """The boards' folders, where ranks have said where they were."""
        for note in self._folder.glob("began-*"):
            place = facts.text(note)
            if place and not tools() and self._runner.ours and Path(place).parent.exists():
                yield f"{Path(place).parent}"

    def _facts(self, codes: tuple[int | None, ...], left: tuple[str, ...], seconds: float) -> Facts:
        folder = self._folder
        return Facts(
            codes,
            facts.happened(folder),
            facts.text(folder / "result"),
            facts.cycles(folder),
            facts.journals(folder),
            facts.reports(folder),
            left,
            "".join(facts.text(folder / f"log-{node}") for node in range(len(codes))),
            self._lost,
            seconds,
        )

    def _end(self) -> None:
        """Kill all that lives, and remove what it had in /dev/shm."""
        self._marked.end()
        for launcher in self._launchers:
            launcher.kill()
            launcher.wait()
        for node in range(len(self._scenario.nodes)):
            shutil.rmtree(self._shm(node), ignore_errors=True)
