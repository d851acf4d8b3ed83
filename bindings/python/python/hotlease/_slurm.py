"""`hotlease.Slurm`: nodes of a Slurm cluster for executors, as jobs of this program's user."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Optional, Union

from hotlease.errors import ClusterError, JobEnded, JobRejected, OptionError, Refused

# Longest wait for a lease in one attempt, and the pause until the next attempt unless new agents join. The manager
# remembers a client for 10 s after its wait, so it would count a client twice that asks again earlier.
_ATTEMPT_S = 3.0
_AGAIN_S = 11.0
_LOOK_S = 0.3
_MINUTE_S = 60
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
# Final states of jobs: a job in such a state ends the wait of an executor, if there is no other job.
_FAILURES = ("failed", "cancelled")


class Job(NamedTuple):
    """A job of a cluster."""

    number: str
    """Number of the job, or its name while it has no number."""
    state: str
    """``submitting``, ``pending``, ``held``, ``running``; ended: ``completed``, ``out-of-time`` (it reached its walltime),
    ``preempted``, ``cancelled``, ``failed``, ``lost`` (no longer listed)."""
    reason: str
    """Slurm's reason for the state; may be empty."""
    nodes: int
    """Number of its nodes."""
    submitted: float
    """Time of its submission, seconds since 1970."""
    started: Optional[float]
    """When it was first seen to run."""
    ended: Optional[float]
    """When it was seen to have ended."""


class Slurm:
    """Nodes of a Slurm cluster for executors: ``hotlease.Executor(cluster=hotlease.Slurm(nodes=2, cores=8))``.

    The object starts a manager on this host, such as the login node, and submits one job for each node; in each job an agent
    joins the manager. Nodes must reach this host, and see the program's Python and the folder of the manager. Jobs are
    cancelled by `close`, when neither the program nor an executor refers to the object any more, and at the end of the
    program, even if the program is killed. Thread-safe.

    Parameters
    ----------
    nodes
        Number of nodes to have from the start, as with `scale`. 0: no nodes before `scale` or `adapt`.
    cores
        Cores of each node. Default: whole nodes (``--exclusive``).
    memory
        Memory of each node: a number of bytes, or text such as ``"16GB"`` or ``"64GiB"``. Default: the site's.
    walltime
        Time limit of a job: ``"HH:MM:SS"``, ``"D-HH:MM:SS"``, ``"90min"``, ``"2h"``, seconds, or a `datetime.timedelta`. At
        least a minute. A job that has reached its limit is replaced by a new job.
    partition, account, qos
        Options of ``sbatch``. Default: the site's.
    gpus
        GPUs of each node.
    job_extra_directives
        Further options of ``sbatch``, such as ``["--constraint=skylake"]``.
    job_script_prologue
        Lines for bash that run on each node before its agent starts, such as ``["module load gcc"]``. Workers get ``PATH``,
        ``LD_LIBRARY_PATH`` and ``TMPDIR`` from there; `Executor` sets other variables (``env=``).
    idle
        Seconds without a lease after which a node that `adapt` got is given back.
    host
        Name or address at which the nodes reach this host. Default: this host's name.
    directory
        Directory for the manager's folder; the nodes must see it. Default: ``$HOTLEASE_CLUSTERS_DIR``, else
        ``~/.local/state/hotlease/clusters``.

    Raises
    ------
    OptionError
        If a value is not understood.
    ClusterError
        If this host has no ``sbatch``, or the manager does not start. A job that the site rejects is an error of the
        executor that waits for it (`JobRejected`).
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        cores: Optional[int] = None,
        memory: Union[int, str, None] = None,
        walltime: Union[str, float, timedelta] = "1h",
        partition: Optional[str] = None,
        account: Optional[str] = None,
        qos: Optional[str] = None,
        gpus: int = 0,
        job_extra_directives: Sequence[str] = (),
        job_script_prologue: Sequence[str] = (),
        idle: float = 300.0,
        host: Optional[str] = None,
        directory: Union[str, os.PathLike[str], None] = None,
    ) -> None:
        # Imported here: these imports take longer than the whole package, and some programs only import its names.
        import shutil

        from hotlease._own_manager import QUEUE, TENANT, OwnManager

        nodes = _count("nodes", nodes, 0)
        cores = None if cores is None else _count("cores", cores, 1)
        gpus = _count("gpus", gpus, 0)
        limit = _seconds(walltime)
        if isinstance(job_extra_directives, str):
            raise OptionError('job_extra_directives is a list of options, such as ["--constraint=skylake"]', False)
        if isinstance(job_script_prologue, str):
            raise OptionError('job_script_prologue is a list of lines, such as ["module load gcc"]', False)
        named = (("partition", partition), ("account", account), ("qos", qos))
        options = [f"--{name}={value}" for name, value in named if value is not None]
        if memory is not None:
            options.append(f"--mem={math.ceil(_bytes(memory) / 2**20)}M")
        if gpus:
            options.append(f"--gpus-per-node={gpus}")
        if shutil.which("sbatch") is None:
            raise ClusterError(
                "this host has no sbatch in PATH, so no job can be submitted: run the program on a login node of the cluster, or "
                "add the folder of Slurm's commands to PATH"
            )
        self._cores, self._nodes_max, self._name = cores, nodes, QUEUE
        self._manager = OwnManager(host, directory)
        self._queue: list[Any] = [
            *("--time", f"{limit}s", "--idle", f"{max(1, math.ceil(idle))}s", "--backlog", 1000, "--tenant", TENANT),
            *("--name", QUEUE, "--manager", self._manager.address, "--authority", self._manager.authority, "--gpus", gpus),
            *(("--cores", cores) if cores is not None else ()),
            *(f"--prologue={line}" for line in job_script_prologue),
            *("--", *options, *job_extra_directives),
        ]
        try:
            self._manager.alloc("add", "slurm", "--min-nodes", nodes, "--max-nodes", max(nodes, 1), *self._queue)
            if nodes == 0:
                self.scale(0)
            self._manager.serve_queue()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<hotlease.Slurm: {'closed' if self._manager.is_closed else self.manager}>"

    def __enter__(self) -> Slurm:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def manager(self) -> str:
        """Address of the manager, for ``hotlease agents --manager``."""
        return self._manager.address

    @property
    def identity(self) -> str:
        """Folder of the identity with which clients use the manager."""
        return str(self._manager.client)

    def scale(self, n: int) -> None:
        """Keeps `n` nodes from now on, with one job for each: jobs are submitted, or cancelled, within seconds. Does not wait.

        A job that reaches its walltime, or is preempted, is replaced by a new job. If there are too many jobs, jobs that
        have not begun are cancelled first. Tasks on a node that is given back move to other nodes, or raise `LeaseEnded`,
        as after the loss of any node.
        """
        n = _count("n", n, 0)
        self._scale(n, n)

    def adapt(self, minimum: int = 0, maximum: int = 1) -> None:
        """Keeps between `minimum` and `maximum` nodes from now on: jobs are submitted while executors wait for workers, and
        nodes beyond the minimum end when no executor has needed them for `idle` seconds. Does not wait.

        Nodes that an earlier `scale` got are kept until their walltime, if their number is not above `maximum`.
        """
        minimum, maximum = _count("minimum", minimum, 0), _count("maximum", maximum, 0)
        if minimum > maximum:
            raise OptionError(f"minimum is {minimum}, and maximum is {maximum}: it must not be less", False)
        self._scale(minimum, maximum)

    def _scale(self, least: int, most: int) -> None:
        self._check_open()
        self._manager.alloc("scale", self._name, "--min-nodes", least, "--max-nodes", most)
        self._nodes_max = most

    def jobs(self) -> list[Job]:
        """Returns the jobs, oldest first, with the last 20 jobs that have ended.

        Slurm is asked every 5 s, so states may be 5 s old.
        """
        return [_job(row) for row in self._row()["jobs"]]

    def job_script(self) -> str:
        """Returns the script of a job, and checks that the site would accept it.

        Raises
        ------
        JobRejected
            If the site would not accept it; the message has the site's words.
        """
        self._check_open()
        try:
            shown = self._manager.alloc("dry-run", "slurm", "--max-nodes", max(self._nodes_max, 1), *self._queue)
        except ClusterError as error:
            if "would reject" in str(error):
                raise JobRejected(str(error), False) from None
            raise
        return "\n".join(("# " + " ".join(shown[0]["command"]), shown[0]["script"]))

    def logs(self) -> list[str]:
        """Returns log lines about jobs (submissions, cancellations, changes that were seen), oldest first."""
        self._check_open()
        return [entry["line"] for entry in self._manager.alloc("log")]

    def close(self) -> None:
        """Cancels all jobs, and ends the manager. Executors of the cluster lose their workers. Waits until the manager has ended.

        Raises
        ------
        ClusterError
            If the batch system does not accept that a job is cancelled.
        """
        self._manager.close()

    def _check_open(self) -> None:
        if self._manager.is_closed:
            raise ClusterError("this cluster was closed", False)

    def _row(self) -> dict[str, Any]:
        self._check_open()
        row: dict[str, Any] = self._manager.alloc("ls", "--all")[0]
        return row

    def _check(self) -> None:
        """Raises an error if the last job was rejected or failed, and no other job exists or is about to be submitted."""
        row = self._row()
        jobs = [_job(each) for each in row["jobs"]]
        if not row["why"] or not row["again_in_ms"] or any(job.ended is None for job in jobs):
            return
        again = f"; another one is submitted in {row['again_in_ms'] / 1000:.0f} s"
        if row["why"].startswith("rejected"):
            raise JobRejected(f"the site does not accept the job: {row['why']}{again}", False)
        ended = [job for job in jobs if job.state in _FAILURES]
        number, state = (ended[-1].number, ended[-1].state) if ended else ("", "failed")
        raise JobEnded(f"no node of the cluster is left: {row['why']}{again}", False, number, state)

    def _used(self, asked: dict[str, Any], manager: Optional[str], workers: Union[int, str, None]) -> tuple[str, int]:
        """Puts the identity into an executor's options; returns the executor's manager and number of workers."""
        self._check_open()
        if manager is not None or isinstance(workers, str) or asked.get("identity") is not None:
            raise TypeError("a cluster has a manager and an identity of its own: give cluster, or manager and identity")
        asked["identity"] = self.identity
        # With whole nodes the number of cores is not known. This guess only limits the number of workers.
        cores = self._cores or len(os.sched_getaffinity(0))
        return self.manager, workers or max(1, self._nodes_max) * cores

    def _opened(self, attempt: Callable[[float], None], patience: Optional[float]) -> None:
        """Calls `attempt` with a patience (seconds), until the executor has its workers or no job can provide workers.

        All calls and pauses together take at most `patience` seconds.
        """
        end = math.inf if patience is None else time.monotonic() + patience
        while True:
            agents = self._manager.agents()
            try:
                return attempt(max(0.0, min(_ATTEMPT_S, end - time.monotonic())))
            except Refused as refused:
                self._check()
                if not refused.may_pass or time.monotonic() >= end:
                    raise
            again = min(end, time.monotonic() + _AGAIN_S)
            while time.monotonic() < again and self._manager.agents() == agents:
                self._check()
                time.sleep(_LOOK_S)


def _job(row: dict[str, Any]) -> Job:
    def at(name: str) -> Optional[float]:
        return None if row[name] is None else row[name] / 1000

    return Job(row["job"], row["state"], row["reason"], row["nodes"], row["submitted_ms"] / 1000, at("running_ms"), at("ended_ms"))


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} is a number from {least} on, not {value!r}", False)
    return value


def _seconds(walltime: Union[str, float, timedelta]) -> int:
    """Returns the seconds of a time limit, which has one of Slurm's forms or of the forms of this package."""
    seconds: float = math.nan
    if isinstance(walltime, timedelta):
        seconds = walltime.total_seconds()
    elif isinstance(walltime, (int, float)) and not isinstance(walltime, bool):
        seconds = walltime
    elif isinstance(walltime, str):
        text = walltime.strip()
        if clock := re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?", text):
            days, first, second, third = clock.groups()
            # As for Slurm: two numbers are minutes and seconds, after days they are hours and minutes.
            if third is None and days is None:
                seconds = 60 * int(first) + int(second)
            else:
                seconds = 86_400 * int(days or 0) + 3600 * int(first) + 60 * int(second) + int(third or 0)
        elif united := re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)", text):
            seconds = float(united[1]) * _UNITS[united[2]]
    if not _MINUTE_S <= seconds < math.inf:
        raise OptionError(
            f'walltime={walltime!r} is not understood, or less than a minute: give "HH:MM:SS", "D-HH:MM:SS", "90min", "2h" or seconds',
            False,
        )
    return math.ceil(seconds)


def _bytes(memory: Union[int, str]) -> int:
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    sized = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", memory.strip().lower()) if isinstance(memory, str) else None
    if sized is None or sized[2] not in _BYTES or float(sized[1]) <= 0:
        raise OptionError(f'memory={memory!r} is not understood: give bytes, or text such as "16GB" or "64GiB"', False)
    return math.ceil(float(sized[1]) * _BYTES[sized[2]])
