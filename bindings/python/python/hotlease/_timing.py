"""Times of a task's phases: `Future.timing`, and the data of `Executor.report`."""

from __future__ import annotations

from typing import NamedTuple, Optional

# submitted, accepted, ready, sent, ended, running, reading, slot, runs, ending: moments and durations in nanoseconds, 0
# if the task did not reach that stage.
Row = tuple[int, int, int, int, int, int, int, int, int, int]

ENDINGS = ("pending", "returned", "raised", "failed", "cancelled")


class Timing(NamedTuple):
    """Seconds of each phase of a task; `None` if the task has not reached the phase, or if the time is not known.

    For a task that was run more than once, `queued` and later phases are those of the last run. All phases except
    `running` are measured in the program.
    """

    submitted: float
    """When `submit` was called, on the clock of `time.monotonic`."""
    submitting: Optional[float]
    """From there until the executor had accepted the task: pickling arguments, and waiting for room (``max_pending``)."""
    waiting: Optional[float]
    """From there until the results that the task needs were available."""
    queued: Optional[float]
    """From there until the task was sent to a worker."""
    travelling: Optional[float]
    """From there until the program saw the result, without `running`: the way to the worker and back, waiting behind other
    tasks that were sent to the same worker, and pickling in the worker."""
    running: Optional[float]
    """Time in the function, as the worker measured it (exact to a ten-millionth; after an exception, to a 500,000th)."""
    reading: Optional[float]
    """Making objects of the result, when a caller first asked for it."""
    worker: Optional[int]
    """Number of the executor's worker that ran the task: 0, 1, ..."""
    runs: int
    """How often the task was sent to run. A task that was taken back for an idle worker before it ran counts once."""
    ending: str
    """``pending``, ``returned``, ``raised``, ``failed`` (without an answer of its own) or ``cancelled``."""

    @property
    def total(self) -> Optional[float]:
        """Seconds from the call of `submit` until this process saw the task's result; `None` while the task is pending."""
        if self.ending == "pending":
            return None
        phases = (self.submitting, self.waiting, self.queued, self.travelling, self.running)
        return sum(phase for phase in phases if phase is not None)


def timing(row: Row) -> Timing:
    """Makes a `Timing` of a row of the extension module."""
    submitted, accepted, ready, sent, ended, running, reading, slot, runs, ending = row

    def between(begin: int, end: int) -> Optional[float]:
        return (end - begin) / 1e9 if begin and end else None

    was_sent = sent >= ready > 0
    return Timing(
        submitted=submitted / 1e9,
        submitting=between(submitted, accepted),
        # Until a task is sent or has ended, its row does not show whether it is ready or still waits.
        waiting=between(accepted, ready) if was_sent or ending else None,
        queued=between(ready, sent) if was_sent else None,
        travelling=max(0.0, (ended - sent - running) / 1e9) if was_sent and ended and running else None,
        running=running / 1e9 if running else None,
        reading=reading / 1e9 if reading else None,
        worker=slot if runs else None,
        runs=runs,
        ending=ENDINGS[ending],
    )
