"""Function calls on leased cores, with microseconds of overhead.

>>> import hotlease
>>> with hotlease.Executor() as executor:
...     print(list(executor.map(abs, [-1, 2, -3])))
[1, 2, 3]
"""

from hotlease._core import Error, __version__, cancelled, deadline
from hotlease._executor import Executor, Future
from hotlease._functions import Function, function
from hotlease.errors import (
    DeadlineExceeded,
    ExecutorBroken,
    LeaseEnded,
    NotRunning,
    OptionError,
    OutcomeUnknown,
    Refused,
    TaskError,
    WorkerDied,
)

__all__ = [
    "DeadlineExceeded",
    "Error",
    "Executor",
    "ExecutorBroken",
    "Function",
    "Future",
    "LeaseEnded",
    "NotRunning",
    "OptionError",
    "OutcomeUnknown",
    "Refused",
    "TaskError",
    "WorkerDied",
    "__version__",
    "cancelled",
    "deadline",
    "function",
]
