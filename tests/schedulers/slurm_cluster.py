"""A SLURM cluster of two nodes on this machine, for tests: munged, slurmctld and two slurmd in a folder of their own.

Needs root and Debian's packages: apt install slurm-wlm
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
SlurmdParameters=config_overrides
AuthInfo=socket={folder}/munge.socket
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MailProg=/bin/true
NodeName=node[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]},{ports[2]} CPUs=4 RealMemory=1000
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def unavailable_reason() -> str:
    """Return why no cluster can be started here, or ""."""
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        return f"needs SLURM (apt install slurm-wlm): no {missing[0]}"
    return "" if os.geteuid() == 0 else "slurmd must run as root"


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.3)


class SlurmCluster:
    """Started on entry, stopped on exit. `run` calls SLURM's programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> "SlurmCluster":
        for name in ("state", "node1", "node2"):
            (self.folder / name).mkdir()
        self.folder.chmod(0o755)
        text = CONFIG.format(folder=self.folder, host=socket.gethostname(), ports=_free_ports(3))
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (self.folder / "munge.key").chmod(0o600)
        files = {name: self.folder / f"munge.{name}" for name in ("key", "socket", "seed", "log")}
        options = [f"--{name if name == 'socket' else f'{name}-file'}={path}" for name, path in files.items()]
        self.run("munged", "--force", f"--pid-file={self.folder}/munged.pid", *options)
        self.run("slurmctld", "-c")
        for node in ("node1", "node2"):
            self.run("slurmd", "-N", node)
        wait_for(lambda: self.run("sinfo", "-h", "-o", "%D %t").strip() == "2 idle", 30, "both nodes idle")
        return self

    def __exit__(self, *error: object) -> None:
        self.run("scancel", "--user=root", "--full")
        wait_for(lambda: not self.run("squeue", "-h"), 60, "all jobs ended")  # else their steps outlive slurmd
        for name in ("node1", "node2", "slurmctld", "munged"):
            path = self.folder / f"{name}.pid"
            if path.exists():
                os.kill(int(path.read_text()), signal.SIGTERM)
        wait_for(lambda: not list(self.folder.glob("*.pid")), 30, "the cluster stopped")

    def run(self, *command: str) -> str:
        result = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, cwd=self.folder
        )
        assert result.returncode == 0, f"{' '.join(command)}: {result.stderr}"
        return result.stdout

    def job(self, number: str) -> dict[str, str]:
        """Return SLURM's fields of a job, such as JobState, Restarts and ExitCode."""
        words = self.run("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
