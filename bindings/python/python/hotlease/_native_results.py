"""Results of native functions as objects. They are made where a result is read: in the program, or in a worker whose task
needs it."""

from __future__ import annotations

import functools
import math
import sys
from typing import Any, Optional, Union

from hotlease._names import counted

# numpy and pickle are imported at the first array, because a program that declares a function may use neither.
Shape = Union[int, tuple[int, ...]]


class _Result:
    """Object whose pickle is a call of `value` with the one buffer that is sent beside the pickle."""

    def __init__(self, *how: Any) -> None:
        self._how = how

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The buffer is writable, because only the caller has the result.
        import pickle

        return value, (pickle.PickleBuffer(bytearray()), *self._how)


@functools.lru_cache(maxsize=256)
def recipe(dtype: Any, shape: Optional[tuple[int, ...]], order: str) -> bytes:
    """Returns the pickle of a result without its bytes. If `shape` is `None`, the result has one dimension, and the length
    that the function returned."""
    import pickle

    if dtype is not None:
        import numpy

        from hotlease._guarded import arrays

        # A dtype's own pickle contains names that the program refuses in results from a sandbox.
        dtype = arrays.described(numpy.dtype(dtype)) or dtype
    return pickle.dumps(_Result(dtype, shape, order), 5, buffer_callback=lambda buffer: None)


def value(buffer: Any, dtype: Any, shape: Optional[tuple[int, ...]], order: Any) -> Any:
    """Makes the result from the bytes of `buffer`."""
    view = memoryview(buffer)
    if dtype is None:
        return view
    import numpy

    from hotlease._guarded import arrays

    dtype = arrays.made_dtype(dtype) if isinstance(dtype, (str, tuple)) else numpy.dtype(dtype)
    if shape is None:
        if view.nbytes % dtype.itemsize:
            raise _unlike(f"{counted(view.nbytes, 'byte')}, which is no whole number of {dtype} (each of {dtype.itemsize})")
        shape = (view.nbytes // dtype.itemsize,)
    elif view.nbytes != math.prod(shape) * dtype.itemsize:
        whole = math.prod(shape) * dtype.itemsize
        raise _unlike(f"{counted(view.nbytes, 'byte')}, and an array of {dtype} in the shape {shape} has {whole}")
    return numpy.ndarray(shape, dtype, view, order=order)


def _unlike(what: str) -> BaseException:
    from hotlease.errors import TaskError

    return TaskError(f"the function gave {what}: declare what it gives with output= and dtype=", True)


def named(dtype: Any) -> Any:
    """Returns a dtype in the form that is sent: its type string, if this describes it fully, else the dtype itself."""
    if dtype is None:
        return None
    import numpy

    dtype = numpy.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"a native function cannot make objects: dtype {dtype}")
    if dtype.itemsize == 0:
        raise TypeError(f"dtype {dtype} has no size: say how long its items are, like 'S8'")
    return dtype.str if numpy.dtype(dtype.str) == dtype else dtype


def like(given: Any, dtype: Any) -> tuple[int, bytes]:
    """Returns size (bytes) and recipe of a result with as many items as the input. It has the input's shape, and the
    input's dtype unless `dtype` is given."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(given, (numpy.ndarray, numpy.generic)):
        # The items of an input without shape and dtype are bytes.
        return memoryview(given).nbytes, recipe(dtype, None, "C")
    # Runs at each call, so as much as possible is cached.
    if given.ndim == 1:
        shape, order = None, "C"
    else:
        shape, order = given.shape, "C" if given.flags.c_contiguous else "F"
    item, made = _items_like(given.dtype if dtype is None else dtype, shape, order)
    return given.size * item, made


@functools.lru_cache(maxsize=256)
def _items_like(dtype: Any, shape: Optional[tuple[int, ...]], order: str) -> tuple[int, bytes]:
    import numpy

    return numpy.dtype(dtype).itemsize, recipe(named(dtype), shape, order)


def sized(shape: Shape, dtype: Any) -> tuple[int, bytes]:
    """Returns size (bytes) and recipe of a declared result. `shape` is the largest number of items, or the exact shape."""
    if isinstance(shape, tuple):
        if dtype is None:
            raise TypeError(f"output={shape!r} is the shape of an array, which needs a dtype")
        exact: Optional[tuple[int, ...]] = tuple(_count(length) for length in shape)
        count = math.prod(exact or ())
    else:
        exact, count = None, _count(shape)
    if dtype is None:
        return count, recipe(None, None, "C")
    import numpy

    return count * numpy.dtype(dtype).itemsize, recipe(dtype, exact, "C")


def _count(length: Any) -> int:
    count: int = length.__index__() if hasattr(length, "__index__") else -1
    if count < 0:
        raise TypeError(f"the size of an output is a number, or a tuple of numbers, not {length!r}")
    return count


def as_input(given: Any, dtype: bytes) -> tuple[int, bytes]:
    """Returns what `like` returns, in a worker that has the input. `dtype` is pickled."""
    import pickle

    return like(given, pickle.loads(dtype))


def failed(kind: str, details: tuple[Any, ...]) -> BaseException:
    """Makes the exception for a call without a result."""
    from hotlease import errors

    if kind == "FunctionFailed":
        name, code, message = details
        text = f"`{name}` returned error {code}" + (f": {message}" if message else "")
        return errors.FunctionFailed(text, True, code, message)
    if kind == "OutputTooLarge":
        name, needed, room = details
        text = f"the result of `{name}` has {counted(needed, 'byte')}, and there was room for {room}: declare it with output= and dtype="
        return errors.OutputTooLarge(text, True, needed)
    exception: BaseException = getattr(errors, kind)(*details)
    return exception
