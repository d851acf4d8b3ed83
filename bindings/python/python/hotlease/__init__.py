"""Function calls on leased cores, with microseconds of overhead.

>>> import hotlease
>>> with hotlease.Executor() as executor:
...     print(list(executor.map(abs, [-1, 2, -3])))
[1, 2, 3]
"""

from hotlease._core import Error, __version__, cancelled, deadline

# Set by type checkers. It is not imported from `typing`, whose import takes as long as all other imports here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from hotlease._executor import Executor, Future
    from hotlease._functions import Function, function
    from hotlease._gang import Gang, Spmd, spmd
    from hotlease._memory import RemoteArray, RemoteMemory
    from hotlease._native import NativeFunction, native
    from hotlease._options import ExecutorOptions
    from hotlease._seat import communicator
    from hotlease._showing import Line
    from hotlease._slurm import Slurm
    from hotlease._state import state
    from hotlease.errors import (
        ClusterError,
        DeadlineExceeded,
        DependencyError,
        ExecutorBroken,
        FunctionFailed,
        JobEnded,
        JobRejected,
        LeaseEnded,
        MemoryLost,
        NotRunning,
        OptionError,
        OutcomeUnknown,
        OutputTooLarge,
        OverheadWarning,
        Refused,
        TaskError,
        WorkerDied,
    )

__all__ = [
    "ClusterError",
    "DeadlineExceeded",
    "DependencyError",
    "Error",
    "Executor",
    "ExecutorBroken",
    "ExecutorOptions",
    "Function",
    "FunctionFailed",
    "Future",
    "Gang",
    "JobEnded",
    "JobRejected",
    "LeaseEnded",
    "Line",
    "MemoryLost",
    "NativeFunction",
    "NotRunning",
    "OptionError",
    "OutcomeUnknown",
    "OutputTooLarge",
    "OverheadWarning",
    "Refused",
    "RemoteArray",
    "RemoteMemory",
    "Slurm",
    "Spmd",
    "TaskError",
    "WorkerDied",
    "__version__",
    "cancelled",
    "communicator",
    "deadline",
    "function",
    "native",
    "spmd",
    "state",
]

# Modules that are imported on first use: their imports take several times as long as the rest, and no worker needs them.
_ELSEWHERE = {
    "Executor": "hotlease._executor",
    "ExecutorOptions": "hotlease._options",
    "Future": "hotlease._executor",
    "Function": "hotlease._functions",
    "Line": "hotlease._showing",
    "function": "hotlease._functions",
    "NativeFunction": "hotlease._native",
    "native": "hotlease._native",
    "Gang": "hotlease._gang",
    "Spmd": "hotlease._gang",
    "RemoteArray": "hotlease._memory",
    "RemoteMemory": "hotlease._memory",
    "Slurm": "hotlease._slurm",
    "spmd": "hotlease._gang",
    "state": "hotlease._state",
    "communicator": "hotlease._seat",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not by `importlib`, a package that nothing else here needs.
    value = getattr(__import__(_ELSEWHERE.get(name, "hotlease.errors"), fromlist=(name,)), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
