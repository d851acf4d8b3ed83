"""Reductions of a window's memory (``MPI.Win.Accumulate``), computed by numpy."""

from __future__ import annotations

from typing import Any

from hotlease.MPI._constants import BAND, BOR, BXOR, LAND, LOR, LXOR, MAX, MIN, PROD, SUM
from hotlease.MPI._errors import Exception as Failure
from hotlease.MPI._native import Datatype, Op

_UFUNCS = {SUM: "add", PROD: "multiply", MAX: "maximum", MIN: "minimum", BAND: "bitwise_and", BOR: "bitwise_or",
           BXOR: "bitwise_xor", LAND: "logical_and", LOR: "logical_or", LXOR: "logical_xor"}  # fmt: skip


def accumulated(origin: Any, op: Op, left: Any, right: Any) -> Any:
    """Reduces the bytes of two runs of elements, whose type is that of the buffer argument ``origin``."""
    import numpy

    if op not in _UFUNCS:
        raise Failure(f"{op!r} reduces no memory of a window", "Operator")
    dtype, ufunc = _dtype(origin), getattr(numpy, _UFUNCS[op])
    result = ufunc(numpy.frombuffer(left, dtype), numpy.frombuffer(right, dtype))
    return result.astype(dtype, copy=False)


def _dtype(origin: Any) -> Any:
    """Returns numpy's type of the elements of a buffer argument."""
    import numpy

    array, kind = (origin[0], origin[-1]) if isinstance(origin, (list, tuple)) else (origin, None)
    if isinstance(kind, Datatype):
        return numpy.dtype(kind.tocode())
    return numpy.dtype(kind) if isinstance(kind, str) else numpy.asarray(array).dtype
