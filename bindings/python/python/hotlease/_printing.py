"""Streams of a worker, which send the output of tasks to the program. Never imported by programs."""

from __future__ import annotations

import io
import sys

from hotlease import _core
from hotlease._hook import Hook

# Set by type checkers, not imported from `typing`: its import takes as long as all imports of a worker.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional


def begin(level: int) -> None:
    """Adds the output of tasks to replies from now on, and log records at `level` and above."""
    io.BufferedIOBase.register(_core.Tee)
    for number, name in enumerate(("stdout", "stderr"), 1):
        raw = io.FileIO(number, "w", closefd=False)
        raw.name = f"<{name}>"
        file = io.BufferedWriter(raw)
        tee: Any = _core.Tee(number, file)
        # Text is passed to the tee at once; the tee buffers it until its line ends.
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
    """Returns the name of the program's function that a wrapper of hotlease or Dask calls; None if `function` is no such
    wrapper."""
    from hotlease import _names

    return _names.of_call(function, arguments) if _names.is_wrapper(function) else None
