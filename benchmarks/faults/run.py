"""Scenarios, run: command lines, one job from its start to its last process, and many jobs next to each other.

Whatever happens, also Ctrl-C, no process of a job stays. As root each node has a name and a /dev/shm of its own, so
that leftovers are found. Every launcher that has limits gets the same ones; all else is each launcher's default.
Does not cover: what `benchmarks.jobs` does not.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import jobs
from benchmarks.jobs import FREE_PORT, POLL, Job, below, free_port, send

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
    3: {"начало": 10.0, "étape nº1": 3.0, "データ": 2.0, "проверка/тест": 3.0, "保存": 3.0},
    4: {},
    5: {"prep": 20.0, "fit": 4.0, "eval": 4.0, "persist": 5.0},
    6: {},
    7: {"rig": 20.0, "leg": 4.0, "lookout": 4.0, "harbour": 5.0},
    8: {"dress": 20.0, "scene": 4.0, "review": 4.0, "cellar": 5.0},
    9: {"coupling": 20.0, "haul": 4.0, "toll": 4.0, "siding": 5.0},
    10: {"swarm": 20.0, "forage": 4.0, "tasting": 4.0, "comb": 5.0},
}
"""Limits of each program, seconds: short for the corpus, and long enough for several jobs at a time."""
RESTARTS = 2
JOB_TIMEOUT = 120.0
"""Seconds after which a job is ended that did not end by itself."""
REACTION_TIMEOUT = INITIAL + 6.0
"""Seconds after a fault in which another launcher must have started ranks again: longer than any of the limits."""
LARGE = 6
"""From this number of ranks on, a job takes the place of two."""
EXIT_TIMEOUT = 2.0

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


HOLDFAST = Runner("holdfast", tuple(jobs.HOLDFAST), "holdfast")
TORCHRUN = Runner("torchrun", tuple(jobs.TORCHRUN), "")


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


def _rendezvous(runner: Runner, scenario: Scenario, node: int, port: int) -> list[str]:
    if len(scenario.nodes) == 1:
        return [*FREE_PORT]
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


class ScenarioJob(Job):
    """A scenario that runs: a launcher for each node."""

    def __init__(self, scenario: Scenario, runner: Runner, folder: Path, silent_port: int) -> None:
        super().__init__()
        self._scenario, self._runner, self._folder = scenario, runner, folder
        self._silent_port = silent_port
        self._lost: int | None = None
        # Not in the folder: the path of a socket may have 107 bytes.
        self._temporary = tempfile.mkdtemp(prefix="corpus-")
        self._shm = [
            Path("/dev/shm", f"{Path(self._temporary).name}-{n}") for n in range(len(scenario.nodes))
        ]

    def run(self, timeout: float, reaction_timeout: float | None, over: threading.Event) -> Facts:
        """To its end, for `timeout` seconds, or until the fault has had no effect for `reaction_timeout` seconds.

        Raises Interrupted when `over` is set meanwhile.
        """
        with ExitStack() as stack:
            for path in (self._temporary, *self._shm):
                stack.callback(shutil.rmtree, path, ignore_errors=True)
            surround(self._scenario, self._folder, stack)
            stack.enter_context(self)  # ends before the fixtures are removed: a cgroup has to be empty
            began = time.monotonic()
            (self._folder / "data").write_text("0")
            (self._folder / "checkpoint").write_text(json.dumps({"step": 0, "weights": [0.0] * 8}))
            (self._folder / "hosts").write_text("127.0.0.1 localhost node-a node-b\n")
            port = free_port()
            for node in range(len(self._scenario.nodes)):
                self._start_node(node, port)
            self._watch(began + timeout, reaction_timeout, over)
            took = time.monotonic() - began
            codes = tuple(self._code(node) for node in range(len(self.launchers)))
            return score.facts(self._folder, codes, tuple(self._left(codes)), self._lost, took)

    def _code(self, node: int) -> int | None:
        return None if node == self._lost else self.launchers[node].poll()

    def _start_node(self, node: int, port: int) -> None:
        line = command(self._runner, self._scenario, node, self._folder, port)
        if has_namespaces():
            self._shm[node].mkdir()
            names = [str(self._shm[node]), str(self._folder / "hosts"), f"node-{'ab'[node]}"]
            space = ["unshare", "--mount", "--uts", "--propagation", "private"]
            line = [*space, "sh", "-c", _IN_NAMESPACE, "sh", *names, *line]
        one = self._scenario
        given = {
            **{"file": one.file, "kind": one.kind, "phase": one.phase, "rank": one.rank, "step": one.step},
            **{"everyone": one.everyone, "workers": one.fault.workers, "port": self._silent_port},
        }
        variables = {
            VARIABLE: json.dumps(given),
            "XDG_STATE_HOME": str(self._folder),
            "TMPDIR": self._temporary,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        with (self._folder / f"log-{node}").open("wb") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self.start(line, variables, cwd=self._folder, start_new_session=True, **streams)

    def _watch(self, deadline: float, reaction_timeout: float | None, over: threading.Event) -> None:
        nodes = range(len(self.launchers))
        while time.monotonic() < deadline:
            if over.is_set():
                raise Interrupted
            if all(node == self._lost or self._code(node) is not None for node in nodes):
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
            send(signal.SIGSTOP, below(self.launchers[node].pid))
        else:
            self.launchers[node].kill()
        self._lost = node
        note.write_text(json.dumps({"mono": time.monotonic()}))

    def _left(self, codes: tuple[int | None, ...]) -> Iterator[str]:
        """What launchers that ended by themselves left behind."""
        if any(code is None and node != self._lost for node, code in enumerate(codes)):
            return
        deadline = time.monotonic() + EXIT_TIMEOUT
        while True:
            of_lost = [] if self._lost is None else below(self.launchers[self._lost].pid)
            living = [each for each in self.processes() if each not in of_lost]
            if not living or time.monotonic() >= deadline:
                break
            time.sleep(POLL)
        for process in living:
            with suppress(psutil.Error):
                yield f"process {process.pid}: {' '.join(process.cmdline())[:200]}"
        for node, shm in enumerate(self._shm):
            if node != self._lost and shm.exists():
                yield from (f"/dev/shm/{path.name}" for path in shm.iterdir())
        for note in self._folder.glob("began-*"):  # which has the place of the rank's board
            board = score.text(note)
            if board and not has_namespaces() and self._runner.is_ours and Path(board).parent.exists():
                yield f"{Path(board).parent}"


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
        job = ScenarioJob(scenario, runner, folder, port)
        found = job.run(JOB_TIMEOUT, None if runner.is_ours else REACTION_TIMEOUT, self._over)
        print(f"{runner.who}: {scenario.name}, {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        return found
