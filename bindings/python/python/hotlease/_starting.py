"""Times of an executor's start: `Executor.cold_start`."""

from __future__ import annotations

from typing import NamedTuple, Optional


class ColdStart(NamedTuple):
    """Seconds of each step of a lease's start; with several workers, of the slowest worker. `None`: there was no such
    step.

    Each step is measured in the process that does it. The first call is a further step, which `hotlease explain` shows.
    """

    grant: Optional[float]
    """Request to the agent, and assignment of its workers to the lease."""
    image: Optional[float]
    """Fetching and mounting the environment's image."""
    sandbox: Optional[float]
    """Making the sandbox, or taking one that was prepared, and starting the interpreter in it."""
    boot: Optional[float]
    """Booting the kernel of the worker's virtual machine."""
    interpreter: Optional[float]
    """The interpreter's own start."""
    imports: Optional[float]
    """Imports, until the worker was ready."""
    connect: Optional[float]
    """Until this program had a channel to each worker."""
    total: Optional[float]
    """From the request for the lease until the first task could be sent: more than the sum, because of messages between the steps."""
    warm: int
    """Number of workers that had been started ahead of the lease."""
    cold: int
    """Number of workers that had to be started."""
    why: str
    """Why workers had to be started, and whether some were forked from a zygote. Empty if neither was the case."""
