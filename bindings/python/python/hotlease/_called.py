"""Everything that the extension module calls by its name."""

from concurrent.futures import CancelledError, TimeoutError
from threading import RLock as condition

from hotlease._outcomes import call_back, failure, not_sent, remote_exception
from hotlease._pickles import describe, dump_arguments, load_result
from hotlease._remote import call, prepare
from hotlease.errors import ExecutorBroken, TaskError

__all__ = [
    "CancelledError",
    "ExecutorBroken",
    "TaskError",
    "TimeoutError",
    "call",
    "call_back",
    "condition",
    "describe",
    "dump_arguments",
    "failure",
    "load_result",
    "not_sent",
    "prepare",
    "remote_exception",
]
