"""Future of an app's call: it is a future of hotlease and also a future of Parsl."""

from __future__ import annotations

import weakref
from concurrent.futures import CancelledError, Future as AnyFuture
from typing import TYPE_CHECKING, Any, Optional

from parsl.app.futures import DataFuture
from parsl.dataflow.errors import DependencyError
from parsl.dataflow.futures import AppFuture as ParslFuture
from parsl.dataflow.states import States
from parsl.serialize.errors import SerializationError

from hotlease import errors
from hotlease._executor import Future
from hotlease._outcomes import was_not_sent
from hotlease.parsl.apps import AppRaised

if TYPE_CHECKING:
    from hotlease.parsl.kernel import Kernel

_NO_STREAMS: dict[str, Any] = {}
_Reference = weakref.ReferenceType[AnyFuture[Any]]


class Call:
    """Data of an app's call in addition to its future; small, because there may be millions of calls."""

    __slots__ = ("kernel", "number", "name", "needs", "streams")

    def __init__(self, kernel: Kernel, number: int, name: str, needs: Optional[list[_Reference]]) -> None:
        self.kernel = kernel
        self.number = number
        self.name = name
        # Weak references: otherwise the last call of a chain of millions would keep the futures of all calls alive.
        self.needs = needs
        self.streams = _NO_STREAMS


class AppFuture(Future[Any], ParslFuture):  # type: ignore[misc,unused-ignore]
    """The result of an app, once the app has ended. It raises Parsl's exceptions. Unlike Parsl's own futures, it can be
    cancelled until its task is sent to a worker."""

    # `None` if Parsl's own kernel submitted the task: the program then has a future of Parsl's kernel for it.
    _call: Optional[Call] = None
    _error: Optional[BaseException] = None
    _outputs: list[DataFuture] = []
    _stdout_future: Optional[DataFuture] = None
    _stderr_future: Optional[DataFuture] = None

    def result(self, timeout: Optional[float] = None) -> Any:
        """Waits for the result, and returns it or raises the app's exception."""
        try:
            return super().result(timeout)
        except Exception:
            if self._call is None or not self.done() or super().cancelled():
                raise
        error = self.exception()
        if error is None:
            return super().result()
        try:
            raise error
        finally:
            # Breaks a cycle: the error has a traceback, which refers to this frame.
            del error

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        """Waits until the app has ended; returns its exception, or None if it raised none."""
        error = super().exception(timeout)
        if error is None or self._call is None:
            return error
        if self._error is None:
            self._error = _as_parsl_has_it(error, self._call)
        return self._error

    @property
    def _exception(self) -> Optional[BaseException]:  # type: ignore[override,unused-ignore]
        # Parsl's futures of files read this attribute, and have no case for cancelled futures.
        if super().cancelled():
            return CancelledError()
        return self.exception() if self.done() else None

    @property
    def task_record(self) -> dict[str, Any]:  # type: ignore[override,unused-ignore]
        """Parsl's record of the task, with the fields that are known here."""
        call = self._call
        if call is None:
            raise AttributeError("task_record")
        return {
            "id": call.number,
            "dfk": call.kernel,
            "func_name": call.name,
            "executor": call.kernel.label,
            "app_fu": self,
            "status": self._status(),
            "kwargs": dict(call.streams),
            "join": False,
            "memoize": False,
            "from_memo": False,
        }

    def _status(self) -> States:
        if not self.done():
            return States.launched if self.running() else States.pending
        if super().cancelled():
            return States.failed
        error = self.exception()
        if error is None:
            return States.exec_done
        return States.dep_fail if isinstance(error, DependencyError) else States.failed

    def __getattr__(self, name: str) -> Any:
        if self._call is None:
            raise AttributeError(name)
        return super().__getattr__(name)


def not_serialized(name: str, error: BaseException) -> SerializationError:
    """Returns Parsl's exception for a task whose arguments do not pickle; `error` is the reason."""
    made = SerializationError(name)
    made.__cause__ = error
    return made


def _as_parsl_has_it(error: BaseException, call: Call) -> BaseException:
    if was_not_sent(error):
        return not_serialized(call.name, error)
    if isinstance(error, AppRaised):
        return error.unpacked()
    if isinstance(error, errors.DependencyError):
        return DependencyError(_failed(error, call), call.number)
    return error


def _failed(error: errors.DependencyError, call: Call) -> list[tuple[BaseException, str]]:
    """Returns the exceptions of the failed tasks that a call needs, with Parsl's names for these tasks."""
    found: list[tuple[BaseException, str]] = []
    for reference in call.needs or ():
        needed = reference()
        if needed is None or not needed.done():
            continue
        try:
            exception = needed.exception()
        except CancelledError as cancelled:
            exception = cancelled
        if exception is not None:
            found.append((exception, call.kernel.render_future_description(needed)))
    if not found:
        # The program has dropped the futures of these tasks, but the error contains the names of their functions.
        cause = error.__cause__
        cause = cause.unpacked() if isinstance(cause, AppRaised) else cause
        between = ["..."] if error.left_out else []
        found.append((cause or error, " <- ".join([*error.chain[1:-1], *between, *error.chain[-1:]])))
    return found
