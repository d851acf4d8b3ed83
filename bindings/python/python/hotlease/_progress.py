"""Progress bars of tqdm: in terminals, and in notebooks as widgets."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any, Optional, TypeVar

if TYPE_CHECKING:
    from hotlease._executor import Executor

T = TypeVar("T")

# Seconds between two updates of an executor's bar.
_PAUSE = 0.1


def tqdm() -> Any:
    """Returns the class of bars for the place where the program runs, a terminal or a notebook.

    Raises
    ------
    ImportError
        If tqdm is missing.
    """
    import warnings

    try:
        with warnings.catch_warnings():
            # Hides the warning that the notebook's widgets are missing; tqdm falls back by itself.
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm as found  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from error
    return found


def total(iterables: tuple[Iterable[Any], ...]) -> Optional[int]:
    """Returns how many calls `map` will make, if all iterables have a length."""
    lengths = [len(each) for each in iterables if isinstance(each, Sized)]
    return min(lengths) if lengths and len(lengths) == len(iterables) else None


def drawn(bar: Any, results: Iterator[T], calls: Optional[int]) -> Iterator[T]:
    """Returns an iterator over the same results, and a bar counts them as they are taken."""
    return _drawn(bar(total=calls, unit="call"), results)


def _drawn(bar: Any, results: Iterator[T]) -> Iterator[T]:
    with bar:
        # While the caller works on a result, no reference to it is kept here; tqdm's own iterator would keep a reference.
        while some := list(itertools.islice(results, 1)):
            bar.update()
            yield some.pop()


class Bar:
    """Bar of an executor: how many of the submitted tasks have ended. It polls ten times a second, so that
    tasks have no additional cost."""

    def __init__(self, executor: Executor) -> None:
        self._bar = tqdm()(total=0, unit="task")
        self._executor = weakref.ref(executor)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hotlease-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Shows the last state, and ends the bar."""
        self._is_over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._look() and not self._is_over.wait(_PAUSE):
            pass
        self._look()
        self._bar.close()

    def _look(self) -> bool:
        executor = self._executor()
        if executor is None:
            return False
        submitted = executor._submitted()
        self._bar.total = submitted
        self._bar.n = max(self._bar.n, submitted - executor._pending())
        self._bar.refresh()
        return True
