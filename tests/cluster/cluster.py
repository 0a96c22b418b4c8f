"""A real Slurm cluster of several nodes on this one machine, as root and without systemd.

Each node has a network namespace of its own (so that MASTER_ADDR=localhost fails, as it does on a cluster), and host
name, /etc/hosts, /dev/shm and processes of its own. Files are shared, as on a cluster. There is one such cluster a
machine: node names fix the names of cgroups and of the bridge.

Every process we start has a file run/<name>.pid in the cluster's folder, and /run holds the path of that folder, so
that what a killed run has left is found and taken down by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Callable, Iterator, List, Optional

from tests.cluster import settings
from tests.cluster.settings import Settings

RECORD = Path("/run/llm-test-cluster")  # holds the folder of the cluster that is up, or was when its owner was killed
LOCK = Path("/run/llm-test-cluster.lock")
CGROUPS = Path("/sys/fs/cgroup")
DAEMONS = ("slurmctld", "slurmdbd", "mariadbd", "munged")  # in the order in which they are stopped

# A node's first process: takes over host name, hosts, configuration and scratch memory, then reaps what slurmd leaves.
NODE_INIT = """
hostname "$1"
mount --bind "$2/etc/hosts" /etc/hosts
mount --bind "$2/etc" /etc/slurm
mount -t tmpfs -o size=2g,mode=1777 tmpfs /dev/shm
unset SLURM_CONF
slurmd -D $3 -N "$1" & daemon=$!
until wait $daemon; [ ! -d /proc/$daemon ]; do :; done
"""


class ClusterError(RuntimeError):
    """The cluster cannot be brought up; the message says what failed and where the log is."""


@contextlib.contextmanager
def exclusive(wait_s: float) -> Iterator[None]:
    """Hold the machine's only cluster. The lock goes with the process, however that ends."""
    with open(LOCK, "w") as file:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ClusterError("another test session holds this machine's cluster; wait for it") from None
                time.sleep(0.5)
        yield


class Cluster:
    """`up()`, then `environment()` for the clients' SLURM_CONF, `node("n2", "off")`, at last `down()`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    @classmethod
    def current(cls) -> Optional["Cluster"]:
        return cls(Path(RECORD.read_text().strip())) if RECORD.exists() else None

    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.root / "etc" / "slurm.conf")}

    # --- up -----------------------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Some three seconds. Takes down first what an earlier run has left. Raises ClusterError."""
        _require_tools()
        if former := Cluster.current():
            print(f"taking down the cluster left in {former.root}", flush=True)
            former.down()
        _remove_networks()  # of a run that was killed before it wrote its record
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)  # munged refuses a socket that not everybody can reach
        RECORD.write_text(str(self.root))
        try:
            for name in ("etc", "run", "log", "state", "dev", "db", "spool"):
                (self.root / name).mkdir(exist_ok=True)
            self._configure()
            self._start_accounting()
            self._start_controller()
            for name in self._names():
                _add_network(name)
                self.node(name, "on")
            _until("idle nodes", 30, lambda: self._idle_nodes() == set(self._names()), self.root)
        except BaseException:
            self.down(keep=True)
            raise

    def _configure(self) -> None:
        gpus = _make_devices(self.root / "dev", 8)
        s = Settings(self.root, socket.gethostname(), _free_ports(11), gpus=gpus, cgroups=_cgroups_work())
        files = {
            "hosts": settings.hosts(s),
            "slurm.conf": settings.slurm_conf(s),
            "gres.conf": settings.gres_conf(s),
            "slurmdbd.conf": settings.slurmdbd_conf(s),
            **({"cgroup.conf": settings.cgroup_conf()} if s.cgroups else {}),
        }
        for name, text in files.items():
            (self.root / "etc" / name).write_text(text)
        (self.root / "etc" / "slurmdbd.conf").chmod(0o600)
        (self.root / "run" / "nodes").write_text(" ".join(s.names))
        (self.root / "run" / "port").write_text(str(s.port))

    def _start_accounting(self) -> None:
        """munge, MariaDB and slurmdbd: sacct works."""
        run, log, db = self.root / "run", self.root / "log", self.root / "db"
        (run / "munge.key").write_bytes(os.urandom(128))
        (run / "munge.key").chmod(0o400)
        self._spawn(
            "munged",
            ["munged", "-F", f"--socket={run}/munge.sock", f"--key-file={run}/munge.key", f"--seed-file={run}/seed"]
            + [f"--pid-file={run}/munged.own.pid", f"--log-file={log}/munged.log"],
        )
        _until("munged", 10, (run / "munge.sock").exists, self.root)
        # in memory: on a busy disk the creation of the tables takes ten seconds
        _call(["mount", "-t", "tmpfs", "-o", "size=600m", "tmpfs", str(db)])
        _call(
            ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={db}", "--skip-test-db"]
            + ["--auth-root-authentication-method=socket"]
        )
        port = int((run / "port").read_text())
        self._spawn(
            "mariadbd",
            ["mariadbd", "--no-defaults", "--user=root", f"--datadir={db}", f"--socket={run}/mariadb.sock"]
            + ["--bind-address=127.0.0.1", f"--port={port + 2}", "--innodb-buffer-pool-size=64M"]
            + ["--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=0"],
        )
        client = ["mariadb", "--no-defaults", "-S", f"{run}/mariadb.sock", "-e"]
        _until("MariaDB", 30, lambda: _succeeds(client + ["select 1"]), self.root)
        for host in ("127.0.0.1", "localhost"):
            user = f"slurm@'{host}'"
            _call(client + [f"create user {user} identified by 'x'; grant all on slurm_acct_db.* to {user}"])
        self._spawn("slurmdbd", ["slurmdbd", "-D"])
        env = self.environment()
        _until("slurmdbd", 30, lambda: _succeeds(["sacctmgr", "-n", "show", "cluster"], env), self.root)
        _call(["sacctmgr", "-i", "add", "cluster", settings.NAME], env)

    def _start_controller(self) -> None:
        _call(["ip", "link", "add", settings.BRIDGE, "type", "bridge"])
        _call(["ip", "addr", "add", f"{settings.CONTROLLER}/24", "dev", settings.BRIDGE])
        _call(["ip", "link", "set", settings.BRIDGE, "up"])
        self._spawn("slurmctld", ["slurmctld", "-D"])
        _until("slurmctld", 30, lambda: _succeeds(["scontrol", "ping"], self.environment()), self.root)

    def _idle_nodes(self) -> set[str]:
        command = ["sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N"]
        answer = subprocess.run(command, capture_output=True, text=True, env=self.environment())
        return set(answer.stdout.split())

    def _names(self) -> List[str]:
        return (self.root / "run" / "nodes").read_text().split()

    def _spawn(self, name: str, command: List[str]) -> None:
        """In the foreground of a session of its own: we know the pid, and a terminal's Ctrl-C does not reach it."""
        with open(self.root / "log" / f"{name}.out", "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                start_new_session=True,
            )
        self._children[process.pid] = process
        (self.root / "run" / f"{name}.pid").write_text(str(process.pid))

    # --- nodes --------------------------------------------------------------------------------------------------------

    def node(self, name: str, action: str) -> None:
        """on: boot. off: power loss, every process of the node dies at once. cut, heal: its network cable."""
        if name not in self._names() or action not in ("on", "off", "cut", "heal"):
            raise ClusterError(f"{name} {action}: nodes are {self._names()}, actions on, off, cut, heal")
        if action == "off":
            self._kill(f"node.{name}", "unshare", signal.SIGKILL)
        elif action == "on":
            (self.root / "spool" / name).mkdir(exist_ok=True)
            # a second boot must say so (-b), or Slurm does not notice that the node's job steps are gone
            booted = self.root / "run" / f"booted.{name}"
            again = "-b" if booted.exists() else ""
            booted.touch()
            spaces = ["--uts", "--mount", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
            inside = ["bash", "-c", NODE_INIT, "node", name, str(self.root), again]
            self._spawn(f"node.{name}", ["nsenter", f"--net=/run/netns/llm_{name}", "unshare", *spaces, *inside])
        else:
            _call(["ip", "link", "set", f"llm_{name}", "down" if action == "cut" else "up"])

    def resume(self, name: str) -> None:
        """Back to work after a boot, which Slurm wants said; a booting node registers more than once, undoing it."""
        seen = 0

        def steadily_idle() -> bool:
            nonlocal seen
            seen = seen + 1 if name in self._idle_nodes() else 0
            if seen == 0:
                _succeeds(["scontrol", "update", f"NodeName={name}", "State=RESUME"], self.environment())
            time.sleep(0.3)
            return seen > 5

        _until(f"idle {name}", 60, steadily_idle, self.root)

    # --- down ---------------------------------------------------------------------------------------------------------

    def down(self, keep: bool = False) -> None:
        """Ends jobs, nodes and daemons by their pid files and removes every trace; keep: the folder stays, for logs."""
        if (self.root / "etc" / "slurm.conf").exists() and self._pid_of("slurmctld", "slurmctld"):
            subprocess.run(["scancel", "--user=root", "--quiet"], env=self.environment(), timeout=30, check=False)
        for file in (self.root / "run").glob("node.*.pid"):
            self._kill(file.stem, "unshare", signal.SIGKILL)
        for name in DAEMONS:
            self._kill(name, name, signal.SIGTERM)
        _succeeds(["umount", str(self.root / "db")])
        _remove_networks()
        _remove_cgroups()
        if RECORD.exists() and RECORD.read_text().strip() == str(self.root):
            RECORD.unlink()
        if not keep:
            shutil.rmtree(self.root, ignore_errors=True)

    def _pid_of(self, name: str, program: str) -> Optional[int]:
        """None when it is gone, or when its number now belongs to another program."""
        try:
            pid = int((self.root / "run" / f"{name}.pid").read_text())
            if child := self._children.get(pid):
                child.poll()  # reaps a zombie of ours
            state = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ValueError, ProcessLookupError):
            return None
        is_zombie = state.rsplit(")", 1)[1].split()[0] == "Z"
        return None if is_zombie or f"({program[:15]})" not in state else pid

    def _kill(self, name: str, program: str, how: signal.Signals) -> None:
        for attempt in (how, signal.SIGKILL):
            if (pid := self._pid_of(name, program)) is None:
                break
            os.kill(pid, attempt)
            deadline = time.monotonic() + 5
            while self._pid_of(name, program) and time.monotonic() < deadline:
                time.sleep(0.02)
        (self.root / "run" / f"{name}.pid").unlink(missing_ok=True)


def temporary_root() -> Path:
    return Path(tempfile.mkdtemp(prefix="llm-cluster-"))


# --- the machine ------------------------------------------------------------------------------------------------------


def _require_tools() -> None:
    tools = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "mariadb-install-db", "sbatch", "ip", "unshare")
    if os.geteuid() != 0:
        raise ClusterError("the test cluster needs root: it makes network namespaces; run the tests as root")
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        raise ClusterError(f"no {', '.join(missing)} on this machine; run tests/cluster/install.sh")


def _add_network(node: str) -> None:
    namespace, cable = f"llm_{node}", f"llm_{node}"
    _call(["ip", "netns", "add", namespace])
    _call(["ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace])
    _call(["ip", "link", "set", cable, "master", settings.BRIDGE, "up"])
    _call(["ip", "-n", namespace, "addr", "add", f"{settings.address(node)}/24", "dev", "eth0"])
    for device in ("eth0", "lo"):
        _call(["ip", "-n", namespace, "link", "set", device, "up"])


def _remove_networks() -> None:
    answer = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    for name in [line.split()[0] for line in answer.stdout.splitlines() if line.startswith("llm_n")]:
        # the cable first: a namespace that is still in use somewhere would keep its name taken
        _succeeds(["ip", "link", "del", name])
        _succeeds(["ip", "netns", "del", name])
    _succeeds(["ip", "link", "del", settings.BRIDGE])


def _cgroups_work() -> bool:
    """Version 1 with freezer and memory writable. Without, processes are tracked by /proc and memory is not limited."""
    probe = CGROUPS / "freezer" / "llm_test_probe"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return (CGROUPS / "memory").is_dir()


def _remove_cgroups() -> None:
    for top in CGROUPS.glob("*/slurm_n[0-9]*"):
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _make_devices(folder: Path, count: int) -> int:
    """Clones of /dev/null, since Slurm counts GPUs only by character devices. -> how many were made."""
    try:
        for i in range(count):
            os.mknod(folder / f"gpu{i}", 0o20666, os.makedev(1, 3))
    except PermissionError:
        print("the nodes have no GPUs: this machine does not allow mknod", flush=True)
        return 0
    return count


def _free_ports(count: int) -> int:
    """-> the first of `count` consecutive free ports."""
    for first in range(26800, 32000, 20):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    probe = stack.enter_context(socket.socket())
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("", port))
                return first
            except OSError:
                continue
    raise ClusterError("no free ports between 26800 and 32000")


def _call(command: List[str], env: Optional[dict[str, str]] = None) -> None:
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)
    if answer.returncode:
        raise ClusterError(f"{' '.join(command)}: {answer.stderr.strip() or answer.stdout.strip()}")


def _succeeds(command: List[str], env: Optional[dict[str, str]] = None) -> bool:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=env).returncode == 0


def _until(what: str, seconds: float, done: Callable[[], bool], root: Path) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise ClusterError(f"no {what} after {seconds} s; logs in {root}/log")
        time.sleep(0.05)
