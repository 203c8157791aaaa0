"""Jobs of several nodes: launchers of one machine, or each in a network namespace of its own.

Owns the program that ranks run here (`PRELUDE`: no torch, but steps that all ranks take together, as in a
collective), the launchers of a job (`Cluster`, `Node`), their network (`Network`), and the ways a node can go.
What always holds: what a test has started is ended after it, and a node that was made to vanish leaves nothing in
/dev/shm (a real one takes its memory along).
Does not cover: real collectives, see `test_lost_nodes.py`.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.jobs import LAUNCHER, Launched, records
from tests.jobs import PRELUDE as OF_ONE_NODE
from tests.processes import Environ, Spawned, Spawner, alive, free_port, wait_until

PRELUDE = (
    OF_ONE_NODE
    + '''
WORLD, LOCAL = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
NODE, NOTES = os.environ["NODE"], os.environ["NOTES"]

def _reached(rank):
    try:
        with open(os.path.join(NOTES, f"step-{CYCLE}-{rank}")) as file:
            return int(file.read() or -1)
    except (OSError, ValueError):
        return -1

def step(number):
    """Take this step together with all ranks of the cycle, as in a collective: who is missing holds up the rest.

    Until the test says "finish": then some have left the loop while others just took one more step. Who waits for long
    hardly uses the CPU, as in a collective that blocks: ranks that spin are given three times the node timeout.
    """
    pause = 0.005
    with open(os.path.join(NOTES, f"step-{CYCLE}-{RANK}"), "w") as file:
        file.write(f"{number:8d}")
    while any(_reached(rank) < number for rank in range(WORLD)) and not told("finish"):
        time.sleep(pause)
        pause = min(2 * pause, 0.1)

say("starts on", NODE, "in", WORLD)
'''
)

QUICK = 5.0
"""Seconds of node timeout for tests that lose a node."""

TRAINS = """
number = 0
while not told("finish"):
    number += 1
    step(number)
    if number == 3:
        say("trains")
    time.sleep(0.02)
say("finished")
"""
"""Takes steps until the test says "finish"."""


class Node(Launched):
    """One of several launchers. `name` is what the test calls it; its ranks find it in $NODE."""

    def __init__(self, name: str, spawned: Spawned, run_dir: Path) -> None:
        super().__init__(spawned, run_dir)
        self.name = name

    def hear(self, word: str, cycle: int, *, ranks: int = 2) -> set[int]:
        """Wait until this many ranks of this node said a line that matches `word` in this cycle; returns them."""

        def who() -> set[int] | None:
            found = re.findall(rf"^rank (\d+) cycle {cycle} {word}", self.spawned.out(), re.MULTILINE)
            return {int(rank) for rank in found} if len(set(found)) >= ranks else None

        who.__qualname__ = f"{ranks} ranks of node {self.name} in cycle {cycle} saying {word!r}"
        found = self.spawned.wait_for(who)
        assert isinstance(found, set)
        return found

    def journal(self, *kinds: str) -> list[dict[str, Any]]:
        """The journal's records of these kinds, in order."""
        paths = self.run_dir.glob("journal-*.jsonl")
        return [record for path in paths for record in records(path) if record["kind"] in kinds]

    def cycles(self) -> list[int]:
        """The cycles that this node took part in."""
        return [record["cycle"] for record in self.journal("cycle_start")]

    def restarts(self) -> list[tuple[int, int]]:
        """(cycle, restarts spent) of every restart that this node joined."""
        return [(record["cycle"], record["restarts_used"]) for record in self.journal("restart")]

    def processes(self) -> list[psutil.Process]:
        """The launcher, its monitor and its ranks."""
        launcher = psutil.Process(self.pid)
        return [launcher, *launcher.children(recursive=True)]

    def ranks(self) -> list[psutil.Process]:
        """The processes of its ranks."""
        return [child for child in psutil.Process(self.pid).children() if "RANK" in _environment(child)]

    def vanish(self) -> None:
        """Everything that runs there ends at the same moment, unasked, as when a machine loses power."""
        places = {
            Path(path).parent.parent
            for child in self.ranks()
            if (path := _environment(child).get("FT_RANK_MONITOR_IPC_SOCKET"))
        }
        everyone = self.processes()
        for process in everyone:
            process.send_signal(signal.SIGSTOP)  # so that none of them sees another one die
        for process in everyone:
            process.kill()
        self.spawned.wait()
        for place in places:
            shutil.rmtree(place, ignore_errors=True)


class Cluster:
    """The launchers of one job. Node `a` hosts the rendezvous; every node has two ranks."""

    def __init__(self, spawn: Spawner, folder: Path, network: Network | None = None) -> None:
        self._spawn = spawn
        self.folder = folder
        self.network = network
        self.port = free_port()
        self.notes = folder / "notes"
        self.notes.mkdir()
        self._count = 0

    def script(self, text: str) -> Path:
        """A file with `PRELUDE` and this program."""
        path = self.folder / f"script{len(list(self.folder.glob('script*')))}.py"
        path.write_text(PRELUDE + text)
        return path

    def tell(self, word: str) -> None:
        """Say a word to the ranks (`told`, `until` in `PRELUDE`)."""
        (self.notes / word).touch()

    def address(self, name: str) -> str:
        """At which others reach this node."""
        return self.network.address(name) if self.network else "localhost"

    def launch(
        self,
        name: str,
        script: Path,
        *flags: str,
        nnodes: str = "2",
        restarts: int = 3,
        node_timeout: float | None = 20,
        conf: str = "last_call_timeout=2",
        env: Environ | None = None,
    ) -> Node:
        """Start the launcher of node `name` (a letter; it gives the order of the ranks too).

        `node_timeout` (None: the default) is long where no node is lost: two busy cores keep launchers waiting.
        """
        rendezvous = [
            "--rdzv-backend=c10d",
            "--rdzv-id=job",
            f"--rdzv-endpoint={self.address('a')}:{self.port}",
        ]
        rendezvous += [
            f"--rdzv-conf={conf},is_host={int(name == 'a')}",
            f"--node-rank={ord(name) - ord('a')}",
        ]
        timeout = [f"--ft-node-timeout={node_timeout}"] if node_timeout is not None else []
        common = [f"--nnodes={nnodes}", "--nproc-per-node=2", f"--max-restarts={restarts}", *timeout]
        return self.command(name, *rendezvous, *common, *flags, str(script), env=env)

    def command(self, name: str, *arguments: str, env: Environ | None = None) -> Node:
        """Start `ft_launcher` with these arguments on node `name`."""
        self._count += 1
        run_dir = self.folder / f"run-{name}-{self._count}"
        inside = self.network.inside(name) if self.network else []
        variables = {"NODE": name, "NOTES": str(self.notes), **(env or {})}
        if self.network:
            # Else gloo looks up the host's name, which is one for all.
            variables["GLOO_SOCKET_IFNAME"] = "eth0"
        command = [*inside, *LAUNCHER, "--ft-run-dir", str(run_dir), *arguments]
        return Node(name, self._spawn(command, env=variables, cwd=self.folder), run_dir)

    def pair(self, text: str, *flags: str, **options: Any) -> tuple[Node, Node]:
        """Nodes `a` and `b` with this program."""
        script = self.script(text)
        return self.launch("a", script, *flags, **options), self.launch("b", script, *flags, **options)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return {}


@pytest.fixture
def cluster(spawn: Spawner, tmp_path: Path) -> Cluster:
    """Launchers side by side on this machine."""
    return Cluster(spawn, tmp_path)


@pytest.fixture
def network() -> Iterator[Network]:
    """Three namespaces, `a`, `b` and `c`, joined by a switch. Skips where they cannot be made."""
    if reason := missing():
        pytest.skip(reason)
    with Network("abc") as made:
        yield made


@pytest.fixture
def networked(spawn: Spawner, tmp_path: Path, network: Network) -> Cluster:
    """Launchers that each have a network namespace of their own, and only that, as on several machines."""
    return Cluster(spawn, tmp_path, network)


def gone(process: psutil.Process) -> bool:
    """Whether this process has ended, or does so within the ceiling."""
    wait_until(lambda: not alive(process.pid), what=f"the end of {process}")
    return True


# -- network namespaces joined by veth pairs to a switch: machines, as far as the network can tell

# After the `with` block nothing of it is left, and nothing outside of the namespaces was changed (the switch has a
# namespace of its own). Not covered: process, user and mount namespaces; the nodes share files, memory and process ids.
PIDFD_GETFD = 438  # pidfd_getfd(2): the same number on every architecture


def missing() -> str:
    """Why namespaces cannot be made here; '' when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command `ip` (iproute2)"
    name = f"hf-{uuid.uuid4().hex[:6]}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"network namespaces cannot be made here: {tried.stderr.strip()}"
    _ip("netns", "delete", name)
    return ""


class Network:
    """One namespace for each letter of `names`, at addresses 10.77.0.1 and on."""

    def __init__(self, names: str) -> None:
        self._names = names
        self._prefix = f"hf-{uuid.uuid4().hex[:6]}"
        self._switch = f"{self._prefix}-switch"

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def _make(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for name in self._names:
            space = self._space(name)
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
            peer = ["peer", "name", f"to-{name}", "netns", self._switch]
            _ip("-n", space, "link", "add", "eth0", "type", "veth", *peer)
            _ip("-n", self._switch, "link", "set", f"to-{name}", "master", "switch", "up")
            _ip("-n", space, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def address(self, name: str) -> str:
        """The node's address in this network."""
        return f"10.77.0.{self._names.index(name) + 1}"

    def inside(self, name: str) -> list[str]:
        """Put before a command, runs it in the node's namespace (the same process, by exec)."""
        return ["ip", "netns", "exec", self._space(name)]

    def unplug(self, name: str) -> None:
        """Pull the node's cable: what is sent is lost, and no node is notified."""
        _ip("-n", self._switch, "link", "set", f"to-{name}", "down")

    def close(self) -> None:
        """Remove all namespaces, and with them their devices."""
        for space in (*map(self._space, self._names), self._switch):
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)

    def __exit__(self, *_: object) -> None:
        self.close()


class HostNames(Network):
    """Launchers of one machine and one network, each with a host name of its own."""

    def __init__(self, **names: str) -> None:
        super().__init__("")
        self._hosts = names

    def address(self, name: str) -> str:
        """The same for all: the order of the nodes must not follow from it."""
        return "127.0.0.1"

    def inside(self, name: str) -> list[str]:
        """Runs a command under the node's host name (the same process, by exec)."""
        rename = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
        return ["unshare", "--uts", "sh", "-c", rename, self._hosts[name]]


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"


def cut(pid: int, port: int) -> int:
    """Break all TCP connections of a process to this port, as a firewall does; returns how many there were."""
    process, count = os.pidfd_open(pid), 0
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    continue
                copy = ctypes.CDLL(None).syscall(PIDFD_GETFD, process, int(name), 0)
                if copy < 0:
                    pytest.skip("descriptors of another process cannot be had here: pidfd_getfd(2)")
                with socket.socket(fileno=copy) as link:
                    if link.family in (socket.AF_INET, socket.AF_INET6) and link.getpeername()[1] == port:
                        link.shutdown(socket.SHUT_RDWR)
                        count += 1
    finally:
        os.close(process)
    return count
