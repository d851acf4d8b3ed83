"""Text from sandboxes, made safe for a terminal.

Control characters change the title of a terminal, write to the clipboard, or hide text. Each is replaced by U+FFFD, except
tabs and the ends of lines. Text within another object is left as it is, because `repr` mostly
shows it escaped.
"""

from __future__ import annotations

import collections
import contextlib
import re
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A carriage return is an end of a line, too: progress bars write it.
_CONTROL = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f]")
# Limit of the objects that the text of an exception shows; a text counts as one for each of so many bytes.
_PARTS_MAX = 50_000
_PART_BYTES = 64
# Attributes in which built-in exceptions keep text that they show unescaped.
_SHOWN = ("strerror", "msg", "reason", "text")


def printable(value: Any) -> Any:
    """Returns a text without control characters, and any other object unchanged."""
    return _CONTROL.sub("\ufffd", value) if type(value) is str else value


def make_printable(exception: Exception) -> bool:
    """Removes control characters from the texts that Python shows of an exception: arguments, notes, and the attributes of
    built-in exceptions. Returns whether what Python shows then has none: other objects in the exception may show some, or too
    much."""
    exception.args = tuple(map(printable, exception.args))
    for name in _SHOWN:
        text = getattr(exception, name, None)
        if type(text) is str:
            with contextlib.suppress(AttributeError):
                setattr(exception, name, printable(text))
    notes = getattr(exception, "__notes__", None)
    if type(notes) is list:
        notes[:] = map(printable, notes)
    return _is_small(exception) and _CONTROL.search("".join(traceback.format_exception(exception))) is None


def _is_small(exception: Exception) -> bool:
    """Whether the text of an exception is short enough to be made. A few nested tuples may have a text without end: each
    object counts as often as the text would show it."""
    left, pending = _PARTS_MAX, [exception]  # type: tuple[int, list[Any]]
    while pending:
        value = pending.pop()
        left -= 1
        if isinstance(value, BaseException):
            pending += (value.args, value.__cause__, value.__context__, getattr(value, "__notes__", None))
        elif isinstance(value, (str, bytes, bytearray)):
            left -= len(value) // _PART_BYTES
        elif isinstance(value, (tuple, list, set, frozenset, dict, collections.deque)):
            if len(value) > left:
                return False
            pending.extend(value)
            if isinstance(value, dict):
                pending.extend(value.values())
        else:
            pending += getattr(value, "__dict__", {}).values()
        if left < 0:
            return False
    return True
