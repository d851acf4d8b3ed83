"""`hotlease.native`: functions of shared libraries, called on arrays."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, Optional, Union

from hotlease import _core
from hotlease._executor import Executor
from hotlease._functions import Function
from hotlease._native_results import Shape, like, named, sized

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hotlease._pickles import Declared

Output = Union[Shape, Callable[[Any], Shape], None]


class NativeFunction(_core.Native, Function[[Any], Any]):
    """A function of a shared library, which workers call without Python. Made by `native`.

    Takes one argument: an array, another object with contiguous memory, or a future of such an object. It is submitted
    like every other function. Threads may share it.
    """

    # Arguments of `_make` for this function, apart from the library's bytes.
    _made: tuple[str, str, Output, Any]

    def __init__(self, *_: Any) -> None:
        # `_make` initialises the object; __new__ makes the base.
        pass

    def __call__(self, value: Any = b"", /) -> Any:
        return self.local(value)

    def local(self, value: Any = b"", /) -> Any:
        """Runs the function in this process, which dies if the function crashes; deadlines do not apply."""
        import pickle

        result, recipe = self._call(value)
        return pickle.loads(recipe, buffers=[result])

    def _output_of(self, value: Any) -> tuple[int, bytes]:
        """Returns size (bytes) and recipe of the result for an argument with contiguous memory."""
        _, _, output, dtype = self._made
        if output is None:
            return like(value, dtype)
        return sized(output(value) if callable(output) else output, dtype)

    def __repr__(self) -> str:
        library, name, _, _ = self._made
        return f"<hotlease.NativeFunction {name} of {library}>"

    def __reduce__(self) -> Union[str, tuple[Any, ...]]:
        # Sent by value: on the receiving host the file may differ, or be missing.
        return _make, (self._made, self._bytes(), self._hotlease_declared, None)


def _make(
    made: tuple[str, str, Output, Any],
    code: Optional[bytes],
    declared: Declared,
    executor: Optional[Executor],
) -> NativeFunction:
    library, name, output, dtype = made
    fixed: Optional[tuple[Optional[int], bytes]] = None
    if output is None:
        import pickle

        fixed = None, pickle.dumps(dtype, 5)
    elif not callable(output):
        fixed = sized(output, dtype)
    function = NativeFunction(library, name, code, fixed)
    function.__name__ = function.__qualname__ = name
    function._made = made
    function._executor = executor
    idempotent = True if declared[0] is None and function._is_idempotent else declared[0]
    function._hotlease_declared = (idempotent, *declared[1:])
    return function


def native(
    library: Union[str, os.PathLike[str]],
    name: str,
    *,
    output: Output = None,
    dtype: Any = None,
    executor: Optional[Executor] = None,
    idempotent: Optional[bool] = None,
    retries: Optional[int] = None,
    priority: Optional[int] = None,
    memo: Union[bool, str, None] = None,
) -> NativeFunction:
    """Makes a function of a shared library, in C, C++, Fortran or Rust, that is called on arrays in workers.

    The library is read now. Its functions may have either interface of ``hotlease/function.h`` (docs/functions.md).
    Each worker gets the library once. The function reads the array's bytes in place, and writes its result into memory
    that the program reads; nothing is pickled.

    Parameters
    ----------
    library
        Path of the file.
    name
        The function's symbol.
    output
        Size of results. Default: as many items as the argument has, in the argument's shape. A number: largest number
        of items of `dtype` (without `dtype`: of bytes) in an array of one dimension; the function returns the length.
        A tuple: an array of exactly this shape. A callable: gets the argument and returns such a number or tuple.
    dtype
        Type of the results, which are then numpy arrays. Default: the argument's dtype, if the argument is a numpy
        array; else results are memoryviews.
    executor
        Executor of the function's `submit` and `map`. Default: one executor of the program, made when it is first needed.
    idempotent
        Whether the function's tasks may run again after their worker died. Default: as the library declares
        (``HOTLEASE_IDEMPOTENT``), else as the executor does.
    retries, priority, memo
        Options of the function's tasks, as for `Executor.options`.

    Raises
    ------
    OSError
        If the file cannot be read; a relative path is looked up in the current directory.
    hotlease.OptionError
        If the file is no function library, or has no function of that name.

    The function's tasks raise `FunctionFailed` if it returns an error number, `OutputTooLarge` if its result is larger
    than declared, and `TypeError` for arguments whose memory is not contiguous, or contains references to objects.

    Examples
    --------
    >>> scale = hotlease.native("libscale.so", "scale")
    >>> scale.submit(numpy.arange(3.0)).result()
    array([0., 2., 4.])
    """
    # Raises an error for wrong values now, and not at the first task.
    _core.TaskOptions(retries=retries, priority=priority, memo=memo)
    if not os.path.exists(library):
        raise FileNotFoundError(errno.ENOENT, "no such library", os.path.abspath(library))
    made = (os.fspath(library), name, output, named(dtype))
    return _make(made, None, (idempotent, retries, priority, memo), executor)
