"""Functions of apps, in the form in which they are sent to workers. Workers import this module, too."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Optional

from parsl.app import errors
from parsl.app.errors import RemoteExceptionWrapper
from parsl.app.python import timeout

from hotlease import _by_value, _core
from hotlease._outcomes import is_of_signal
from hotlease.errors import TaskError


# Exceptions of Parsl that an app raises. A program accepts them from a sandbox, because they hold only texts and numbers.
RAISED = (
    errors.AppBadFormatting,
    errors.AppException,
    errors.AppTimeout,
    errors.BadStdStreamFile,
    errors.BashAppNoReturn,
    errors.BashExitFailure,
)


def raising(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls an app's function. If it returns an exception in Parsl's wrapper, raises the exception: a program does not accept
    the wrapper from a sandbox."""
    result = function(*args, **kwargs)
    if isinstance(result, RemoteExceptionWrapper):
        raise _raised(result)
    return result


class App:
    """Wrapper of an app's function (as Parsl's decorators made it). The function is pickled once, at its first call.

    Parsl's own wrapper returns exceptions. This one raises them, so that dependent tasks are not run.
    """

    # Declares no options for the app's tasks. With this attribute an app is sent as a function, not as an argument.
    _hotlease_declared = (None, None, None, None)

    def __init__(self, function: Callable[..., Any], pickled: Optional[bytes] = None, is_timed: bool = False) -> None:
        self.__qualname__ = getattr(function, "__name__", "app")
        # Kept alive, so that no other function gets its address while the kernel remembers the app.
        self.function = function
        self.is_timed = is_timed
        self._pickled = pickled if pickled is not None else _by_value.dumps(function, of_function=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = timeout(self.function, kwargs["walltime"]) if self.is_timed else self.function
        return raising(function, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self._pickled, self.is_timed)


def _loaded(pickled: bytes, is_timed: bool) -> App:
    return App(pickle.loads(pickled), pickled, is_timed)


class AppRaised(Exception):
    """Carries an app's exception, with its traceback and its causes, to the program."""

    def __init__(self, pickled: bytes, text: str) -> None:
        super().__init__(pickled, text)
        self.pickled = pickled
        self.text = text

    def __str__(self) -> str:
        return self.text

    def unpacked(self) -> BaseException:
        """Returns the exception as it was raised."""
        try:
            return pickle.loads(self.pickled).get_exception()  # type: ignore[no-any-return,unused-ignore]
        except BaseException as error:
            if is_of_signal(error):
                raise
            why = f"it does not unpickle here: {type(error).__name__}: {error}"
            return TaskError(f"the app raised {self.text} ({why})", True)


def _raised(wrapped: RemoteExceptionWrapper) -> BaseException:
    error: BaseException = wrapped.e_value
    if _core._is_guarded():
        return error
    try:
        pickled = _by_value.dumps(wrapped, is_current=False)
    except Exception:
        # The wrapper does not pickle: only the text of the exception is sent to the program.
        return error
    carrier = AppRaised(pickled, f"{type(error).__name__}: {error}")
    carrier.__cause__ = error
    return carrier
