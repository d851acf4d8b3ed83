"""Handler that sends log records of tasks to the program. Workers import it when a task has imported `logging`."""

from __future__ import annotations

import functools
import logging

from hotlease import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Limits of fields that may be long (bytes), and of the number of added attributes.
_TEXT_MAX = 8192
_NAME_MAX = 512
_EXTRAS_MAX = 16
# Attributes of every record.
_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class Handler(logging.Handler):
    """Adds records to the next reply, and to this process's own output."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """Adds a record."""
        try:
            message = _text(record.getMessage(), _TEXT_MAX)
            raised = record.exc_text
            if record.exc_info and not raised:
                raised = self._formatter.formatException(record.exc_info)
            name = _text(record.name, _NAME_MAX)
            fields = (
                name,
                int(record.levelno),
                _text(record.levelname, _NAME_MAX),
                message,
                float(record.created),
                _text(record.pathname, _NAME_MAX),
                int(record.lineno),
                _text(record.funcName or "", _NAME_MAX),
                _text(record.threadName or "", _NAME_MAX),
                int(record.process or 0),
                _text(raised or "", _TEXT_MAX),
                _text(record.stack_info or "", _TEXT_MAX // 2),
            )
            if not _core._logged((*fields, _extras(record))):
                _core._logged((*fields, ()))
            # Written past the tee, because the reply contains the record already.
            self._file.write(f"{record.levelname}:{name}:{message}\n".encode(errors="backslashreplace"))
            self._file.flush()
        except Exception:
            self.handleError(record)


def keep(level: int, file: Any) -> None:
    """Sends all records of this level and above, unless the task's own code configures logging."""
    root, handler = logging.getLogger(), Handler(file)
    root.addHandler(handler)
    root.setLevel(level)
    usual = logging.basicConfig

    @functools.wraps(usual)
    def basic_config(**options: Any) -> None:
        # The original function does nothing if there is a handler.
        if root.handlers == [handler]:
            root.removeHandler(handler)
        usual(**options)

    logging.basicConfig = basic_config


def _extras(record: logging.LogRecord) -> tuple[tuple[str, Any], ...]:
    """Returns the attributes that the program has added: unchanged if plain, else as text."""
    added = [(name, value) for name, value in vars(record).items() if name not in _USUAL]
    try:
        return tuple((_text(name, _NAME_MAX), _plain(value)) for name, value in added[:_EXTRAS_MAX])
    except Exception:
        return ()


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float):
        return value
    return _text(value if type(value) is str else repr(value), _NAME_MAX)


def _text(text: object, most: int) -> str:
    """Converts to text that can be sent, of at most `most` bytes."""
    data = str(text).encode(errors="backslashreplace")
    if len(data) > most:
        half = most // 2
        data = data[:half] + f"... {len(data) - 2 * half} bytes ...".encode() + data[-half:]
    return data.decode(errors="replace")
