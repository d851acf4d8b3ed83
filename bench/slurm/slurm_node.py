"""A Slurm of one node, and hotlease on that node: for benchmarks and the demonstration."""

import contextlib
import os
import pathlib
import signal
import subprocess

import slurm_cluster

CORES = sorted(os.sched_getaffinity(0))


def descendants(pid):
    """Number of the descendants of a process."""
    children = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))

    def count(pid):
        return sum(1 + count(child) for child in children.get(pid, []))

    return count(pid)


class Node:
    """All in one folder, with the programs of the folder `built`, until `ends` (an ExitStack) is closed. Sets the environment
    variables that lead programs of Slurm and hotlease there.

    While the folder has a file `without`, prolog and epilog do nothing. `company`: jobs have control groups, and leases run
    beside each job that does not have the node alone.
    """

    def __init__(self, built, folder, ends, company=False):
        self.folder, self.ends, self.hotlease = folder, ends, built / "hotlease"
        runtime = folder / "run"
        os.environ["HOTLEASE_RUNTIME_DIR"] = str(runtime)
        node = f"{built / 'hotlease-node'} --runtime-dir {runtime} --jobs {folder / 'jobs'}"
        for hook, action in (("prolog", "yield"), ("epilog", "retake")):
            script = f"#!/bin/sh\n[ ! -e {folder}/without ] || exit 0\nexec {node} {action} 2>>{folder}/{hook}.log\n"
            (folder / hook).write_text(script)
            (folder / hook).chmod(0o755)
        hooks = [f"PrologFlags=Alloc\nProlog={folder}/prolog\nEpilog={folder}/epilog"]
        self.slurm = slurm_cluster.Cluster(folder, [len(CORES)], hooks, control_groups=company)
        ends.callback(self.slurm.close)
        os.environ.update(self.slurm.variables)
        cores = ",".join(map(str, CORES)) + ","
        self._start("manager")
        beside = []
        if company:
            (folder / "policy.toml").write_text("[keep]\ncores = 0\nmemory = \"100M\"\n[[company]]\n")
            beside = ["--batch-policy", folder / "policy.toml"]
        self.agent = self._start("agent", "--cores", cores, "--batch-jobs", folder / "jobs", *beside)
        slurm_cluster.wait_until("the agent's start", self._serves)

    def _start(self, *arguments):
        with open(self.folder / "log", "ab") as log:
            command = [self.hotlease, *arguments]
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder)
        self.ends.callback(daemon.wait, slurm_cluster.LIMIT_S)
        self.ends.callback(daemon.send_signal, signal.SIGTERM)
        return daemon.pid

    def _serves(self):
        listed = subprocess.run([self.hotlease, "agents", "--json"], capture_output=True, text=True, timeout=slurm_cluster.LIMIT_S)
        return "serving" in listed.stdout
