"""Output and log records of tasks, as the program gets them."""

from __future__ import annotations

import functools
import itertools
import sys
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator
    from typing import Any, Callable, Union

# Kinds of pieces, as defined in printed.rs.
_STREAMS = {1: "stdout", 2: "stderr"}
_RECORD = 3


class Line(NamedTuple):
    """A line that a task printed. As text it has its label: ``[simulate worker 3] text``."""

    function: str
    """What the function is called."""
    worker: int
    """Which worker of its executor ran it, from 0 on."""
    stream: str
    """``"stdout"`` or ``"stderr"``."""
    text: str
    """Without the line's end."""

    def __str__(self) -> str:
        return f"[{_label(self.function, self.worker)}] {self.text}"


if TYPE_CHECKING:
    Part = Union[Line, logging.LogRecord]
    # A kind, and text, the fields of a record, or the number of bytes that are left out.
    Pieces = list[tuple[int, Any]]


def show(output: Union[bool, Callable[[Part], object]], function: str, worker: int, pieces: Pieces) -> None:
    """Shows the output of a task, or passes it to a callable. A part that cannot be shown does not keep back the
    others."""
    if not isinstance(output, bool):
        for part in _parts(function, worker, pieces):
            output(part)
        return
    failed = None
    for stream, parts in itertools.groupby(_parts(function, worker, pieces), _stream_of):
        # Consecutive lines are written at once, so that no output of other threads comes between them.
        for what in ["".join(f"{line}\n" for line in parts)] if stream else parts:
            try:
                if isinstance(what, str):
                    _write(stream, what)
                elif not isinstance(what, Line):
                    _log(what)
            except Exception as error:
                failed = failed or error
    if failed is not None:
        raise failed


def _stream_of(part: Part) -> str:
    return part.stream if isinstance(part, Line) else ""


def _label(function: str, worker: int) -> str:
    return f"{function} worker {worker}"


def _parts(function: str, worker: int, pieces: Pieces) -> Iterator[Part]:
    """Yields lines and records in order; an unfinished line ends with the task."""
    # Only the function's own name, without that of an enclosing function.
    function = function.rpartition("<locals>.")[2]
    begun: dict[str, str] = {}
    stream = "stdout"
    for kind, what in pieces:
        if kind in _STREAMS:
            stream = _STREAMS[kind]
            *lines, begun[stream] = (begun.get(stream, "") + what).split("\n")
            for text in lines:
                yield Line(function, worker, stream, _seen(text))
        elif kind == _RECORD:
            yield _record(function, worker, *what)
        else:
            yield from _rest(function, worker, begun)
            yield Line(function, worker, stream, f"... {what} bytes ...")
    yield from _rest(function, worker, begun)


def _rest(function: str, worker: int, begun: dict[str, str]) -> Iterator[Line]:
    for stream in _STREAMS.values():
        text = begun.pop(stream, "")
        if text:
            yield Line(function, worker, stream, _seen(text))


def _seen(line: str) -> str:
    """Returns what a terminal finally shows of a line: progress bars overwrite it again and again."""
    return line.rstrip("\r").rpartition("\r")[2]


def _write(stream: str, text: str) -> None:
    file = getattr(sys, stream)
    if file is None:
        return
    # Between progress bars, if there are any.
    bars: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)
    write = functools.partial(bars.write, file=file, end="") if getattr(bars, "_instances", None) else file.write
    try:
        write(text)
    except UnicodeEncodeError as error:
        write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))


def _record(
    function: str,
    worker: int,
    name: str,
    levelno: int,
    levelname: str,
    message: str,
    created: float,
    pathname: str,
    lineno: int,
    caller: str,
    thread: str,
    process: int,
    raised: str,
    stack: str,
    extras: tuple[tuple[str, Any], ...],
) -> logging.LogRecord:
    import logging

    filename = pathname.rpartition("/")[2]
    # A sandbox may name its attributes like the methods of records.
    fields: dict[str, Any] = {name: value for name, value in extras if not hasattr(logging.LogRecord, name)}
    fields.update(name=name, levelno=levelno, levelname=levelname, msg=message, args=(), created=created)
    fields.update(msecs=created % 1 * 1000, pathname=pathname, filename=filename, module=filename.rpartition(".")[0] or filename)
    fields.update(lineno=lineno, funcName=caller, process=process, processName=_label(function, worker), threadName=thread)
    fields.update(exc_info=None, exc_text=raised or None, stack_info=stack or None, function=function, worker=worker)
    return logging.makeLogRecord(fields)


def _log(record: logging.LogRecord) -> None:
    import logging

    logger = logging.getLogger(record.name)
    if not logger.isEnabledFor(record.levelno):
        return
    if logger.hasHandlers():
        logger.handle(record)
    elif logging.lastResort is not None and record.levelno >= logging.lastResort.level:
        # The program has not configured logging.
        text = f"{record.levelname}:{record.name}:{logging.Formatter('%(message)s').format(record)}"
        label = f"[{record.processName}] "
        _write("stderr", "".join(f"{label}{line}\n" for line in text.split("\n")))
