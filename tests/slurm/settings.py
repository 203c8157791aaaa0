"""What the tests' Slurm cluster is configured to be: the texts of its configuration files.

Every daemon listens on a loopback address and a free port, and everything it writes is in one folder, so clusters can
run side by side. Source of the names: slurm.conf(5), slurmdbd.conf(5), Slurm 22.05. Times are in seconds: a requeued
job waits for 5 (the lifetime of a credential; Slurm's least).

Does not cover: authentication (auth/none: the tests are one user), cgroups, GPUs, a fabric.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CONTROLLER = "ctl"
"""Host name of the controller, in its own UTS namespace."""

CONF = """\
ClusterName=tests
SlurmctldHost=ctl(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/state/slurmctld.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdPidFile={folder}/spool/%n/slurmd.pid
SlurmdLogFile={folder}/log/slurmd-%n.log
SlurmdSpoolDir={folder}/spool/%n
SlurmdParameters=config_overrides
SlurmdTimeout={node_timeout}
TCPTimeout=5
MessageTimeout=10
ReturnToService=2
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PropagateResourceLimits=NONE
JobRequeue=1
KillOnBadExit=0
KillWait=15
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL MaxTime=INFINITE State=UP Default=YES PriorityTier=5 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=15
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
NO_ACCOUNTING = "AccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none\n"
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ports[1]}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
"""
NODE = "NodeName={0} NodeHostname={0} NodeAddr={1} Port={2} CPUs=4 RealMemory=4000 State=UNKNOWN\n"
DATABASE = """\
AuthType=auth/none
DbdHost=ctl
DbdPort={ports[1]}
SlurmUser=root
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/state/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports[2]}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
"""


@dataclass(frozen=True)
class Settings:
    """A cluster of pretended machines."""

    folder: Path
    ports: tuple[int, ...]
    """Of slurmctld, slurmdbd and MariaDB, a spare one, then one for each node."""
    nodes: int
    accounting: bool
    node_timeout: int
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

    def write(self) -> None:
        for name in ("etc", "log", "state", *(f"spool/{node}" for node in self.names)):
            (self.folder / name).mkdir(parents=True, mode=0o755)
        # Each node has its own loopback address, as on a machine of its own.
        addresses = {name: f"127.0.1.{number}" for number, name in enumerate(self.names, 1)}
        nodes = zip(addresses.items(), self.ports[4:], strict=True)
        machines = [NODE.format(*pair, port) for pair, port in nodes]
        values = {"folder": self.folder, "ports": self.ports, "node_timeout": self.node_timeout}
        accounting = ACCOUNTING if self.accounting else NO_ACCOUNTING
        self.conf.write_text("".join(machines) + (accounting + CONF).format(**values))
        ours = [f"127.0.0.1 {CONTROLLER}", *(f"{address} {name}" for name, address in addresses.items())]
        # A name that the machine gives too would have two addresses: `hostname --ip-address` shows both.
        names = {CONTROLLER, *self.names}
        others = [line for line in Path("/etc/hosts").read_text().splitlines() if not names & {*line.split()}]
        self.hosts.write_text("\n".join([*ours, *others, ""]))
        if self.accounting:
            database = self.conf.with_name("slurmdbd.conf")
            database.write_text(DATABASE.format(**values))
            database.chmod(0o600)
