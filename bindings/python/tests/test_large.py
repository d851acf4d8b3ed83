"""Arguments and results that do not fit a ring entry, in streams and next to deaths of workers."""

import os
import time

import pytest
import tasks

import hotlease

numpy = pytest.importorskip("numpy")


def test_every_result_of_a_stream_of_short_tasks_arrives_though_none_fits_its_entry(executor):
    # 16 KB each, twice what fits: the worker is hundreds of them ahead of the client.
    executor.submit(tasks.ones, 2).result(60)
    results = list(executor.map(tasks.counted, range(2000), timeout=120))
    assert [len(result) for result in results] == [2000] * 2000
    assert [int(result[0]) for result in results] == list(range(2000)), "each the result of its own task"


def test_unread_results_do_not_use_up_the_descriptors_of_the_process(executor):
    before = len(os.listdir("/proc/self/fd"))
    futures = [executor.submit(tasks.counted, n) for n in range(1500)]
    futures[-1].result(120)
    opened = len(os.listdir("/proc/self/fd")) - before
    assert opened < 300, f"{opened} more descriptors are open for results of 16 KB that nobody has read"
    assert all(int(future.result(60)[0]) == n for n, future in enumerate(futures))
