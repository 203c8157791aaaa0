"""Scenarios, run: command lines, one job from its start to its last process, and many jobs next to each other.

Whatever happens, also Ctrl-C, no process of a job stays: all are found by a mark in their environment. As root each
node has a name and a /dev/shm of its own, so that leftovers are found. Every launcher that has limits gets the same
ones; everything else is each launcher's default.
Does not cover: the end of this very process by SIGKILL; its jobs end by themselves then, but for those that hang; a
process that has replaced its whole environment.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.launchers import HOLDFAST as HOLDFAST_LAUNCHER
from benchmarks.launchers import TORCHRUN as TORCHRUN_LAUNCHER
from benchmarks.launchers import environment

from . import score
from .corpus import CLIENT, COUNTED, SHELL, Scenario
from .fixtures import has_namespaces, missing, surround
from .injection import VARIABLE
from .score import Facts

ROOT = Path(__file__).resolve().parents[2]

INITIAL, BETWEEN = 12.0, 6.0
PATIENT = 40.0
"""Seconds for the imports of jobs whose fault comes after them: three jobs at a time may need more than `INITIAL`."""
SECTIONS = {
    1: {"setup": 10.0, "step": 3.0, "data_loading": 2.0, "validation": 3.0, "checkpointing": 3.0},
    2: {"zeta": 10.0, "kappa": 6.0},
}
"""Limits of each program, seconds: short for the corpus, and long enough for several jobs at a time."""
RESTARTS = 2
JOB_TIMEOUT = 120.0
"""Seconds after which a job is ended that did not end by itself."""
REACTION_TIMEOUT = INITIAL + 6.0
"""Seconds after a fault in which another launcher must have started ranks again: longer than any of the limits."""
LARGE = 6
"""From this number of ranks on, a job takes the place of two."""
POLL, EXIT_TIMEOUT, KILL_TIMEOUT = 0.02, 2.0, 10.0
MARK = "HOLDFAST_CORPUS"

_IN_NAMESPACE = (
    'mount --bind "$1" /dev/shm && mount --bind "$2" /etc/hosts && hostname "$3" && shift 3 && exec "$@"'
)


@dataclass(frozen=True)
class Runner:
    """Whose launcher, its command, and the client of its programs."""

    who: str
    launcher: tuple[str, ...]
    client: str

    @property
    def is_ours(self) -> bool:
        """Whether it is Holdfast's."""
        return self.who == "holdfast"


HOLDFAST = Runner("holdfast", tuple(HOLDFAST_LAUNCHER), "holdfast")
TORCHRUN = Runner("torchrun", tuple(TORCHRUN_LAUNCHER), "")


class Interrupted(Exception):
    """The whole corpus is to end."""


# Command lines


def command(runner: Runner, scenario: Scenario, node: int, folder: Path, port: int) -> list[str]:
    """The command line of this node's launcher."""
    line = [*runner.launcher, f"--nproc-per-node={scenario.nodes[node]}", f"--max-restarts={RESTARTS}"]
    line += _rendezvous(runner, scenario, node, port)
    if runner.who != "torchrun":
        line += _limits(scenario, node)
    if runner.is_ours:
        alone = scenario.shared or len(scenario.nodes) == 1
        run_directory = folder / ("run" if alone else f"run-{'ab'[node]}")
        line += [f"--ft-run-dir={run_directory}", *scenario.fault.options]
    client = "" if scenario.variant == COUNTED else runner.client
    program = "program.py" if scenario.fault.program == 1 else f"program_{scenario.fault.program}.py"
    arguments = [str(Path(__file__).with_name(program)), client, str(folder)]
    if scenario.variant == SHELL:
        return [*line, "--no-python", "sh", "-c", '"$@"; exit $?', "sh", sys.executable, *arguments]
    return [*line, *arguments]


def free_port() -> int:
    """One that is not in use now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _rendezvous(runner: Runner, scenario: Scenario, node: int, port: int) -> list[str]:
    if len(scenario.nodes) == 1:
        return ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    loses = scenario.loses_a_node
    conf = f"--rdzv-conf=last_call_timeout=2,is_host={int(node == 0)}"
    common = ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=corpus", conf]
    own = [f"--node-rank={node}", f"--ft-node-timeout={4 if loses else 20}"] if runner.is_ours else []
    return [f"--nnodes={'1:2' if loses else '2'}", "--local-addr=localhost", *common, *own]


def _limits(scenario: Scenario, node: int) -> list[str]:
    longer = 3.0 if scenario.kind == "other_node" and node == scenario.node else 1.0
    own = SECTIONS[scenario.fault.program]
    sections = ",".join(f"{name}:{longer * seconds:g}" for name, seconds in own.items())
    between = longer * BETWEEN
    is_early = scenario.phase == "import" or (scenario.phase == "init" and scenario.variant != CLIENT)
    if scenario.loses_a_node:
        # The node is to be found, not the ranks that wait for it.
        sections, between = ",".join(f"{name}:30" for name in own), 30.0
    return [
        f"--ft-param-initial_rank_heartbeat_timeout={INITIAL if is_early else PATIENT:g}",
        f"--ft-param-rank_heartbeat_timeout={between:g}",
        f"--ft-param-rank_section_timeouts={sections}",
    ]


# One job


class Job:
    """A scenario that runs."""

    def __init__(self, scenario: Scenario, runner: Runner, folder: Path, silent_port: int) -> None:
        self._scenario, self._runner, self._folder = scenario, runner, folder
        self._mark = uuid.uuid4().hex
        self._silent_port = silent_port
        self._launchers: list[subprocess.Popen[bytes]] = []
        self._lost: int | None = None
        self._temporary = tempfile.mkdtemp(prefix="corpus-")

    def run(self, timeout: float, reaction_timeout: float | None, over: threading.Event) -> Facts:
        """To its end, for `timeout` seconds, or until the fault has had no effect for `reaction_timeout` seconds.

        Raises Interrupted when `over` is set meanwhile.
        """
        with ExitStack() as stack:
            # Not in the folder: the path of a socket may have 107 bytes.
            stack.callback(shutil.rmtree, self._temporary, ignore_errors=True)
            surround(self._scenario, self._folder, stack)
            stack.callback(self._end)  # before the fixtures are removed: a cgroup has to be empty
            began = time.monotonic()
            self._prepare()
            for node in range(len(self._scenario.nodes)):
                self._launchers.append(self._start(node))
            self._watch(began + timeout, reaction_timeout, over)
            took = time.monotonic() - began
            codes = tuple(
                None if node == self._lost else launcher.poll()
                for node, launcher in enumerate(self._launchers)
            )
            return score.facts(self._folder, codes, tuple(self._left(codes)), self._lost, took)

    def _prepare(self) -> None:
        (self._folder / "data").write_text("0")
        (self._folder / "checkpoint").write_text(json.dumps({"step": 0, "weights": [0.0] * 8}))
        (self._folder / "hosts").write_text("127.0.0.1 localhost node-a node-b\n")
        self._port = free_port()

    def _start(self, node: int) -> subprocess.Popen[bytes]:
        line = command(self._runner, self._scenario, node, self._folder, self._port)
        if has_namespaces():
            shm = self._shm(node)
            shm.mkdir()
            names = [str(shm), str(self._folder / "hosts"), f"node-{'ab'[node]}"]
            space = ["unshare", "--mount", "--uts", "--propagation", "private"]
            line = [*space, "sh", "-c", _IN_NAMESPACE, "sh", *names, *line]
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
            **{"everyone": one.everyone, "workers": one.fault.workers, "port": self._silent_port},
        }
        return environment(
            **{MARK: self._mark, VARIABLE: json.dumps(given)},
            XDG_STATE_HOME=str(self._folder),
            TMPDIR=self._temporary,
            PYTHONPATH=f"{ROOT}:{ROOT / 'src'}",
            GLOO_SOCKET_IFNAME="lo",
        )

    def _shm(self, node: int) -> Path:
        return Path(f"/dev/shm/corpus-{self._mark}-{node}")

    def _watch(self, deadline: float, reaction_timeout: float | None, over: threading.Event) -> None:
        while time.monotonic() < deadline:
            if over.is_set():
                raise Interrupted
            if all(
                node == self._lost or each.poll() is not None for node, each in enumerate(self._launchers)
            ):
                return
            if reaction_timeout is not None and self._is_ignored(reaction_timeout):
                return
            if self._lost is None and self._scenario.loses_a_node:
                self._lose()
            time.sleep(POLL)

    def _is_ignored(self, reaction_timeout: float) -> bool:
        """Whether the fault happened longer ago, and no rank has been started again."""
        happened = score.happened(self._folder)
        waited = happened is not None and time.monotonic() - happened > reaction_timeout
        return waited and score.cycles(self._folder) == 1

    def _lose(self) -> None:
        """Stop the node whose rank has noted that the moment has come, or kill its launcher alone."""
        note = self._folder / f"happens-{self._scenario.rank}"
        if not note.exists():
            return
        node = self._scenario.node
        if self._scenario.kind == "node_lost":
            for pid in [pid for pid in self._processes() if _is_below(pid, self._launchers[node].pid)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
        else:
            self._launchers[node].kill()
        self._lost = node
        note.write_text(json.dumps({"mono": time.monotonic()}))

    def _processes(self) -> Iterator[int]:
        """All processes of this job, wherever they went."""
        mark = f"{MARK}={self._mark}".encode()
        for name in os.listdir("/proc"):
            with suppress(OSError):
                if name.isdigit() and mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    yield int(name)

    def _left(self, codes: tuple[int | None, ...]) -> Iterator[str]:
        """What launchers that ended by themselves left behind."""
        if any(code is None and node != self._lost for node, code in enumerate(codes)):
            return
        lost = None if self._lost is None else self._launchers[self._lost].pid
        deadline = time.monotonic() + EXIT_TIMEOUT
        while living := [pid for pid in self._processes() if lost is None or not _is_below(pid, lost)]:
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL)
        for pid in living:
            words = score.text(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")[:200]
            yield f"process {pid}: {words}"
        for node in range(len(codes)):
            if node != self._lost and self._shm(node).exists():
                yield from (f"/dev/shm/{path.name}" for path in self._shm(node).iterdir())
        for note in self._folder.glob("began-*"):  # which has the place of the rank's board
            board = score.text(note)
            if board and not has_namespaces() and self._runner.is_ours and Path(board).parent.exists():
                yield f"{Path(board).parent}"

    def _end(self) -> None:
        """Kill all that lives and what it has started meanwhile, and remove what it had in /dev/shm."""
        deadline = time.monotonic() + KILL_TIMEOUT
        while (living := list(self._processes())) and time.monotonic() < deadline:
            for pid in living:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL)
        for launcher in self._launchers:
            launcher.kill()
            launcher.wait()
        for node in range(len(self._scenario.nodes)):
            shutil.rmtree(self._shm(node), ignore_errors=True)


def _is_below(pid: int, ancestor: int) -> bool:
    """Whether it is this process or a descendant: ranks have sessions of their own."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


# Many jobs


class Campaign:
    """Runs scenarios below one folder. `skipped` has what this machine does not allow, with the reason.

    Results come in the order of the scenarios. When `over` is set, running jobs are ended and no other one begins.
    """

    def __init__(self, folder: Path, jobs: int, over: threading.Event) -> None:
        self._folder, self._jobs, self._over = folder, max(1, jobs), over
        self._room = threading.Semaphore(self._jobs)
        self._turn = threading.Lock()
        self.skipped: dict[str, str] = {}

    def run(self, runner: Runner, scenarios: Sequence[Scenario]) -> Iterator[tuple[Scenario, Facts | None]]:
        """Each scenario with its facts; None: it was skipped, or the corpus has ended before it."""
        home = self._folder / runner.who
        home.mkdir(parents=True, exist_ok=True)
        # The kernel accepts the connections to this server, and no process answers them.
        silent = socket.create_server(("127.0.0.1", 0), backlog=1024)
        with silent, ThreadPoolExecutor(self._jobs) as pool:
            port = silent.getsockname()[1]
            results = pool.map(lambda one: self._one(runner, one, home, port), scenarios)
            yield from zip(scenarios, results, strict=True)

    def _one(self, runner: Runner, scenario: Scenario, home: Path, port: int) -> Facts | None:
        if reason := next(filter(None, map(missing, scenario.fault.needs)), ""):
            self.skipped[scenario.name] = reason
            return None
        width = min(self._jobs, 2 if scenario.world >= LARGE else 1)
        with self._turn:  # one at a time takes its places, or two large ones could wait for each other
            for _ in range(width):
                self._room.acquire()
        try:
            return None if self._over.is_set() else self._done(runner, scenario, home, port)
        except Interrupted:
            return None
        finally:
            for _ in range(width):
                self._room.release()

    def _done(self, runner: Runner, scenario: Scenario, home: Path, port: int) -> Facts:
        folder = score.folder_of(home, scenario)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        began = time.monotonic()
        job = Job(scenario, runner, folder, port)
        found = job.run(JOB_TIMEOUT, None if runner.is_ours else REACTION_TIMEOUT, self._over)
        print(f"{runner.who}: {scenario.name}, {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        return found
