"""`hotlease.function`: functions with a `submit` method."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Optional, ParamSpec, TypeVar, Union, overload

from hotlease import _core, _kept
from hotlease._executor import Executor, Future

P = ParamSpec("P")
R = TypeVar("R")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hotlease._pickles import Declared


class Function(Generic[P, R]):
    """A function that can be called locally, and submitted. Made by `function`.

    A call, and `local`, run it in this process; `submit` and `map` run it in a worker.
    """

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, R]

    def __init__(self, wrapped: Callable[P, R], executor: Optional[Executor], declared: Declared) -> None:
        self._executor = executor
        self._hotlease_declared = declared
        functools.update_wrapper(self, wrapped)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(*args, **kwargs)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function in this process."""
        return self.__wrapped__(*args, **kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Runs the function in a worker."""
        return self._used().submit(self, *args, **kwargs)

    def map(
        self,
        *iterables: Iterable[Any],
        timeout: Optional[float] = None,
        chunksize: int = 1,
        buffersize: Optional[int] = None,
        progress: bool = False,
    ) -> Iterator[R]:
        """Runs the function in workers on each of the arguments; returns results in order. See `Executor.map`."""
        return self._used().map(
            self, *iterables, timeout=timeout, chunksize=chunksize, buffersize=buffersize, progress=progress
        )

    def options(
        self,
        *,
        retries: Optional[int] = None,
        priority: Optional[int] = None,
        memo: Union[bool, str, None] = None,
        idempotent: Optional[bool] = None,
    ) -> BoundOptions[P, R]:
        """Returns the function with other options for its tasks; see `Executor.options`."""
        asking = _core.TaskOptions(retries=retries, priority=priority, memo=memo, idempotent=idempotent)
        return BoundOptions(self, asking)

    def _used(self) -> Executor:
        return _kept.executor() if self._executor is None else self._executor

    def __repr__(self) -> str:
        return f"<hotlease.function {self.__module__}.{self.__qualname__}>"

    def __reduce__(self) -> Union[str, tuple[Any, ...]]:
        found: Any = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is self and self.__module__ != "__main__":
            return str(self.__qualname__)
        return Function, (self.__wrapped__, None, self._hotlease_declared)


class BoundOptions(Generic[P, R]):
    """A function with other options for its tasks. Made by `Function.options`."""

    def __init__(self, of: Function[P, R], asking: _core.TaskOptions) -> None:
        self._of = of
        self._asking = asking

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Runs the function in a worker."""
        future: Future[R] = self._of._used()._submit_as(self._asking, self._of, *args, **kwargs)
        return future


@overload
def function(wrapped: Callable[P, R], /) -> Function[P, R]: ...


@overload
def function(
    *,
    executor: Optional[Executor] = None,
    idempotent: bool = False,
    retries: Optional[int] = None,
    priority: Optional[int] = None,
    memo: Union[bool, str, None] = None,
) -> Callable[[Callable[P, R]], Function[P, R]]: ...


def function(
    wrapped: Optional[Callable[P, R]] = None,
    /,
    *,
    executor: Optional[Executor] = None,
    idempotent: bool = False,
    retries: Optional[int] = None,
    priority: Optional[int] = None,
    memo: Union[bool, str, None] = None,
) -> Union[Function[P, R], Callable[[Callable[P, R]], Function[P, R]]]:
    """Makes a function that can be submitted.

    Parameters
    ----------
    executor
        Executor for the function's tasks. Default: one executor of the program, made when it is first needed.
    idempotent
        Whether the function's tasks may run again after their worker died.
    retries, priority, memo
        Options of the function's tasks, as for `Executor.options`.

    Examples
    --------
    >>> @hotlease.function
    ... def area(radius: float) -> float:
    ...     return 3.14159 * radius * radius
    >>> area.submit(2.0).result()
    12.56636
    """
    declared = (idempotent, retries, priority, memo)
    # Raises an error for wrong values at the decorator, and not at the first task.
    _core.TaskOptions(retries=retries, priority=priority, memo=memo)
    if wrapped is not None:
        return Function(wrapped, executor, declared)
    return lambda later: Function(later, executor, declared)
