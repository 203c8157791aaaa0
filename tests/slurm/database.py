"""The accounting database of a test cluster: MariaDB in the cluster's folder, so that `sacct` works.

Takes 2 s and 105 MB, so only clusters that are asked for accounting have one.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.slurm.settings import Settings

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster

ACCESS = """
CREATE DATABASE slurm;
CREATE USER 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';
CREATE USER 'slurm'@'localhost' IDENTIFIED BY 'slurm';
GRANT ALL ON slurm.* TO 'slurm'@'127.0.0.1';
GRANT ALL ON slurm.* TO 'slurm'@'localhost';
"""
START = 60.0
"""Seconds at most until it answers."""


class Database:
    """MariaDB for slurmdbd, and the association that jobs of root need."""

    def __init__(self, settings: Settings) -> None:
        self._port = settings.ports[2]
        self._data = settings.folder / "db"
        self._socket = settings.folder / "db.sock"

    def start(self, start: Callable[..., object]) -> None:
        install = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={self._data}"]
        install += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(install, check=True, capture_output=True, timeout=START)
        small = ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--performance-schema=OFF"]
        where = [f"--datadir={self._data}", f"--socket={self._socket}", f"--pid-file={self._data}/pid"]
        net = ["--bind-address=127.0.0.1", f"--port={self._port}", "--skip-log-bin"]
        start("mariadbd", "--no-defaults", "--user=root", *where, *net, *small)
        client = ["mariadb", "--no-defaults", "-uroot", "-S", str(self._socket)]
        _until_it_works(client, "SELECT 1")
        subprocess.run(client, input=ACCESS, text=True, check=True, capture_output=True, timeout=START)

    def fill(self, cluster: Cluster) -> None:
        """The cluster's name, an account, and root as its user."""
        deadline = time.monotonic() + START
        while True:
            try:
                cluster.run("sacctmgr", "-n", "list", "cluster")
                break
            except (RuntimeError, subprocess.TimeoutExpired):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        for what in (["cluster", "tests"], ["account", "tests"], ["user", "root", "Account=tests"]):
            cluster.run("sacctmgr", "-i", "add", *what)


def _until_it_works(command: list[str], text: str) -> None:
    deadline = time.monotonic() + START
    while subprocess.run(command, input=text, text=True, capture_output=True, timeout=START).returncode:
        if time.monotonic() > deadline:
            raise TimeoutError(f"MariaDB did not answer within {START:g} s")
        time.sleep(0.1)
