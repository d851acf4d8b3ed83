"""Real Slurm on this machine: a controller and some nodes at the loopback address, for benchmarks, tests and the demonstration.

Only root can run it. `tests/src/hosts/slurm.rs` is the same for tests in Rust.
"""

import datetime
import os
import pathlib
import re
import shutil
import socket
import subprocess
import time

# Time that Slurm has for each step; it takes a second or two.
LIMIT_S = 120
CONTROL_GROUPS = pathlib.Path("/sys/fs/cgroup")
# Lines of slurm.conf that depend on whether jobs have control groups.
GROUPED = "ProctrackType=proctrack/cgroup\nTaskPlugin=task/affinity,task/cgroup\nSelectTypeParameters=CR_Core_Memory\nDefMemPerCPU=100"
UNGROUPED = "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectTypeParameters=CR_Core"
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "sinfo", "squeue", "scancel")


def program(name):
    """Path of one of Slurm's programs; those of administrators are not in each user's PATH."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


def why_not():
    """Reason why Slurm cannot run here. Returns None if it can."""
    if os.geteuid() != 0:
        return "only root can run the daemons of a Slurm of its own"
    missing = [name for name in PROGRAMS if not program(name)]
    return f"Slurm is not installed: {missing[0]} is missing (`make setup-tests` installs it)" if missing else None


def why_no_control_groups():
    """Reason why jobs of a Slurm here can have no control groups of version 1. Returns None if they can."""
    missing = [name for name in ("cpuset", "freezer", "memory") if not os.access(CONTROL_GROUPS / name / "tasks", os.W_OK)]
    return f"there is no control group {CONTROL_GROUPS / missing[0]} of version 1 to write to" if missing else None


def wait_until(what, is_true):
    """Waits until the condition is true, or raises TimeoutError."""
    end = time.monotonic() + LIMIT_S
    while not is_true():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} took more than {LIMIT_S} s")
        time.sleep(0.02)


class Cluster:
    """A cluster in this folder, until `close`. `variables` lead programs to it.

    `cpus` has the number of processors of each node, and `settings` further lines of slurm.conf. `control_groups`: the kernel
    holds jobs to the cores and memory that they asked for, where it has control groups of version 1 (see `why_no_control_groups`).
    """

    def __init__(self, folder, cpus, settings=(), control_groups=False):
        self.folder, self.cpus, self._daemons = pathlib.Path(folder), list(cpus), []
        self.variables = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        self._configure(settings, GROUPED if control_groups else UNGROUPED)
        try:
            self._start("slurmctld", "-D")
            for node in range(len(self.cpus)):
                self._start("slurmd", "-D", "-N", f"n{node}")
            wait_until("Slurm's start", lambda: self.idle_nodes() == len(self.cpus))
        except BaseException:
            self.close()
            raise

    def _configure(self, settings, grouping):
        host, folder = socket.gethostname(), self.folder
        controller, *ports = _free_ports(len(self.cpus) + 1)
        lines = [
            f"ClusterName=python\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={controller}\nSlurmUser=root\nSlurmdUser=root",
            "AuthType=auth/none\nCredType=cred/none\nCommunicationParameters=NoInAddrAny,NoCtldInAddrAny\nMailProg=/bin/true",
            f"StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool/%n\nSlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/%n.pid\nSlurmctldLogFile={folder}/slurmctld.log\nSlurmdLogFile={folder}/%n.log",
            f"{grouping}\nSwitchType=switch/none\nMpiDefault=none",
            "SelectType=select/cons_tres\nSlurmdParameters=config_overrides\nReturnToService=2\nLogTimeFormat=iso8601_ms",
            "KillWait=5\nSchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0",
            *settings,
            "PartitionName=main Nodes=ALL Default=YES",
        ]
        for node, (count, port) in enumerate(zip(self.cpus, ports)):
            lines.append(f"NodeName=n{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={count} RealMemory=1000")
        (folder / "cgroup.conf").write_text(f"CgroupMountpoint={CONTROL_GROUPS}\nConstrainCores=yes\nConstrainRAMSpace=yes\n")
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")

    def _start(self, name, *arguments):
        with open(self.folder / "log", "ab") as log:
            command = [program(name), *arguments]
            environment = {**os.environ, **self.variables}
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=environment)
        self._daemons.append(daemon)

    def run(self, name, *arguments):
        """Output of one of Slurm's programs."""
        command, environment = [program(name), *map(str, arguments)], {**os.environ, **self.variables}
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment).stdout

    def idle_nodes(self):
        return self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").count("\n")

    def jobs(self):
        """States of the jobs that have not ended, by number."""
        listed = (line.split() for line in self.run("squeue", "-h", "-o", "%i %T").splitlines())
        return {number: state for number, state in listed if state != "COMPLETING"}

    def controller_times(self, job):
        """Times at which the controller has queued a batch job and has allocated its nodes, in seconds since the epoch."""
        log = (self.folder / "slurmctld.log").read_text()

        def time_of(event):
            stamp = re.search(rf"^\[(\S+)\] {event}", log, re.MULTILINE)[1]
            return datetime.datetime.fromisoformat(stamp).timestamp()

        return time_of(rf"_slurm_rpc_submit_batch_job: JobId={job} "), time_of(rf"sched(?:: Allocate|/backfill: .*Started) JobId={job} ")

    def close(self):
        self.run("scancel", "--user=root")
        try:
            # Without its slurmd a step would go on.
            wait_until("the end of all jobs", lambda: not self.run("squeue", "-h"))
        finally:
            for daemon in reversed(self._daemons):
                daemon.terminate()
                daemon.wait(LIMIT_S)


def _free_ports(number):
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports
