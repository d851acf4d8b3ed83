"""Everything that the extension module calls by its name."""

from concurrent.futures import CancelledError, TimeoutError
from threading import RLock as condition

from hotlease._outcomes import call_back, dependency_error, failure, hint, not_sent, remote_exception
from hotlease._pickles import content, describe, dump_arguments, load_result
from hotlease._remote import call, prepare, result, value
from hotlease.errors import ExecutorBroken, OptionError, TaskError

__all__ = [
    "CancelledError",
    "ExecutorBroken",
    "OptionError",
    "TaskError",
    "TimeoutError",
    "call",
    "call_back",
    "condition",
    "content",
    "dependency_error",
    "describe",
    "dump_arguments",
    "failure",
    "hint",
    "load_result",
    "not_sent",
    "prepare",
    "remote_exception",
    "result",
    "value",
]
