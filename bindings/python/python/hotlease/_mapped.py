"""Arrays that are mapped from a file. An array is sent as its position in the file, so workers map the file itself, not a copy."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    # Identity of a file, without its device: inode and size.
    Identity = tuple[int, int]


def is_mapped(buffer: memoryview) -> bool:
    """Whether the memory of an array is mapped from a file by a `numpy.memmap`."""
    array: Any = buffer.obj
    # An array without a base has memory of its own.
    return getattr(array, "base", None) is not None and _backing(array) is not None


def _backing(array: Any) -> Any:
    """Returns the memmap that `array` is, or is a view of: the outermost one, with all of the mapped part of the file. Returns
    None if `array` is not mapped."""
    numpy, mmap = sys.modules.get("numpy"), sys.modules.get("mmap")
    if numpy is None or mmap is None:
        return None
    while isinstance(array, numpy.ndarray):
        if isinstance(array, numpy.memmap) and isinstance(array.base, mmap.mmap):
            return array
        array = array.base
    return None


def reduce(array: Any) -> Any:
    """Pickles an object of numpy: a mapped array as its position in the file, any other object as usual."""
    mapped = _backing(array)
    # With mode `c` the program has changes that are not in the file.
    if mapped is None or mapped.mode == "c" or not isinstance(mapped.filename, (str, os.PathLike)):
        return NotImplemented
    path = os.path.abspath(mapped.filename)
    try:
        identity = _identity(path)
    except OSError:
        # The file was removed, but is still mapped.
        return NotImplemented
    start = array.__array_interface__["data"][0] - mapped.__array_interface__["data"][0]
    whole = (path, identity, "r" if mapped.mode == "r" else "r+", mapped.offset, mapped.nbytes)
    return opened, (whole, type(array), start, array.shape, array.dtype, array.strides, array.flags.writeable)


def _identity(path: str) -> Identity:
    status = os.stat(path)
    return status.st_ino, status.st_size


def opened(
    whole: tuple[str, Identity, str, int, int],
    kind: type,
    start: int,
    shape: tuple[int, ...],
    dtype: Any,
    strides: tuple[int, ...],
    writeable: bool,
) -> Any:
    """Maps the part `whole` of the file in a worker, and returns the array, which is a view of this part."""
    import numpy

    path, identity, mode, offset, size = whole
    advice = "pass a copy instead (numpy.array(...)), or grant the worker the folder"
    try:
        found, length = _identity(path)
        if found != identity[0] or length < offset + size:
            raise FileNotFoundError(f"the argument is an array in the file {path}, but the worker finds another file at that path: {advice}")
        mapped: Any = numpy.memmap(path, dtype="u1", mode=mode, offset=offset, shape=(size,))  # type: ignore[call-overload,unused-ignore]
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not error.errno:
            raise
        text = f"the argument is an array in the file {path}, which the worker cannot map: {error.strerror}; {advice}"
        raise type(error)(text) from error
    array: Any = numpy.ndarray.__new__(kind, shape, dtype, buffer=mapped, offset=start, strides=strides)
    if isinstance(array, numpy.memmap):
        # The attributes are set by name: some versions of numpy declare that they never change.
        for name, value in [*((name, getattr(mapped, name)) for name in ("_mmap", "filename", "mode")), ("offset", offset + start)]:
            setattr(array, name, value)
    if not writeable:
        array.flags.writeable = False
    return array
