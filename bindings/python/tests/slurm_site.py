"""Real Slurm on this machine: a controller and some nodes at the loopback address, as in `tests/src/hosts/slurm.rs`."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import time

import pytest

# Time that Slurm has for each step; it takes a second or two.
_LIMIT = 120


def _program(name):
    """Path of a program of Slurm; those of administrators are not in each user's PATH."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


def _free_ports(number):
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


class Site:
    """A cluster whose nodes have two processors each. `variables` lead programs to it."""

    def __init__(self, folder, nodes):
        if os.geteuid() != 0 or not _program("slurmctld") or not _program("slurmd"):
            pytest.skip("Slurm is not installed (make setup-tests installs it), or this is not root")
        self._folder, self._nodes, self._daemons = pathlib.Path(folder), nodes, []
        self.variables = {"SLURM_CONF": str(self._folder / "slurm.conf")}
        for name in ("state", "spool"):
            (self._folder / name).mkdir()
        self._configure(nodes)
        self._start("slurmctld", "-D")
        for node in range(nodes):
            self._start("slurmd", "-D", "-N", f"n{node}")

    def wait(self):
        """Waits until it takes jobs."""
        end = time.monotonic() + _LIMIT
        while self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").count("\n") < self._nodes:
            assert time.monotonic() < end, f"Slurm does not serve:\n{(self._folder / 'log').read_text()}"
            time.sleep(0.05)

    def _configure(self, nodes):
        host, folder = socket.gethostname(), self._folder
        controller, *ports = _free_ports(nodes + 1)
        lines = [
            f"ClusterName=python\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={controller}\nSlurmUser=root\nSlurmdUser=root",
            "AuthType=auth/none\nCredType=cred/none\nCommunicationParameters=NoInAddrAny,NoCtldInAddrAny\nMailProg=/bin/true",
            f"StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool/%n\nSlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/%n.pid\nSlurmctldLogFile={folder}/slurmctld.log\nSlurmdLogFile={folder}/%n.log",
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none",
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\nReturnToService=2",
            "KillWait=5\nSchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0",
            "PartitionName=main Nodes=ALL Default=YES",
        ]
        for node, port in enumerate(ports):
            lines.append(f"NodeName=n{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000")
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")

    def _environment(self):
        return {**os.environ, **self.variables}

    def _start(self, name, *arguments):
        with open(self._folder / "log", "ab") as log:
            command = [_program(name), *arguments]
            daemon = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, env=self._environment()
            )
        self._daemons.append(daemon)

    def run(self, name, *arguments):
        """Output of one of Slurm's programs."""
        command = [_program(name), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, env=self._environment()).stdout

    def jobs(self):
        """States of the jobs that have not ended, by number."""
        listed = (line.split() for line in self.run("squeue", "-h", "-o", "%i %T").splitlines())
        return {number: state for number, state in listed if state != "COMPLETING"}

    def close(self):
        self.run("scancel", "--user=root")
        # Without its slurmd a step would go on.
        end = time.monotonic() + _LIMIT
        while self.run("squeue", "-h") and time.monotonic() < end:
            time.sleep(0.05)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait(_LIMIT)


@contextlib.contextmanager
def running(folder, nodes):
    """A cluster in this folder, until the end of the block."""
    site = Site(folder, nodes)
    try:
        site.wait()
        yield site
    finally:
        site.close()
