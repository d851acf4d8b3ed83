"""Options of single tasks: `hotlease.Executor.options`."""

from __future__ import annotations

from hotlease import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from hotlease._executor import Executor, Future

    T = TypeVar("T")


class Options:
    """An executor with other options for its tasks. Made by `Executor.options`."""

    def __init__(self, executor: Executor, asking: _core.TaskOptions) -> None:
        self._executor = executor
        self._asking = asking

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Submits a task like `Executor.submit`."""
        future: Future[T] = self._executor._submit_as(self._asking, fn, *args, **kwargs)
        return future
