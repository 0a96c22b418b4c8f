"""The files that Slurm, slurmdbd and the nodes read, as pure functions of where the cluster lives.

Everything that differs from a real site is a timer made short, so that a test need not wait minutes for a requeue.
Option names: slurm.conf(5), slurmdbd.conf(5), gres.conf(5), cgroup.conf(5).
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

NAME = "llmtest"
NETWORK = "198.18.77"  # of the block set aside for benchmarks (RFC 2544): no real network uses it
CONTROLLER = f"{NETWORK}.254"
BRIDGE = "llmtest0"


@dataclasses.dataclass(frozen=True)
class Settings:
    root: Path
    host: str  # name of this machine, where the controller runs
    port: int  # first of eleven: slurmctld, slurmdbd, MariaDB, ..., slurmd
    nodes: int = 4
    cpus: int = 8  # a node; more than the machine has, which config_overrides allows
    memory_mb: int = 8000
    gpus: int = 8  # a node; clones of /dev/null
    cgroups: bool = True

    @property
    def names(self) -> list[str]:
        return [f"n{i}" for i in range(1, self.nodes + 1)]


def address(node: str) -> str:
    return f"{NETWORK}.{node[1:]}"


def hosts(s: Settings) -> str:
    lines = ["127.0.0.1 localhost", f"{CONTROLLER} {s.host}"] + [f"{address(name)} {name}" for name in s.names]
    return "\n".join(lines) + "\n"


def slurm_conf(s: Settings) -> str:
    track = ("proctrack/cgroup", "task/cgroup") if s.cgroups else ("proctrack/linuxproc", "task/none")
    gres = f" Gres=gpu:h100:{s.gpus}" if s.gpus else ""
    nodes = [
        f"NodeName={name} NodeHostname={name} NodeAddr={address(name)} Port={s.port + 10} CPUs={s.cpus} "
        f"RealMemory={s.memory_mb} Feature=std{gres} State=UNKNOWN"
        for name in s.names
    ]
    return f"""\
ClusterName={NAME}
SlurmctldHost={s.host}({CONTROLLER})
SlurmctldPort={s.port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# the first delay before a requeued job starts is cred_expire: 120 s by default
AuthInfo=socket={s.root}/run/munge.sock,cred_expire=6
StateSaveLocation={s.root}/state
SlurmdSpoolDir={s.root}/spool/%n
SlurmctldPidFile={s.root}/run/slurmctld.own.pid
SlurmdPidFile={s.root}/run/slurmd.%n.own.pid
SlurmctldLogFile={s.root}/log/slurmctld.log
SlurmdLogFile={s.root}/log/slurmd.%n.log
ProctrackType={track[0]}
TaskPlugin={track[1]}
JobAcctGatherType=jobacct_gather/linux
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU={s.memory_mb // s.cpus}
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
# a preempted job gets its --signal at the beginning of the grace time, not only SIGTERM
SlurmctldParameters=preempt_send_user_signal
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
EnforcePartLimits=ALL
SlurmdTimeout=20
KillWait=5
MessageTimeout=5
TCPTimeout=2
MinJobAge=900
ReturnToService=1
# a fresh cluster must not hand out the job ids of the one before: result files carry them
FirstJobId={int(time.time()) % 900_000 + 1000}
{"GresTypes=gpu" if s.gpus else ""}
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={s.port + 1}
AccountingStoragePass={s.root}/run/munge.sock
{"AccountingStorageTRES=gres/gpu" if s.gpus else ""}
{chr(10).join(nodes)}
PartitionName=main Nodes=ALL Default=YES DefaultTime=5 MaxTime=60 PriorityTier=10 State=UP
PartitionName=low Nodes=ALL DefaultTime=5 MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime=15 State=UP
PartitionName=high Nodes=ALL DefaultTime=5 MaxTime=60 PriorityTier=100 PreemptMode=OFF State=UP
"""


def gres_conf(s: Settings) -> str:
    if not s.gpus:
        return ""
    return f"NodeName=n[1-{s.nodes}] Name=gpu Type=h100 File={s.root}/dev/gpu[0-{s.gpus - 1}]\n"


def cgroup_conf() -> str:
    return """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainRAMSpace=yes
ConstrainCores=no
ConstrainDevices=no
"""


def slurmdbd_conf(s: Settings) -> str:
    return f"""\
AuthType=auth/munge
AuthInfo=socket={s.root}/run/munge.sock
DbdHost={s.host}
DbdAddr=127.0.0.1
DbdPort={s.port + 1}
SlurmUser=root
PidFile={s.root}/run/slurmdbd.own.pid
LogFile={s.root}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={s.port + 2}
StorageUser=slurm
StoragePass=x
StorageLoc=slurm_acct_db
CommitDelay=0
"""
