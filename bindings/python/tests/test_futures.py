"""Objects that futures keep alive, and threads in which callbacks of futures run."""

import gc
import threading
import weakref

import pytest
import tasks


class Marker:
    pass


def test_a_future_whose_exception_has_a_frame_with_the_future_is_collected(executor):
    def fail():
        marker = Marker()
        future = executor.submit(tasks.fail, "expected")
        with pytest.raises(ValueError):
            future.result(60)
        assert future.exception() is not None
        return weakref.ref(marker), weakref.ref(future)

    marker, future = fail()
    gc.collect()
    assert marker() is None and future() is None, "future, exception, traceback and frame keep each other alive"


def test_a_future_whose_result_has_the_future_is_collected(executor):
    def keep():
        marker = Marker()
        future = executor.submit(tasks.listed)
        future.result(60).extend([future, marker])
        return weakref.ref(marker)

    marker = keep()
    gc.collect()
    assert marker() is None, "future and result keep each other alive"


@pytest.mark.parametrize("of_its_own", [False, True], ids=["of another", "of its own"])
def test_a_thread_that_waits_for_a_result_runs_no_callback(executor, of_its_own):
    """Otherwise there would be a deadlock if the thread holds a lock that the callback takes."""
    lock = threading.Lock()
    called = threading.Event()
    ran = []

    def call(_):
        got = lock.acquire(timeout=20)
        ran.append((got, threading.current_thread() is main))
        if got:
            lock.release()
        called.set()

    main = threading.current_thread()
    for _ in range(20):
        called.clear()
        other = executor.submit(tasks.add, 1, 1)
        own = executor.submit(tasks.sleep, 0.01)
        (own if of_its_own else other).add_done_callback(call)
        with lock:
            assert own.result(60) == 0.01
        assert called.wait(60)
        assert ran[-1][0], "the thread that waits for the result has the lock that the callback waits for"
    if of_its_own:
        assert not all(in_main for _, in_main in ran), "callbacks run in a thread of the executor's"
