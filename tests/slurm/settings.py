"""What the tests' Slurm cluster is configured to be: the texts of its configuration files.

Every daemon listens on a loopback address and a free port, and everything it writes is in one folder, so clusters can
run side by side. Source of the names: slurm.conf(5), gres.conf(5), slurmdbd.conf(5), Slurm 22.05.

Does not cover: authentication (auth/none: the tests are one user), cgroups, a fabric.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CONTROLLER = "ctl"
"""Host name of the controller, in its own UTS namespace."""


@dataclass(frozen=True)
class Settings:
    """A cluster of pretended machines. Times are in seconds."""

    folder: Path
    ports: tuple[int, ...]
    """Of slurmctld, slurmdbd and MariaDB, a spare one, then one for each node."""
    nodes: int = 4
    cpus: int = 4
    gpus: int = 0
    """Per node; each is a device file that is like /dev/null, so that they can be counted and handed out."""
    accounting: bool = False
    kill_wait: int = 15
    """SIGTERM to SIGKILL, at the time limit and for scancel."""
    grace: int = 15
    """What a preempted job of the partition `low` gets."""
    requeue_wait: int = 5
    """How long a requeued job waits: the lifetime of a credential. Slurm's least is 5, its default 120."""
    node_timeout: int = 60
    """A slurmd that does not answer for so long is down, and its jobs are requeued. Long: it may wait for a core."""

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def hosts(self) -> Path:
        return self.folder / "etc" / "hosts"

    @property
    def spare_port(self) -> int:
        """One that no daemon uses, for a job's rendezvous."""
        return self.ports[3]

    def address(self, name: str) -> str:
        """Of a node: its own loopback address, as on a machine of its own."""
        return f"127.0.1.{self.names.index(name) + 1}"

    def write(self) -> None:
        for name in ("etc", "log", "state", "dev", *(f"spool/{node}" for node in self.names)):
            (self.folder / name).mkdir(parents=True, mode=0o755)
        self.conf.write_text("\n".join([*self._daemons(), *self._jobs(), *self._machines(), ""]))
        ours = [f"127.0.0.1 {CONTROLLER}", *(f"{self.address(name)} {name}" for name in self.names)]
        # A name that the machine gives too would have two addresses: `hostname --ip-address` shows both.
        names = {CONTROLLER, *self.names}
        others = [line for line in Path("/etc/hosts").read_text().splitlines() if not names & {*line.split()}]
        self.hosts.write_text("\n".join([*ours, *others, ""]))
        if self.gpus:
            files = f"{self.folder}/dev/gpu[0-{self.gpus - 1}]"
            gres = f"NodeName=n[1-{self.nodes}] Name=gpu File={files}\n"
            self.conf.with_name("gres.conf").write_text(gres)
        if self.accounting:
            database = self.conf.with_name("slurmdbd.conf")
            database.write_text("\n".join([*self._database(), ""]))
            database.chmod(0o600)

    def _daemons(self) -> list[str]:
        folder = self.folder
        return [
            "ClusterName=tests",
            f"SlurmctldHost={CONTROLLER}(127.0.0.1)",
            f"SlurmctldPort={self.ports[0]}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/none",
            "CredType=cred/none",
            f"AuthInfo=cred_expire={self.requeue_wait}",
            f"StateSaveLocation={folder}/state",
            f"SlurmctldPidFile={folder}/state/slurmctld.pid",
            f"SlurmctldLogFile={folder}/log/slurmctld.log",
            f"SlurmdPidFile={folder}/spool/%n/slurmd.pid",
            f"SlurmdLogFile={folder}/log/slurmd-%n.log",
            f"SlurmdSpoolDir={folder}/spool/%n",
            "SlurmdParameters=config_overrides",
            f"SlurmdTimeout={self.node_timeout}",
            "TCPTimeout=5",
            "MessageTimeout=10",
            "ReturnToService=2",
            *self._accounting(),
        ]

    def _accounting(self) -> list[str]:
        if not self.accounting:
            return ["AccountingStorageType=accounting_storage/none", "JobAcctGatherType=jobacct_gather/none"]
        return [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={self.ports[1]}",
            "JobAcctGatherType=jobacct_gather/linux",
            "JobAcctGatherFrequency=5",
        ]

    def _jobs(self) -> list[str]:
        return [
            "SwitchType=switch/none",
            "MpiDefault=none",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0",
            "PropagateResourceLimits=NONE",
            "JobRequeue=1",
            "KillOnBadExit=0",
            f"KillWait={self.kill_wait}",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
        ]

    def _machines(self) -> list[str]:
        gres = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        lines = ["GresTypes=gpu"] if self.gpus else []
        for name, port in zip(self.names, self.ports[4:], strict=True):
            where = f"NodeHostname={name} NodeAddr={self.address(name)} Port={port}"
            lines.append(f"NodeName={name} {where} CPUs={self.cpus} RealMemory=4000{gres} State=UNKNOWN")
        every = f"Nodes=n[1-{self.nodes}] MaxTime=INFINITE State=UP"
        return [
            *lines,
            f"PartitionName=main {every} Default=YES PriorityTier=5 PreemptMode=OFF",
            f"PartitionName=low {every} PriorityTier=1 PreemptMode=REQUEUE GraceTime={self.grace}",
            f"PartitionName=high {every} PriorityTier=10 PreemptMode=OFF",
        ]

    def _database(self) -> list[str]:
        return [
            "AuthType=auth/none",
            f"DbdHost={CONTROLLER}",
            f"DbdPort={self.ports[1]}",
            "SlurmUser=root",
            f"LogFile={self.folder}/log/slurmdbd.log",
            f"PidFile={self.folder}/state/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=127.0.0.1",
            f"StoragePort={self.ports[2]}",
            "StorageUser=slurm",
            "StoragePass=slurm",
            "StorageLoc=slurm",
        ]
