"""A real SLURM cluster of one node on loopback, started by root from Debian's slurm-wlm and munge, for the tests."""

import os
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
NUM_GPUS = 32
SEARCHED = os.environ["PATH"] + ":/usr/sbin:/sbin"

# Loopback only, with fake GPUs and processors. cred_expire is the minimum wait of a requeued job.
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
TaskProlog={folder}/task_prolog
MinJobAge=86400
KillWait=10
MessageTimeout=30
BatchStartTimeout=60
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=256 RealMemory=4000000 Gres=gpu:{num_gpus}
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Return what this machine lacks for a cluster; None for nothing."""
    if missing := [name for name in (*DAEMONS, "sbatch") if shutil.which(name, path=SEARCHED) is None]:
        return f"{', '.join(missing)} not installed (Debian: slurm-wlm and munge)"
    if os.geteuid() != 0:
        return "starting SLURM needs root"
    if not socket.gethostbyname(socket.gethostname()).startswith("127."):
        return "the host's name is not a loopback address"  # SLURM would listen on the network
    with tempfile.TemporaryDirectory() as folder:
        try:
            make_gpu(Path(folder) / "gpu0")
        except PermissionError:
            return "no device files can be made"
    return None


def make_gpu(path: Path) -> None:
    """Create a fake GPU for SLURM, which accepts any character device; this one is another /dev/null."""
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))


@dataclass
class Cluster:
    folder: Path
    environment: dict[str, str]

    def call(self, *command: str, **more: object) -> str:
        """Run a command that uses SLURM, and return its output."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=3600, **more)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def jobs(self, job: str | None = None) -> list[dict[str, str]]:
        """Return the fields of a job (for an array, of each task), or of all jobs."""
        lines = self.call("scontrol", "-o", "show", "job", *([job] if job else [])).splitlines()
        return [dict(word.partition("=")[::2] for word in line.split(" ") if "=" in word) for line in lines]

    def states(self, job: str) -> set[str]:
        return {fields["JobState"] for fields in self.jobs(job)}

    def wait(self, *jobs: str, seconds: float = 3600) -> None:
        """Wait until none of these jobs is in the queue."""
        self.wait_until(lambda: not self.call("squeue", "-h", "-j", ",".join(jobs)), seconds)

    def wait_until(self, condition: Callable[[], object], seconds: float = 3600) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "\n" + self.call("squeue", "--states=all", "-o", "%i %j %T %r %E")
            time.sleep(0.1)


@contextmanager
def start_cluster() -> Iterator[Cluster]:
    """Start a cluster in a new folder directly under /tmp, because names of Unix sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="slurm_", dir="/tmp") as name:
        folder = Path(name)
        write_files(folder)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_"))}
        environment |= {"PATH": SEARCHED, "SLURM_CONF": str(folder / "slurm.conf")}
        cluster = Cluster(folder, environment)
        daemons: list[subprocess.Popen] = []
        try:
            for command in commands(folder):
                log = open(folder / "start.log", "a")  # noqa: SIM115 (the daemon's, as long as it runs)
                daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd="/"))
                log.close()
            cluster.wait_until(lambda: is_up(cluster, daemons), 600)
            try:
                yield cluster
            finally:
                cancel_all(cluster)
        finally:
            for daemon in reversed(daemons):
                daemon.terminate()
                daemon.wait(600)


def write_files(folder: Path) -> None:
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    (folder / "munge").chmod(0o711)
    (folder / "munge/key").touch(mode=0o600)
    (folder / "munge/key").write_bytes(os.urandom(128))
    ports = free_ports(2)
    host = socket.gethostname().partition(".")[0]
    config = CONFIG.format(folder=folder, host=host, ctld_port=ports[0], node_port=ports[1], num_gpus=NUM_GPUS)
    (folder / "slurm.conf").write_text(config)
    for number in range(NUM_GPUS):
        make_gpu(folder / f"gpu{number}")
    # Torch finds none of these GPUs, so every task requests the CPU.
    (folder / "task_prolog").write_text("#!/bin/sh\necho export CUDA_VISIBLE_DEVICES=\n")
    (folder / "task_prolog").chmod(0o755)
    (folder / "gres.conf").write_text(f"NodeName=n1 Name=gpu File={folder}/gpu[0-{NUM_GPUS - 1}]\n")


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def commands(folder: Path) -> list[list[str]]:
    """Return the daemons' commands, in the foreground, so that this process can end them."""
    munge = folder / "munge"
    return [
        ["munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key",
         f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", f"--log-file={munge}/log", "--num-threads=1"],
        ["slurmctld", "-D", "-f", f"{folder}/slurm.conf"],
        ["slurmd", "-D", "-f", f"{folder}/slurm.conf", "-N", "n1"],
    ]  # fmt: skip


def is_up(cluster: Cluster, daemons: list[subprocess.Popen]) -> bool:
    log = cluster.folder / "start.log"
    assert all(daemon.poll() is None for daemon in daemons), f"a daemon of SLURM's ended:\n{log.read_text()}"
    done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=cluster.environment, capture_output=True, text=True)
    return done.stdout.strip() == "idle"


def cancel_all(cluster: Cluster) -> None:
    if jobs := set(cluster.call("squeue", "-h", "-o", "%A").split()):
        cluster.call("scancel", *jobs)
        cluster.wait_until(lambda: not cluster.call("squeue", "-h"), 600)
