"""Text from sandboxes, made safe for a terminal.

Control characters change the title of a terminal, write to the clipboard, or hide text. Each is replaced by U+FFFD, except
tabs and the ends of lines. Text within another object is left as it is, because `repr` shows it escaped.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A carriage return is an end of a line, too: progress bars write it.
_CONTROL = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f]")
# Attributes in which built-in exceptions keep text that they show unescaped.
_SHOWN = ("strerror", "msg", "reason", "text")


def printable(value: Any) -> Any:
    """Returns a text without control characters, and any other object unchanged."""
    return _CONTROL.sub("\ufffd", value) if type(value) is str else value


def make_printable(exception: Exception) -> None:
    """Removes control characters from the texts that Python shows of an exception: arguments, notes, and the attributes of
    built-in exceptions."""
    shown = {name: printable(getattr(exception, name, None)) for name in _SHOWN}
    exception.args = tuple(map(printable, exception.args))
    for name, text in shown.items():
        if type(text) is str:
            setattr(exception, name, text)
    notes = getattr(exception, "__notes__", None)
    if type(notes) is list:
        notes[:] = map(printable, notes)
