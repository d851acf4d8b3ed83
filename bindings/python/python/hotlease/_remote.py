"""Functions that run in workers, which know them by name."""

from __future__ import annotations

import os
import sys

from hotlease import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function that came with the arguments."""
    return function(*args, **kwargs)


def chunk(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[Any]:
    """Calls the function with each of these arguments."""
    return [function(*args) for args in calls]


def result(number: int) -> Any:
    """Returns the result of another task that came with the same arguments."""
    return _core._result(number)


def value(of: Any) -> Any:
    """Returns the value that a future had when it became an argument."""
    return of


def prepare(function: Callable[..., Any], /, *args: Any) -> None:
    """Calls an initializer, and drops its result."""
    function(*args)


class Preparation:
    """Calls functions in the program's folder, after an initializer that runs once in each worker. It serves libraries
    that give an initializer with a call, when the workers exist already. It is sent as the function of tasks, so that
    each worker gets it once.
    """

    # It declares no options for its tasks.
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


# The program's folder.
_folder: Optional[str] = None
# Pickle of the last initializer that has run here.
_initializer: Optional[bytes] = None
# Initializers that have arrived, with their arguments, by their pickle.
_initializers: dict[bytes, tuple[Callable[..., object], tuple[Any, ...]]] = {}


def _arrived(folder: Optional[str], initializer: Optional[bytes]) -> Preparation:
    if initializer is not None and initializer not in _initializers:
        import pickle

        # Unpickled now, before the arguments of a task: their definitions of the program's functions and globals are
        # newer, and must replace those of the initializer.
        _initializers[initializer] = pickle.loads(initializer)
    return Preparation(folder, initializer)
