"""Awaiting of futures in Python 3.10 and 3.11, whose asyncio waits for ever for a task that raised `StopIteration`."""

from __future__ import annotations

import asyncio
import concurrent.futures
from concurrent.futures import Future
from typing import Any


def awaitable(future: Future[Any]) -> asyncio.Future[Any]:
    """Returns a future of the running loop that ends as `future` does. Cancelling it cancels `future`."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[Any] = loop.create_future()

    def end() -> None:
        if waiting.done():
            return
        if future.cancelled():
            waiting.cancel()
            return
        error = future.exception()
        if error is None:
            waiting.set_result(future.result())
        elif isinstance(error, StopIteration):
            # Python 3.12 does the same: a coroutine cannot raise StopIteration.
            raised = RuntimeError("the task raised StopIteration, which no coroutine can raise")
            raised.__cause__ = error
            waiting.set_exception(raised)
        elif type(error) is concurrent.futures.TimeoutError:
            # In Python 3.10 this class is not asyncio's.
            waiting.set_exception(asyncio.TimeoutError(*error.args))
        else:
            waiting.set_exception(error)

    def has_ended(_: Future[Any]) -> None:
        try:
            loop.call_soon_threadsafe(end)
        except RuntimeError:
            # The loop is closed: the program waits no longer.
            pass

    def was_cancelled(_: asyncio.Future[Any]) -> None:
        if waiting.cancelled():
            future.cancel()

    waiting.add_done_callback(was_cancelled)
    future.add_done_callback(has_ended)
    return waiting
