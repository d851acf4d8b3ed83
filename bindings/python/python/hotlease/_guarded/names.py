"""Names that a result from a sandbox may contain, apart from classes of the program. Called with any arguments, these
objects only make plain data, and have no other effect."""

from __future__ import annotations

import builtins
import importlib
import re

from hotlease._guarded import arrays

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

    # An object, and its allowed uses in a pickle.
    Use = tuple[Any, int]

# Bits of the allowed uses, as the check of pickles defines them: hotlease_wire::task::pickle::uses.
VALUE, CALL, STATE, USUAL_STATE, ITEMS, CLASS, FRAIL = 1, 2, 4, 8, 16, 32, 64
OF_CLASS = VALUE | CALL | STATE | ITEMS
# Uses of an exception class that Python code defines.
OF_EXCEPTION = OF_CLASS | USUAL_STATE

_RANGE_MAX = 1_000_000
# Python reduces fractions: the time grows with the square of their length, and the reduction cannot be interrupted.
_FRACTION_BITS_MAX = 100_000
# Types that may be values, but are not called: pickles have operations that make their objects.
_TYPES = frozenset("bool int float str bytes bytearray list tuple dict set frozenset object Ellipsis NotImplemented".split())


def _range(start: int, stop: int, step: int) -> range:
    # Python reads some arguments as sequences, and would copy a long range.
    made = range(start, stop, step)
    if len(made) > _RANGE_MAX:
        raise ValueError(f"a range from a sandbox has at most {_RANGE_MAX} numbers")
    return made


def _counter(counts: Any) -> Any:
    from collections import Counter

    return Counter(_of(dict, counts))


def _ordered(*nothing: Any) -> Any:
    from collections import OrderedDict

    return OrderedDict(*map(_empty, nothing))


def _deque(items: Any = (), longest: Optional[int] = None) -> Any:
    from collections import deque

    return deque(_empty(items), longest)


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"not a {kind.__name__}")
    return value


def _empty(value: Any) -> Any:
    if value not in ((), []):
        raise ValueError("its items come behind it")
    return value


def _date(*parts: Any) -> Any:
    import datetime

    if len(parts) == 1 and type(parts[0]) is bytes and len(parts[0]) == 4:
        # Python itself checks only the month of this state.
        high, low, month, day = parts[0]
        return datetime.date(high << 8 | low, month, day)
    raise ValueError("no date as Python pickles it")


def _datetime(*parts: Any) -> Any:
    import datetime

    if parts and type(parts[0]) is bytes and len(parts[0]) == 10:
        (high, low, month), zone = parts[0][:3], parts[1:]
        day, hour, minute, second = parts[0][3:7]
        at = (hour, minute, second, int.from_bytes(parts[0][7:], "big"), _zone(zone))
        return datetime.datetime(high << 8 | low, month & 0x7F, day, *at, fold=month >> 7)
    raise ValueError("no date and time as Python pickles it")


def _time(*parts: Any) -> Any:
    import datetime

    if parts and type(parts[0]) is bytes and len(parts[0]) == 6:
        hour, minute, second = parts[0][:3]
        microsecond = int.from_bytes(parts[0][3:], "big")
        return datetime.time(hour & 0x7F, minute, second, microsecond, _zone(parts[1:]), fold=hour >> 7)
    raise ValueError("no time as Python pickles it")


def _zone(rest: tuple[Any, ...]) -> Any:
    import datetime

    if len(rest) > 1 or not all(isinstance(each, (datetime.tzinfo, type(None))) for each in rest):
        raise ValueError("the time zone of a time is no time zone")
    return rest[0] if rest else None


def _native(data: Any, dtype: Any, shape: Any, order: Any) -> Any:
    from hotlease import _native_results

    # Only a description: numpy would also make a type of objects, whose addresses would be the bytes of the sandbox.
    dtype = None if dtype is None else arrays.made_dtype(dtype)
    if dtype is not None and dtype.itemsize == 0:
        raise ValueError("the items of a native function's result have bytes")
    return _native_results.value(data, dtype, None if shape is None else arrays.sizes(shape), order)


def _slice(start: Any, stop: Any, step: Any) -> slice:
    # Python frees nested slices by recursion, for which the stack may be too small.
    if not all(isinstance(part, (int, float, str, type(None))) for part in (start, stop, step)):
        raise ValueError("a slice from a sandbox has numbers or texts")
    return slice(start, stop, step)


def _fraction(numerator: Any, denominator: Any = None) -> Any:
    from fractions import Fraction

    # Python also reads exponents, and would compute 10 ** 1000000000.
    parts = [part for part in (numerator, denominator) if type(part) is not int and part is not None]
    if parts and not (parts == [numerator] and isinstance(numerator, str) and re.fullmatch(r"-?\d+(/\d+)?", numerator)):
        raise ValueError(f"no fraction: {numerator!r:.60}")
    for part in (numerator, 1 if denominator is None else denominator):
        # A digit has more than 3 bits.
        if (3 * len(part) if isinstance(part, str) else part.bit_length()) > _FRACTION_BITS_MAX:
            raise ValueError(f"the numbers of a fraction from a sandbox have at most {_FRACTION_BITS_MAX} bits")
    return Fraction(numerator, denominator)


def _defaultdict(factory: Any = None) -> Any:
    from collections import defaultdict

    if factory is not None and not isinstance(factory, type):
        raise ValueError("the factory of a defaultdict from a sandbox is a class")
    return defaultdict(factory)


# Names that a result may contain, by module and name: the allowed uses of the object, and a stand-in; `None`: the object
# itself is used.
_OTHERS: dict[tuple[str, str], tuple[int, Optional[Callable[..., Any]]]] = {
    ("builtins", "complex"): (VALUE | CALL, None),
    ("builtins", "range"): (CALL, _range),
    ("builtins", "slice"): (CALL, _slice),
    ("collections", "Counter"): (CALL, _counter),
    ("collections", "OrderedDict"): (CALL | ITEMS, _ordered),
    ("collections", "defaultdict"): (CALL | ITEMS | FRAIL, _defaultdict),
    ("collections", "deque"): (CALL | ITEMS | FRAIL, _deque),
    ("datetime", "date"): (CALL, _date),
    ("datetime", "datetime"): (CALL, _datetime),
    ("datetime", "time"): (CALL, _time),
    ("datetime", "timedelta"): (VALUE | CALL, None),
    ("datetime", "timezone"): (VALUE | CALL, None),
    ("decimal", "Decimal"): (VALUE | CALL, None),
    ("fractions", "Fraction"): (CALL, _fraction),
    ("uuid", "UUID"): (VALUE | CALL | STATE, None),
    **{
        (module, name): (VALUE | CALL, None)
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "PurePosixPath", "PureWindowsPath")
    },
    ("concurrent.futures._base", "CancelledError"): (OF_EXCEPTION, None),
    ("concurrent.futures._base", "TimeoutError"): (OF_EXCEPTION, None),
    ("hotlease", "Error"): (OF_EXCEPTION, None),
    ("hotlease.MPI._errors", "Exception"): (OF_EXCEPTION, None),
    ("hotlease._guarded.arrays", "array"): (CALL | FRAIL, arrays.array),
    ("hotlease._guarded.arrays", "made_dtype"): (CALL, arrays.made_dtype),
    ("hotlease._guarded.arrays", "scalar"): (CALL | FRAIL, arrays.scalar),
    ("hotlease._guarded.arrays", "zone"): (CALL, arrays.zone),
    ("hotlease._native_results", "value"): (CALL | FRAIL, _native),
}


def find(module: str, name: str) -> Optional[Use]:
    """Returns the object of a name, and its allowed uses. Returns `None` if results may not contain the name."""
    if module == "builtins" and name in _TYPES:
        return getattr(builtins, name), VALUE
    known = _OTHERS.get((module, name))
    if known is not None:
        uses, stand_in = known
        return stand_in or getattr(importlib.import_module(module), name), uses
    if module == "builtins":
        return _exception(builtins, name, VALUE | CALL | STATE | USUAL_STATE | FRAIL)
    if module == "hotlease.errors":
        from hotlease import errors

        return _exception(errors, name, OF_EXCEPTION)
    return None


def _exception(module: Any, name: str, uses: int) -> Optional[Use]:
    found = vars(module).get(name)
    return (found, uses) if isinstance(found, type) and issubclass(found, BaseException) else None
