"""Iterator over the results of many tasks."""

from __future__ import annotations

import itertools
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Optional

    from hotlease._executor import Future


def drawn(futures: Iterator[Future[Any]], end: Optional[float], buffersize: Optional[int]) -> Iterator[Any]:
    # The tasks are submitted now, and not when the first result is taken.
    window = deque(futures if buffersize is None else itertools.islice(futures, buffersize))
    return _draw(window, futures, end)


def _draw(window: deque[Future[Any]], more: Iterator[Future[Any]], end: Optional[float]) -> Iterator[Any]:
    try:
        while window:
            # No reference is kept here while the caller works on the result.
            yield _first(window, more, end)
    finally:
        for future in window:
            future.cancel()


def _first(window: deque[Future[Any]], more: Iterator[Future[Any]], end: Optional[float]) -> Any:
    future = window.popleft()
    try:
        result = future.result(None if end is None else end - time.monotonic())
    except BaseException:
        window.appendleft(future)
        raise
    following = next(more, None)
    if following is not None:
        window.append(following)
    return result


def each(lists: Iterator[list[Any]]) -> Iterator[Any]:
    """Yields the items of lists. Removes each item from its list, so that no reference to an item stays here."""
    for some in lists:
        some.reverse()
        while some:
            yield some.pop()
