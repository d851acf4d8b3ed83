"""What futures keep alive, and in which threads their callbacks run."""

import gc
import threading
import time
import weakref

import pytest
import tasks

import hotlease


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
