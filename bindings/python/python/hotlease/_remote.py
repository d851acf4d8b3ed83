"""Functions that run in workers, and are sent by name."""

from __future__ import annotations

import os
import sys

from hotlease import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function that was sent as an argument."""
    return function(*args, **kwargs)


def chunk(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[Any]:
    """Calls the function once with each tuple of arguments; returns the results."""
    return [function(*args) for args in calls]


def result(number: int) -> Any:
    """Returns the result of another task, which was sent with the arguments of this task."""
    return _core._result(number)


def value(of: Any) -> Any:
    """Returns the value that a future had when it became an argument."""
    return of


def prepare(function: Callable[..., Any], /, *args: Any) -> None:
    """Calls an initializer, and drops its result."""
    function(*args)


class Preparation:
    """Calls functions in the program's folder, after an initializer that runs once in each worker. It is for libraries
    that pass an initializer with a call, when the workers exist already. A preparation is sent as the function of tasks,
    so that each worker gets it once.
    """

    # Declares no options for its tasks. With this attribute it is sent as a function, not as an argument.
    _hotlease_declared = (None, None, None, None)

    def __init__(self, folder: Optional[str], initializer: Optional[bytes]) -> None:
        self.folder = folder
        # Pickle of the initializer and its arguments.
        self.initializer = initializer

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> Any:
        global _folder, _initializer
        if self.folder is not None and self.folder != _folder:
            _folder = self.folder
            try:
                os.chdir(self.folder)
            except OSError:
                # The worker is in a sandbox or on another host, and stays where it is.
                pass
        if self.initializer is not None and self.initializer != _initializer:
            initializer, initargs = _initializers[self.initializer]
            try:
                initializer(*initargs)
            except BaseException as error:
                if sys.version_info >= (3, 11):
                    error.add_note("hotlease: raised by the initializer; the task did not run")
                raise
            _initializer = self.initializer
        return function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.folder, self.initializer)


# The program's folder that this worker entered last.
_folder: Optional[str] = None
# Pickle of the last initializer that has run here.
_initializer: Optional[bytes] = None
# Initializers that have arrived, with their arguments, by their pickle.
_initializers: dict[bytes, tuple[Callable[..., object], tuple[Any, ...]]] = {}


def _arrived(folder: Optional[str], initializer: Optional[bytes]) -> Preparation:
    if initializer is not None and initializer not in _initializers:
        import pickle

        # Unpickled now, before the arguments of a task: definitions of functions and globals in the arguments are newer,
        # and must replace the definitions in the initializer.
        _initializers[initializer] = pickle.loads(initializer)
    return Preparation(folder, initializer)
