"""What tasks log, on its way to the program. Imported by workers, once what they run has imported `logging`."""

from __future__ import annotations

import functools
import logging

from hotlease import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Bytes of what there may be much of.
_TEXT_MAX = 8192
_NAME_MAX = 512
_EXTRAS_MAX = 16
# What every record has.
_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class Handler(logging.Handler):
    """Has the next reply take records along, and the end of this process's output, too."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """Does so."""
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
            # Past the stream: the reply has it.
            self._file.write(f"{record.levelname}:{name}:{message}\n".encode(errors="backslashreplace"))
            self._file.flush()
        except Exception:
            self.handleError(record)


def keep(level: int, file: Any) -> None:
    """Keeps all records of this level and above, unless what runs here says itself where they go."""
    root, handler = logging.getLogger(), Handler(file)
    root.addHandler(handler)
    root.setLevel(level)
    usual = logging.basicConfig

    @functools.wraps(usual)
    def basic_config(**options: Any) -> None:
        # It does nothing where there is a handler.
        if root.handlers == [handler]:
            root.removeHandler(handler)
        usual(**options)

    logging.basicConfig = basic_config


def _extras(record: logging.LogRecord) -> tuple[tuple[str, Any], ...]:
    """What the program has added, as it is where that is plain, else as text."""
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
    """As text that can be sent, of so many bytes."""
    data = str(text).encode(errors="backslashreplace")
    if len(data) > most:
        half = most // 2
        data = data[:half] + f"... {len(data) - 2 * half} bytes ...".encode() + data[-half:]
    return data.decode(errors="replace")
