"""`hotlease.ExecutorOptions`, and options by name. Imported on first use: importing `dataclasses` takes longer than making an
executor."""

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

    An object can be used for any number of executors. `dataclasses.replace` makes a changed copy.

    Parameters
    ----------
    idempotent
        Whether tasks may run again after their worker died. A task is not run again after two workers died during it. Each
        run gets the arguments as they were submitted; for this purpose large arguments are copied, unlike for other tasks.
        Default: false.
    retries, memo
        Defaults for all tasks; see `Executor.options`. Default: 0 and false.
    checkpoint
        File for results of tasks with ``memo``: neither this program nor a later program computes a result in the file
        again. Only one program at a time can use the file. Default: none.
    max_pending
        Largest number of tasks without a result; at this limit `submit` waits. Default: a million.
    queue_bytes
        Largest size of waiting tasks in bytes; at this limit `submit` waits. Default: 1 GiB.
    memory
        Limit on the memory of each worker, with the processes that it starts, in bytes. Default: its share of the node.
    gpus
        GPUs of each worker. Default: none.
    at_least
        Minimum number of workers. If it equals `max_workers`, the executor gets all workers or none. Default: 1.
    patience
        Seconds to wait until `at_least` workers are free. Default: 10; with a `cluster`, the wait ends when its jobs run,
        fail or are rejected.
    cluster
        Nodes of a batch system that run the workers: a `hotlease.Slurm`, instead of `manager` and `identity`. Several
        executors may use it. With a cluster, `max_workers` is by default the number of its cores. Default: none.
    lends
        Whether other programs get the workers' cores, if they find no other cores and this executor has had no task for a
        second. The workers then end, and data that tasks left in them is lost. For its next tasks the executor waits for
        free cores if necessary, takes new workers, and runs the initializer in them. Has no effect over a fabric, or if
        `at_least` is more than one. Default: true.
    progress
        Whether to show a bar of tqdm: the ended tasks out of all submitted tasks (``pip install hotlease[progress]``).
        Default: false.
    timing
        Whether tasks are timed: `Future.timing` and `Executor.report`. A number: how many of the last tasks the report
        covers (some 150 bytes each); true: 10,000. Default: false.
    output
        Destination of the output and log records of tasks. True, the default: text is written to this program's
        `sys.stdout` and `sys.stderr`, each line with a label (``[simulate worker 3] text``). Log records are passed to the
        loggers of the same names, with attributes ``function`` and ``worker``. Both are done before `result` of the task
        returns. False: output stays in the workers. A callable: gets each line (`Line`) and each `logging.LogRecord`, in
        any thread.
    variables
        More environment variables for workers. Do not put secrets here: your other processes on the node can read them.
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
        ``:rw``. S3 clients find the storage in their environment, with keys that are valid until the lease ends
        (``boto3.client("s3")`` needs nothing else). A site refuses storage that it does not grant. Default: none.
    imports
        Modules that workers import before they run tasks, ``["numpy", "scipy.linalg"]``. If an import fails, the executor
        is not made, and the error says why. In a ``namespace`` sandbox, workers of the program's next lease are forked
        from an interpreter with these imports: they start in milliseconds, and share its memory until they write to it.
        Random generators of Python and numpy are seeded anew in each worker; other values that imports have made are equal
        in all workers. Default: none.
    state
        Name of the state that tasks leave in the only worker. Functions of `hotlease.state` save it when the lease ends
        or is revoked. The tenant's next executor with this program and name restores it, on any node. A state is used by one
        executor at a time.
        Default: none.
    sandbox
        Kind of isolation of workers: ``"process"``, ``"namespace"``, ``"container"`` or ``"microvm"``. Default: the
        site's choice for this tenant.
    result_classes
        For workers in sandboxes (all kinds but ``"process"``): classes of the program whose objects results may contain,
        and functions by which these objects are pickled. A result that contains anything else, except plain data, arrays
        and exceptions of Python, makes its task raise `TaskError`. Default: none.
    trust_results
        Whether results from sandboxes may contain anything. If true, code of the sandbox can run in this program, with all
        rights of the program. Default: false.
    polling
        How workers wait for tasks: ``"adaptive"``, ``"hot"`` or ``"warm"``. Default: ``"adaptive"``.
    hot_budget
        Longest time in seconds for which a worker polls after a task. This time is billed as hot time. Default: 0.001.
    ttl
        Seconds after which the lease expires without renewal, from 0.1 to 3600; the executor renews it. Default: 5.
    identity
        Folder of the identity for a manager on another host, as ``hotlease identity issue --role client`` makes it.
        Default: ``$HOTLEASE_IDENTITY``, else ``~/.config/hotlease/identity``.
    runtime_dir
        Directory of the platform's sockets. Default: ``$HOTLEASE_RUNTIME_DIR``, else ``$XDG_RUNTIME_DIR/hotlease``.
    transport
        How bytes reach the workers: ``"shm"``, the name of a libfabric provider, or ``"ofi"`` for the best one that
        works. Default: ``$HOTLEASE_TRANSPORT``, else ``"shm"`` for workers of this host and ``"ofi"`` for other workers.
    label
        Name of the lease in listings and refusals; at most 64 bytes. Default: the script (or notebook) and its pid.
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
    """Returns a copy of `options` in which the options that an executor or gang got by name are set.

    Raises
    ------
    TypeError
        If a name is not the name of an option, or if `options` also sets this option to a value other than its default.
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
