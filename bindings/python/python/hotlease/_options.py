"""`hotlease.ExecutorOptions`, and options by name. Imported on first use: `dataclasses` takes longer to import than an executor
needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Optional, TypedDict, Union

from hotlease._executor import _AT_LEAST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hotlease._showing import Part
    from hotlease._slurm import Slurm


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Options of an executor: ``hotlease.Executor(gpus=1)``, or ``hotlease.Executor(options=hotlease.ExecutorOptions(gpus=1))``.

    An object can be used for any number of executors. `dataclasses.replace` makes another one that differs.

    Parameters
    ----------
    idempotent
        Whether tasks may run again after their worker died. A task that two workers died of is not run again. Each run
        gets the arguments as they were submitted; for that, large ones are copied, which they are not for other tasks.
        Default: false.
    retries, memo
        Defaults for all tasks; see `Executor.options`. Default: 0 and false.
    checkpoint
        A file for results of tasks with ``memo``: a result in it is not computed again, by this program or a later one.
        One program at a time writes to it. Default: none.
    max_pending
        Limit of the tasks without a result; over it, `submit` waits. Default: a million.
    queue_bytes
        Limit of the bytes of waiting tasks; over it, `submit` waits. Default: 1 GiB.
    memory
        Limit on the memory of each worker, with the processes that it starts, in bytes. Default: the node's share.
    gpus
        GPUs of each worker. Default: none.
    at_least
        Minimum of the workers. If it equals `max_workers`, the executor gets all workers or none. Default: 1.
    patience
        Seconds to wait until that many workers are free. Default: 10; with a `cluster`, until its jobs run, or are rejected
        or fail.
    cluster
        Nodes of a batch system that run the workers, instead of `manager` and `identity`: a `hotlease.Slurm`. Several
        executors may use it. `max_workers` is then by default the number of its cores. Default: none.
    lends
        Whether other programs get the workers' cores when they find no others and this executor has had no task for a
        second. Its workers then end, with what tasks have left in them; for its next tasks it takes others, runs the
        initializer in them, and waits for room if need be. Not over a fabric, nor with an `at_least` of more than one.
        Default: true.
    progress
        Shows a bar of tqdm: tasks that have ended, of those that were submitted (``pip install hotlease[progress]``).
        Default: false.
    timing
        Whether tasks are timed: `Future.timing` and `Executor.report`. A number: how many of the last tasks the report
        covers (some 150 bytes each); true: 10,000. Default: false.
    output
        Destination of the output and log records of tasks. True, the default: text goes to this program's `sys.stdout`
        and `sys.stderr`, each line with a label (``[simulate worker 3] text``), and log records to the loggers of the
        same names, with attributes ``function`` and ``worker``; both before `result` of the task returns. False: output
        stays in the workers. A callable gets each line (`Line`) and each `logging.LogRecord`, in any thread.
    variables
        More environment variables for workers. Not for secrets: your other processes on the node can read them.
        Default: none.
    mounts
        Directories of the nodes that tasks see in their sandbox, each as ``"PATH[:INSIDE][:rw]"``: read-only, or
        writable with ``:rw``, at the same path or at ``INSIDE``. A site refuses directories that it does not grant.
        Default: none.
    network
        Whether sandboxes have the network of their node. Clients on other hosts need it to reach the workers, and tasks
        may need it.
        Default: false.
    storage
        Object storage that tasks reach, each as ``"s3://BUCKET[/PREFIX][:ro|:rw]"``: read-only, or writable with
        ``:rw``. S3 clients find it, with keys that end with the lease, in their environment (``boto3.client("s3")``
        needs nothing else). A site refuses places that it does not grant. Default: none.
    imports
        Modules that workers import before they run tasks, ``["numpy", "scipy.linalg"]``. If an import fails, there is
        no executor, and the error says why. In a ``namespace`` sandbox the next lease of the program forks its workers
        from an interpreter with these imports: they start in milliseconds, and share its memory until they write to it.
        Random generators of Python and numpy are seeded anew in each; other values from imports are equal in all.
        Default: none.
    state
        Name of the state that tasks leave in the one worker. Functions of `hotlease.state` save it when the lease ends
        or is revoked. The tenant's next executor with this program and name restores it, on any node. A state is used by one
        executor at a time.
        Default: none.
    sandbox
        Kind of isolation of workers: ``"process"``, ``"namespace"``, ``"container"`` or ``"microvm"``. Default: the
        site's choice for this tenant.
    result_classes
        Classes of the program whose objects results may contain if workers are in sandboxes (all kinds but
        ``"process"``), and functions by which such objects are pickled. Everything else in such a result, except plain
        data, arrays and exceptions of Python, makes its task raise `TaskError`. Default: none.
    trust_results
        Whether results from sandboxes may contain anything. Code of the sandbox can then run in this program, with all
        its rights. Default: false.
    polling
        How workers wait for tasks: ``"adaptive"``, ``"hot"`` or ``"warm"``. Default: ``"adaptive"``.
    hot_budget
        Longest time in seconds for which a worker polls after its last task. It is billed as hot time. Default: 0.001.
    ttl
        Seconds for which the lease lives without renewal; the executor renews it. Default: 5; 0.1 to 3600.
    identity
        Identity shown to a manager on another host: the folder that ``hotlease identity issue --role client`` made.
        Default: ``$HOTLEASE_IDENTITY``, else ``~/.config/hotlease/identity``.
    runtime_dir
        Directory of the platform's sockets. Default: ``$HOTLEASE_RUNTIME_DIR``, else ``$XDG_RUNTIME_DIR/hotlease``.
    transport
        How bytes reach the workers: ``"shm"``, the name of a libfabric provider, or ``"ofi"`` for the best one that
        works. Default: ``$HOTLEASE_TRANSPORT``, else ``"shm"`` for workers of this host and ``"ofi"`` for others.
    label
        Shown in listings and refusals; at most 64 bytes. Default: the script (or notebook) and its pid.
    job
        The batch job that pays; at most 64 bytes. Default: ``$HOTLEASE_JOB``, else the job that Slurm, PBS or LSF names.
    """

    idempotent: bool = False
    retries: int = 0
    memo: bool = False
    checkpoint: Union[str, os.PathLike[str], None] = None
    max_pending: Optional[int] = None
    queue_bytes: Optional[int] = None
    memory: Optional[int] = None
    gpus: Optional[int] = None
    at_least: int = _AT_LEAST
    patience: Optional[float] = None
    cluster: Optional[Slurm] = None
    lends: bool = True
    progress: bool = False
    timing: Union[bool, int] = False
    output: Union[bool, Callable[[Part], object]] = True
    variables: Optional[dict[str, str]] = None
    mounts: Sequence[str] = ()
    network: bool = False
    storage: Sequence[str] = ()
    imports: Sequence[str] = ()
    state: Optional[str] = None
    sandbox: Optional[str] = None
    result_classes: Sequence[Any] = ()
    trust_results: bool = False
    polling: Optional[str] = None
    hot_budget: Optional[float] = None
    ttl: Optional[float] = None
    identity: Union[str, os.PathLike[str], None] = None
    runtime_dir: Union[str, os.PathLike[str], None] = None
    transport: Optional[str] = None
    label: Optional[str] = None
    job: Optional[str] = None


class OptionArguments(TypedDict, total=False):
    """Fields of `ExecutorOptions`, as arguments by name."""

    idempotent: bool
    retries: int
    memo: bool
    checkpoint: Union[str, os.PathLike[str], None]
    max_pending: Optional[int]
    queue_bytes: Optional[int]
    memory: Optional[int]
    gpus: Optional[int]
    at_least: int
    patience: Optional[float]
    cluster: Optional[Slurm]
    lends: bool
    progress: bool
    timing: Union[bool, int]
    output: Union[bool, Callable[[Part], object]]
    variables: Optional[dict[str, str]]
    mounts: Sequence[str]
    network: bool
    storage: Sequence[str]
    imports: Sequence[str]
    state: Optional[str]
    sandbox: Optional[str]
    result_classes: Sequence[Any]
    trust_results: bool
    polling: Optional[str]
    hot_budget: Optional[float]
    ttl: Optional[float]
    identity: Union[str, os.PathLike[str], None]
    runtime_dir: Union[str, os.PathLike[str], None]
    transport: Optional[str]
    label: Optional[str]
    job: Optional[str]


def collected(maker: type, options: Optional[ExecutorOptions], named: Mapping[str, Any]) -> ExecutorOptions:
    """Returns `options`, with the options that an executor or gang got by name set in it.

    Raises
    ------
    TypeError
        If there is no option of a name, or if `options` sets it, too: its value there is not the default.
    """
    options = options or ExecutorOptions()
    defaults = {field.name: field.default for field in fields(ExecutorOptions)}
    for name in named:
        if name not in defaults:
            raise _unknown(maker, name, list(defaults))
        if getattr(options, name) != defaults[name]:
            raise TypeError(f"{_public(maker)} got the option {name} twice: by name, and in options=")
    return replace(options, **named)


def _unknown(maker: type, name: str, options: list[str]) -> TypeError:
    if name == "shared":
        return TypeError(
            "shared: Python workers have cores of their own; ask for fewer workers (max_workers=), or call native functions on "
            "shared cores (hotlease run --shared, LeaseOptions::sharing, `shared` in C and C++)"
        )
    import difflib
    import inspect

    parameters = [each for each in inspect.signature(maker).parameters.values() if each.kind != inspect.Parameter.VAR_KEYWORD]
    near = difflib.get_close_matches(name, [*(each.name for each in parameters), *options], 1)
    meant = f"did you mean {near[0]!r}?" if near else "help(hotlease.ExecutorOptions) lists them"
    return TypeError(f"{_public(maker)} has no option {name!r}: {meant}")


def _public(maker: type) -> str:
    return next(each.__name__ for each in maker.__mro__ if not each.__name__.startswith("_"))
