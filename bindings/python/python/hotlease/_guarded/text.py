"""Text from sandboxes, made safe for a terminal.

Control characters change the title of a terminal, write to the clipboard, or hide text. Each is replaced by U+FFFD, except
tabs and the ends of lines. Text within another object is left as it is, because `repr` mostly
shows it escaped.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import decimal
import enum
import gc
import pathlib
import re
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

# A carriage return is an end of a line, too: progress bars write it.
_CONTROL = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f]")
# Limit of the objects that the text of an exception shows; a text counts as one for each of so many bytes.
_PARTS_MAX = 50_000
_PART_BYTES = 64
# Longest number that an exception shows. The time that its text takes grows with the square of its length.
_NUMBER_BITS_MAX = 100_000
# Attributes in which built-in exceptions keep text that they show unescaped.
_SHOWN = ("strerror", "msg", "reason", "text", "filename", "filename2", "encoding")
# Largest line and column of a `SyntaxError`: Python draws as many carets as it says.
_COLUMN_MAX = 10_000
# Objects of the program that objects of a result refer to.
_OF_PROGRAM = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, enum.Enum)


def printable(value: Any) -> Any:
    """Returns a text without control characters, and any other object unchanged."""
    return _CONTROL.sub("\ufffd", value) if type(value) is str else value


def defuse(value: Any) -> Optional[str]:
    """Makes it harmless to show the exceptions in an object, at any depth; returns why that is not possible, or `None`.

    Python itself shows exceptions in ways that trust their attributes. To suggest a name, it imports the module that an
    `ImportError` names, and lists the attributes of the object in an `AttributeError`. The text of a `UnicodeError` reads
    its bytes at the given place without a check (CPython before 3.12.8). A `SyntaxError` gets as many carets as it says.
    """
    for each in _exceptions(value):
        if isinstance(each, ImportError) and getattr(each, "name_from", None) is not None:
            setattr(each, "name_from", None)
        elif type(each) is AttributeError and getattr(each, "obj", None) is not None:
            each.obj = None
        elif isinstance(each, UnicodeError) and not _is_within(each):
            return "a UnicodeError names a place outside of its text"
        elif isinstance(each, SyntaxError) and not _is_drawable(each):
            return "a SyntaxError names no place in a text"
    return None


def _exceptions(value: Any) -> list[BaseException]:
    """Returns the exceptions in an object, at any depth."""
    seen: dict[int, Any] = {}
    pending, found = [value], []
    while pending:
        each = pending.pop()
        if id(each) in seen or isinstance(each, _OF_PROGRAM):
            continue
        # Kept, so that no other object gets its id.
        seen[id(each)] = each
        if isinstance(each, BaseException):
            found.append(each)
        pending += gc.get_referents(each)
    return found


def _is_within(error: UnicodeError) -> bool:
    kinds = {UnicodeDecodeError: bytes, UnicodeEncodeError: str, UnicodeTranslateError: str}
    kind = next((kind for base, kind in kinds.items() if isinstance(error, base)), None)
    if kind is None:
        return True
    try:
        text, start, end = error.object, error.start, error.end  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        # They were never set.
        return False
    return type(text) is kind and 0 <= start <= len(text) and 0 <= end <= len(text)


def _is_drawable(error: SyntaxError) -> bool:
    numbers = (error.lineno, error.offset, getattr(error, "end_lineno", None), getattr(error, "end_offset", None))
    texts = (error.text, error.filename)
    are_numbers = all(each is None or (type(each) is int and -1 <= each <= _COLUMN_MAX) for each in numbers)
    return are_numbers and all(each is None or type(each) is str for each in texts)


def make_printable(exception: BaseException) -> bool:
    """Removes control characters from the texts that Python shows of an exception, and of the exceptions in it: arguments,
    notes, and the attributes of built-in exceptions. Returns whether what Python shows then has none: other objects in the
    exception may show some, or too much. `defuse` has returned `None` for the exception."""
    all_of_it = _exceptions(exception)
    for each in all_of_it:
        each.args = tuple(map(printable, each.args))
        for name in _SHOWN:
            text = getattr(each, name, None)
            if type(text) is str:
                with contextlib.suppress(AttributeError):
                    setattr(each, name, printable(text))
        notes = getattr(each, "__notes__", None)
        if type(notes) is list:
            notes[:] = map(printable, notes)
    return _is_small(exception) and all(map(_shows_no_control, all_of_it))


def _shows_no_control(exception: BaseException) -> bool:
    notes = getattr(exception, "__notes__", None)
    try:
        shown = [str(exception), *map(str, notes if isinstance(notes, (list, tuple)) else ())]
    except Exception:
        return False
    return all(_CONTROL.search(text) is None for text in shown)


def _is_small(exception: BaseException) -> bool:
    """Whether the text of an exception is short enough to be made. A few nested tuples may have a text without end: each
    object counts as often as the text would show it."""
    left, pending = _PARTS_MAX, [exception]  # type: tuple[int, list[Any]]
    while pending:
        value = pending.pop()
        left -= 1
        if isinstance(value, BaseException):
            # A group shows its exceptions, which are not in its arguments if its state has replaced them.
            pending += (value.args, value.__cause__, value.__context__, getattr(value, "__notes__", None))
            pending.append(getattr(value, "exceptions", None))
        elif isinstance(value, (tuple, list, set, frozenset, dict, collections.deque)):
            if len(value) > left:
                return False
            pending.extend(value)
            if isinstance(value, dict):
                pending.extend(value.values())
        elif isinstance(value, int):
            if value.bit_length() > _NUMBER_BITS_MAX:
                return False
        elif isinstance(value, slice):
            pending += (value.start, value.stop, value.step)
        elif isinstance(value, (datetime.datetime, datetime.time)):
            pending.append(value.tzinfo)
        else:
            left -= _text_bytes(value) // _PART_BYTES
            pending += getattr(value, "__dict__", {}).values()
        if left < 0:
            return False
    return True


def _text_bytes(value: Any) -> int:
    """Returns about how many bytes the text of an object has, apart from the texts of other objects in it."""
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return len(value)
    if isinstance(value, pathlib.PurePath):
        return len(str(value))
    if isinstance(value, datetime.tzinfo):
        return len(value.tzname(None) or "") if type(value) is datetime.timezone else 0
    if isinstance(value, decimal.Decimal):
        return len(value.as_tuple().digits)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        # numpy shows three items at each end of each dimension of a large array.
        items = value.size if value.size <= 1000 else min(value.size, 6**value.ndim)
        return int(items * (8 + value.itemsize))
    return 0
