"""Output and log records of tasks, shown by the program or passed to it as objects."""

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

# Kinds of pieces, as defined in task_output.rs.
_STREAMS = {1: "stdout", 2: "stderr"}
_RECORD = 3
# Limits of the names of loggers in untrusted records: characters, parts, and names that the program has not used itself.
_NAME_MAX = 512
_NAME_PARTS_MAX = 20
_NEW_NAMES_MAX = 1000
_new_names: set[str] = set()


class Line(NamedTuple):
    """A line that a task printed. `str` returns it with a label: ``[simulate worker 3] text``."""

    function: str
    """Name of the function."""
    worker: int
    """Number of the worker that ran the task. Each executor counts its workers from 0."""
    stream: str
    """``"stdout"`` or ``"stderr"``."""
    text: str
    """Text of the line, without its end."""

    def __str__(self) -> str:
        return f"[{_label(self.function, self.worker)}] {self.text}"


if TYPE_CHECKING:
    Part = Union[Line, logging.LogRecord]
    # The kind of a piece, and its content: text, the fields of a record, or the number of omitted bytes.
    Pieces = list[tuple[int, Any]]


def show(
    output: Union[bool, Callable[[Part], object]], function: str, worker: int, pieces: Pieces, is_untrusted: bool = False
) -> None:
    """Shows the output of a task, or passes it to a callable. If a part cannot be shown, the parts after it are still
    shown. Control characters are replaced if the output is untrusted: a terminal would obey them."""
    if is_untrusted:
        function, pieces = _printable(function, pieces)
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


def _printable(function: str, pieces: Pieces) -> tuple[str, Pieces]:
    from hotlease._guarded.text import printable

    def of_record(fields: tuple[Any, ...]) -> tuple[Any, ...]:
        name, *texts, extras = map(printable, fields)
        return (_known_name(name), *texts, tuple((printable(each), printable(value)) for each, value in extras))

    return printable(function), [(kind, of_record(what) if kind == _RECORD else printable(what)) for kind, what in pieces]


def _known_name(name: str) -> str:
    """Returns the name of an untrusted record's logger, or of a logger above it. Python keeps each logger, and each logger
    above it, for as long as the program runs, so records may name only a bounded number of new ones."""
    import logging

    parts = name[:_NAME_MAX].split(".")[:_NAME_PARTS_MAX]
    name = ".".join(parts)
    known: dict[str, Any] = logging.root.manager.loggerDict
    if name in known or name in _new_names:
        return name
    if len(_new_names) < _NEW_NAMES_MAX:
        _new_names.add(name)
        return name
    above = (".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))
    return next((each for each in above if each in known), "root")


def _stream_of(part: Part) -> str:
    return part.stream if isinstance(part, Line) else ""


def _label(function: str, worker: int) -> str:
    return f"{function} worker {worker}"


def _parts(function: str, worker: int, pieces: Pieces) -> Iterator[Part]:
    """Yields lines and records in order; an unfinished line ends with the task."""
    # Only the function's own name, without the names of enclosing functions.
    function = function.rpartition("<locals>.")[2]
    unfinished: dict[str, str] = {}
    stream = "stdout"
    for kind, what in pieces:
        if kind in _STREAMS:
            stream = _STREAMS[kind]
            *lines, unfinished[stream] = (unfinished.get(stream, "") + what).split("\n")
            for text in lines:
                yield Line(function, worker, stream, _final_text(text))
        elif kind == _RECORD:
            yield _record(function, worker, *what)
        else:
            yield from _unfinished_lines(function, worker, unfinished)
            yield Line(function, worker, stream, f"... {what} bytes ...")
    yield from _unfinished_lines(function, worker, unfinished)


def _unfinished_lines(function: str, worker: int, unfinished: dict[str, str]) -> Iterator[Line]:
    for stream in _STREAMS.values():
        text = unfinished.pop(stream, "")
        if text:
            yield Line(function, worker, stream, _final_text(text))


def _final_text(line: str) -> str:
    """Returns what a terminal finally shows of a line: progress bars overwrite it again and again."""
    return line.rstrip("\r").rpartition("\r")[2]


def _write(stream: str, text: str) -> None:
    file = getattr(sys, stream)
    if file is None:
        return
    # tqdm's own write puts the text between progress bars, if there are any.
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
    # Attributes with the name of a method of records are dropped: code in a sandbox may have set them.
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
