"""Predefined operators for elements for which the library has no reduction, computed by numpy: long double, half, and pairs
of value and index that are packed or of rare types."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    import numpy

Function = Callable[[Any, Any, Any], None]

_UFUNCS = {
    "MPI_SUM": "add",
    "MPI_PROD": "multiply",
    "MPI_MAX": "maximum",
    "MPI_MIN": "minimum",
}


@functools.cache
def function(name: str, code: str) -> Optional[Function]:
    """Returns an operator for elements of a type, in the form for ``Op.Create``; None if there is no such operator.

    Parameters
    ----------
    name
        MPI's name of the operator.
    code
        Type of the elements: numpy's character. For pairs: the characters of value and index, behind ``=`` if packed.
    """
    import numpy

    if code.endswith("i"):
        pair = numpy.dtype([("value", code[-2]), ("index", "i")], align=not code.startswith("="))
        return _pairs(numpy, pair, name) if name in ("MPI_MAXLOC", "MPI_MINLOC") else None
    is_complex = code == "G" and name in ("MPI_MAX", "MPI_MIN")
    if name not in _UFUNCS or is_complex:
        return None
    ufunc, dtype = getattr(numpy, _UFUNCS[name]), numpy.dtype(code)

    def reduce(left: Any, right: Any, datatype: Any) -> None:
        result = numpy.frombuffer(right, dtype)
        ufunc(numpy.frombuffer(left, dtype), result, out=result)

    return reduce


def _pairs(np: Any, pair: numpy.dtype[Any], name: str) -> Function:
    """Returns an operator that takes the greatest or the least value and, of equal values, the lowest index."""
    is_better = np.greater if name == "MPI_MAXLOC" else np.less

    def reduce(left: Any, right: Any, datatype: Any) -> None:
        one, other = np.frombuffer(left, pair), np.frombuffer(right, pair)
        is_equal = one["value"] == other["value"]
        is_taken = is_better(one["value"], other["value"]) | np.isnan(one["value"]) & ~np.isnan(other["value"])
        other[is_taken] = one[is_taken]
        other["index"][is_equal] = np.minimum(one["index"], other["index"])[is_equal]

    return reduce
