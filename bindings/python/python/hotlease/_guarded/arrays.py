"""Pickles of numpy's objects as bytes and a plain description, and of other objects whose own pickles use refused names."""

from __future__ import annotations

import math
import pickle
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Optional, Union

    # A type string, or ("fields", names, descriptions, offsets, bytes), or ("shape", description, shape).
    Description = Union[str, tuple[Any, ...]]

# Type strings of numpy whose items have no references to objects. A unit of time has no multiple of 0: numpy divides by it.
_PLAIN_TYPE = re.compile(r"[<>|][biufcSUVmM][0-9]{1,10}(\[([1-9][0-9]{0,8})?[A-Za-z]+\])?")
# Limits of dimensions (numpy has 64 at most) and of the types in a type. One object can be part of several descriptions,
# so a short description could expand to 2 ** 40 parts.
_DIMENSIONS_MAX = 64
_TYPES_MAX = 10_000
# Largest number of items that have no bytes: an array of them costs nothing to send, and may take for ever to show.
_EMPTY_ITEMS_MAX = 10_000


def described(dtype: Any) -> Optional[Description]:
    """Describes a dtype. Returns `None` if its items are objects, or if numpy cannot make it again from the description."""
    import numpy

    description: Description = dtype.str
    if dtype.hasobject:
        return None
    if dtype.subdtype is not None:
        description = "shape", described(dtype.subdtype[0]), dtype.subdtype[1]
    elif dtype.names is not None:
        fields = [dtype.fields[name] for name in dtype.names]
        formats = tuple(described(field[0]) for field in fields)
        description = "fields", dtype.names, formats, tuple(field[1] for field in fields), dtype.itemsize
    try:
        same: numpy.dtype[Any] = made_dtype(description)
    except Exception:
        return None
    return description if same == dtype else None


def made_dtype(description: Description) -> Any:
    """Makes a dtype without objects from its description."""
    return _made(description, iter(range(_TYPES_MAX)))


def _made(description: Description, left: Iterator[int]) -> Any:
    import numpy

    if next(left, None) is None:
        raise ValueError(f"a type of numpy from a sandbox has at most {_TYPES_MAX} parts")
    # The types of all parts are checked: a range instead of a tuple could be too long for any memory.
    if isinstance(description, str):
        if not _PLAIN_TYPE.fullmatch(description):
            raise ValueError(f"no plain type of numpy: {description!r}")
        return numpy.dtype(description)
    if not isinstance(description, tuple):
        raise ValueError("no description of a type of numpy")
    kind, *parts = description
    if kind == "shape":
        base, shape = parts
        item = _made(base, left)
        if item.itemsize == 0:
            raise ValueError("a type of numpy from a sandbox has no arrays of items without bytes")
        return numpy.dtype((item, sizes(shape)))
    names, formats, offsets, size = parts
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names) or not isinstance(formats, tuple):
        raise ValueError("no description of a type of numpy")
    if not len(names) == len(formats) <= _TYPES_MAX or type(offsets) is not tuple or not all(map(_is_size, (*offsets, size))):
        raise ValueError("no description of a type of numpy")
    fields: Any = {"names": list(names), "formats": [_made(each, left) for each in formats]}
    fields.update(offsets=list(offsets), itemsize=size)
    return numpy.dtype(fields)


def sizes(numbers: Any) -> tuple[int, ...]:
    """Checks the sizes of dimensions."""
    if type(numbers) is not tuple or len(numbers) > _DIMENSIONS_MAX or not all(map(_is_size, numbers)):
        raise ValueError(f"sizes are a tuple of at most {_DIMENSIONS_MAX} numbers")
    return numbers


def _is_size(number: Any) -> bool:
    return type(number) is int and 0 <= number < 2**63


def array(data: Any, description: Description, shape: tuple[int, ...], order: Any) -> Any:
    """Makes an array of the bytes of `data`, without a copy."""
    import numpy

    dtype, shape = made_dtype(description), sizes(shape)
    if dtype.itemsize == 0 and math.prod(shape) > _EMPTY_ITEMS_MAX:
        raise ValueError(f"an array of items without bytes has at most {_EMPTY_ITEMS_MAX} of them")
    if memoryview(data).nbytes != math.prod(shape) * dtype.itemsize:
        raise ValueError("an array has more or fewer bytes than its shape and type say")
    return numpy.ndarray(shape, dtype, data, order=order)


def scalar(data: bytes, description: Description) -> Any:
    """Makes a scalar of numpy."""
    return array(data, description, (), "C")[()]


def zone(key: str) -> Any:
    """Makes a time zone from its name."""
    import zoneinfo

    if not isinstance(key, str):
        raise ValueError("the name of a time zone is a text")
    return zoneinfo.ZoneInfo(key)


def reduce(value: Any) -> Any:
    """Returns how a value of numpy or `zoneinfo`, or an exception, is pickled; `NotImplemented` if as any other value."""
    kind = type(value)
    if isinstance(value, BaseException):
        # Not by functions that packages such as tblib register for all exceptions.
        return value.__reduce_ex__(5)
    if kind.__module__ == "zoneinfo":
        return (zone, (value.key,)) if getattr(value, "key", None) else NotImplemented
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic, numpy.dtype)):
        return NotImplemented
    description = described(value if isinstance(value, numpy.dtype) else value.dtype)
    if description is None:
        return NotImplemented
    if isinstance(value, numpy.dtype):
        return made_dtype, (description,)
    if isinstance(value, numpy.generic):
        return scalar, (value.tobytes(), description)
    # The program does not have the file of the worker's memmap, so it gets the content.
    if kind is not numpy.ndarray and kind is not numpy.memmap:
        return NotImplemented
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    flat = numpy.asarray(value).reshape(-1, order=order)
    data = flat.view("u1") if flat.nbytes else b""
    return array, (pickle.PickleBuffer(data), description, value.shape, order)
