"""Output of tasks on its way to the program: the streams of a worker. Never imported by programs."""

from __future__ import annotations

import io
import sys

from hotlease import _core
from hotlease._hook import Hook

# Set by type checkers. The import of `typing` takes as long as all imports of a worker here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional


def begin(level: int) -> None:
    """Makes replies carry the output of tasks from now on, and the log records at this level and above."""
    io.BufferedIOBase.register(_core.Tee)
    for number, name in enumerate(("stdout", "stderr"), 1):
        raw = io.FileIO(number, "w", closefd=False)
        raw.name = f"<{name}>"
        file = io.BufferedWriter(raw)
        tee: Any = _core.Tee(number, file)
        # Text goes through at once: the tee keeps it until its line ends.
        stream: Any = io.TextIOWrapper(tee, "utf-8", "backslashreplace", line_buffering=True, write_through=True)
        stream.mode = "w"
        getattr(sys, name).flush()
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if "logging" in sys.modules:
        _keep_records(level, file)
    else:
        # Importing logging takes as long as a worker's start.
        Hook("logging", lambda _: _keep_records(level, file))


def _keep_records(level: int, file: Any) -> None:
    from hotlease import _records

    _records.keep(level, file)


def name(function: Any, arguments: tuple[Any, ...]) -> Optional[str]:
    """Returns the name of the program's function inside a wrapper that the program does not know; None: there is
    none."""
    from hotlease import _names

    return _names.of_call(function, arguments) if _names.is_wrapper(function) else None
