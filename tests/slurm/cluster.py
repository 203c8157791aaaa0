"""A real Slurm cluster of several nodes on this machine, for tests: `with running(folder) as cluster:`.

Each node is a slurmd in a UTS namespace of its own, so that it has its own host name, with its own loopback address;
a mount namespace gives all of them an /etc/hosts that knows the others, so the machine's own is never written.
What always holds: every process of a node, whatever it does to its environment, is in the node's UTS namespace, so
what a job left there is seen and can be ended; daemons are ended by the processes we started, and die with the tests.
Needs root, Slurm's daemons, and the right to make namespaces; `missing()` says what is not there.

Does not cover: nodes with a /dev/shm, a filesystem or memory of their own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.processes import free_ports
from tests.slurm.settings import CONTROLLER, Settings

REQUIRED = "HOLDFAST_REQUIRE_SLURM"
"""Set to 1 where Slurm must be there, as in CI: what would skip a test then fails it."""

ENTER = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec setpriv --pdeathsig KILL "$@"'
BOOT = 60.0
"""Seconds at most until all nodes are up; 0.5 is usual."""

ACCESS = """
CREATE DATABASE slurm;
CREATE USER 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';
CREATE USER 'slurm'@'localhost' IDENTIFIED BY 'slurm';
GRANT ALL ON slurm.* TO 'slurm'@'127.0.0.1';
GRANT ALL ON slurm.* TO 'slurm'@'localhost';
"""
ANSWERS = 60.0
"""Seconds at most until it answers."""


def missing(accounting: bool = False) -> str | None:
    """Why no cluster can be started here; None if one can."""
    if os.geteuid() != 0:
        return "a Slurm cluster of its own needs root"
    tools = ["slurmctld", "slurmd", "sbatch", "srun", "scontrol", "unshare", "setpriv"]
    tools += ["slurmdbd", "sacct", "mariadbd", "mariadb-install-db"] if accounting else []
    lacking = [tool for tool in tools if not shutil.which(tool)]
    if lacking:
        return f"no {', '.join(lacking)} here (scripts/install-system-packages installs it)"
    attempt = subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True, text=True)
    return f"no namespaces here: {attempt.stderr.strip()}" if attempt.returncode else None


@contextlib.contextmanager
def running(
    folder: Path, *, nodes: int = 4, accounting: bool = False, node_timeout: int = 60
) -> Iterator[Cluster]:
    """A cluster with all its nodes up. `folder` is new; it gets everything that the daemons write.

    The environment of who calls is the daemons' environment too; jobs get that of `sbatch`.
    """
    ports = free_ports(4 + nodes)
    cluster = Cluster(Settings(folder, ports, nodes, accounting, node_timeout))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class Cluster:
    """The daemons, and what tests do with them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.names = settings.names
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._namespaces: dict[str, int] = {}
        self._database = Database(settings) if settings.accounting else None

    @property
    def environ(self) -> dict[str, str]:
        """What Slurm's commands need in their environment to find this cluster."""
        return {"SLURM_CONF": str(self.settings.conf)}

    def start(self) -> None:
        self.settings.write()
        if self._database:
            self._database.start(lambda *command: self._start("database", CONTROLLER, *command))
            self._start("slurmdbd", CONTROLLER, "slurmdbd", "-D")
            self._database.fill(self)
        self._start("slurmctld", CONTROLLER, "slurmctld", "-D", "-f", str(self.settings.conf))
        for name in self.names:
            self._start_node(name)
        self._wait(self._all_up, BOOT, "the nodes to be up")

    def _start_node(self, name: str) -> None:
        namespace = f"/proc/{os.getpid()}/ns/uts"
        before = os.stat(namespace).st_ino
        daemon = self._start(name, name, "slurmd", "-D", "-N", name, "-f", str(self.settings.conf))
        own = f"/proc/{daemon.pid}/ns/uts"
        self._wait(lambda: os.stat(own).st_ino != before, BOOT, f"{name} to have its own name")
        # Open, so that the number stays this node's: the kernel gives that of a lost namespace to the next one.
        self._namespaces[name] = os.open(own, os.O_RDONLY | os.O_CLOEXEC)

    def kill_node(self, name: str, *, with_its_processes: bool) -> None:
        """SIGKILL to a node's slurmd; also to all that runs there, as if the machine had lost its power."""
        self._end(name, signal.SIGKILL)
        if with_its_processes:
            self._end_processes(name)

    def processes(self, *names: str) -> list[psutil.Process]:
        """What runs on these nodes (default: on all), beside slurmd itself."""
        wanted = {os.fstat(self._namespaces[name]).st_ino for name in names or self.names}
        daemons = {daemon.pid for daemon in self._daemons.values()}
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):
                if pid not in daemons and os.stat(f"/proc/{pid}/ns/uts").st_ino in wanted:
                    process = psutil.Process(pid)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found

    def run(self, *command: str | os.PathLike[str], check: bool = True) -> str:
        """The output of one of Slurm's commands. Raises RuntimeError with its error text."""
        options: Any = {"capture_output": True, "text": True, "errors": "replace", "timeout": 60}
        done = subprocess.run(command, env={**os.environ, **self.environ}, **options)
        if check and done.returncode:
            words = " ".join(map(os.fspath, command))
            raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def clear(self) -> None:
        """Ends all jobs and waits until nothing of them runs, so that the next test has all nodes for itself.

        Raises TimeoutError if something is left after a minute; it is ended then, all the same.
        """
        if self.run("squeue", "--noheader"):
            self.run("scancel", f"--user={os.getuid()}", check=False)
        try:
            self._wait(lambda: not self.run("squeue", "--noheader"), 60, "the end of all jobs")
            self._wait(lambda: not self.processes(), 60, "the end of their processes")
        finally:
            self._end_processes()
        for name in self.names:
            self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        self._wait(self._all_up, BOOT, "the nodes to be up again")

    def stop(self) -> None:
        """Ends every daemon, and what still runs on the nodes. Nothing is kept but the folder."""
        for name in [name for name in self.names if name in self._namespaces]:
            self.kill_node(name, with_its_processes=True)
            os.close(self._namespaces.pop(name))
        for name in reversed([*self._daemons]):
            self._end(name, signal.SIGTERM)

    def log(self) -> str:
        """The last lines of every daemon's log, for the message of a test that failed."""
        parts = []
        for path in sorted((self.settings.folder / "log").iterdir()):
            lines = path.read_text(errors="replace").splitlines()[-15:]
            parts.append("\n".join([f"-- {path.name}", *lines]))
        return "\n".join(parts)

    def _start(self, daemon: str, host: str, *command: str) -> subprocess.Popen[bytes]:
        enter = ["unshare", "--uts", "--mount", "sh", "-c", ENTER, "sh", host, str(self.settings.hosts)]
        with (self.settings.folder / "log" / f"{daemon}.out").open("ab") as output:
            self._daemons[daemon] = subprocess.Popen(
                [*enter, *command],
                env={**os.environ, **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self._daemons[daemon]

    def _end_processes(self, *names: str) -> None:
        while left := self.processes(*names):
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=5)

    def _end(self, name: str, number: int) -> None:
        daemon = self._daemons.pop(name, None)
        if daemon is None:
            return
        daemon.send_signal(number)
        try:
            daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(60)

    def _all_up(self) -> bool:
        states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T", check=False).split()
        return len(states) == len(self.names) and set(states) <= {"idle"}

    def _wait(self, happened: Callable[[], object], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not happened():
            dead = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if dead or time.monotonic() > deadline:
                why = f"{', '.join(dead)} ended" if dead else f"did not come within {seconds:g} s"
                raise TimeoutError(f"waited for {what}: {why}\n{self.log()}")
            time.sleep(0.05)


class Database:
    """MariaDB in the cluster's folder for slurmdbd, so that `sacct` works, and the association that jobs of root need.

    Takes 2 s and 105 MB, so only clusters that are asked for accounting have one.
    """

    def __init__(self, settings: Settings) -> None:
        self._port = settings.ports[2]
        self._data = settings.folder / "db"
        self._socket = settings.folder / "db.sock"

    def start(self, start: Callable[..., object]) -> None:
        install = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={self._data}"]
        install += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(install, check=True, capture_output=True, timeout=ANSWERS)
        small = ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--performance-schema=OFF"]
        where = [f"--datadir={self._data}", f"--socket={self._socket}", f"--pid-file={self._data}/pid"]
        net = ["--bind-address=127.0.0.1", f"--port={self._port}", "--skip-log-bin"]
        start("mariadbd", "--no-defaults", "--user=root", *where, *net, *small)
        client = ["mariadb", "--no-defaults", "-uroot", "-S", str(self._socket)]
        _until_it_works([*client, "-e", "SELECT 1"])
        subprocess.run(client, input=ACCESS, text=True, check=True, capture_output=True, timeout=ANSWERS)

    def fill(self, cluster: Cluster) -> None:
        """The cluster's name, an account, and root as its user."""
        _until_it_works(["sacctmgr", "-n", "list", "cluster"], env={**os.environ, **cluster.environ})
        for what in (["cluster", "tests"], ["account", "tests"], ["user", "root", "Account=tests"]):
            cluster.run("sacctmgr", "-i", "add", *what)


def _until_it_works(command: list[str], env: dict[str, str] | None = None) -> None:
    deadline = time.monotonic() + ANSWERS
    while (done := subprocess.run(command, env=env, capture_output=True, timeout=ANSWERS)).returncode:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{command[0]} had no success within {ANSWERS:g} s: {done.stderr!r}")
        time.sleep(0.1)
