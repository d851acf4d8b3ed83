"""What tasks print, on its way to the program: the streams of a worker. Never imported by programs."""

from __future__ import annotations

import io
import sys

from hotlease import _core
from hotlease._hook import Hook

# As type checkers know it: `typing` takes as long to import as all that a worker imports here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_NAME_MAX = 100


def begin(level: int) -> None:
    """From now on replies take along what is printed, and what is logged at this level and above."""
    io.BufferedIOBase.register(_core.Tee)
    for number, name in enumerate(("stdout", "stderr"), 1):
        raw = io.FileIO(number, "w", closefd=False)
        raw.name = f"<{name}>"
        file = io.BufferedWriter(raw)
        tee: Any = _core.Tee(number, file)
        # What is written goes through at once: there it is kept until its line ends.
        stream: Any = io.TextIOWrapper(tee, "utf-8", "backslashreplace", line_buffering=True, write_through=True)
        stream.mode = "w"
        getattr(sys, name).flush()
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if "logging" in sys.modules:
        _keep_records(level, file)
    else:
        # To import it takes as long as a worker's start.
        Hook("logging", lambda _: _keep_records(level, file))


def _keep_records(level: int, file: Any) -> None:
    from hotlease import _records

    _records.keep(level, file)


def name(function: Any, arguments: tuple[Any, ...]) -> Optional[str]:
    """What a function is called that another one, which the program does not know of, has called; None: there is none."""
    where = getattr(function, "__module__", None), getattr(function, "__name__", None)
    if where == ("dask.local", "batch_execute_tasks"):
        return str(sys.modules["dask.utils"].key_split(arguments[0][0][0]))
    if where[0] != "hotlease._remote":
        return None
    function = arguments[0]
    # A batch of joblib's: functions with their arguments.
    batch = getattr(function, "items", None)
    if type(batch) is list and batch:
        function = batch[0][0]
    function = getattr(function, "func", function)
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)[:_NAME_MAX]
