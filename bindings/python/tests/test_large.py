"""Arguments and results that do not fit into a ring entry, in streams of tasks and while workers die."""

import os
import time

import pytest
import tasks

import hotlease

numpy = pytest.importorskip("numpy")


def test_every_result_of_a_stream_of_short_tasks_arrives_though_none_fits_its_entry(executor):
    # Results of 16 KB, twice the size that fits: the worker is hundreds of results ahead of the client.
    executor.submit(tasks.ones, 2).result(60)
    results = list(executor.map(tasks.counted, range(2000), timeout=120))
    assert [len(result) for result in results] == [2000] * 2000
    assert [int(result[0]) for result in results] == list(range(2000)), "each the result of its own task"


def test_unread_results_do_not_use_up_the_descriptors_of_the_process(executor):
    before = len(os.listdir("/proc/self/fd"))
    futures = [executor.submit(tasks.counted, n) for n in range(1500)]
    futures[-1].result(120)
    opened = len(os.listdir("/proc/self/fd")) - before
    assert opened < 300, f"{opened} more descriptors are open for results of 16 KB that were not read"
    assert all(int(future.result(60)[0]) == n for n, future in enumerate(futures))


def _opened():
    return len(os.listdir("/proc/self/fd"))


def test_large_tasks_that_wait_do_not_use_up_the_descriptors_of_the_process(executor, tmp_path):
    gate = tmp_path / "gate"
    before = _opened()
    blocker = executor.submit(tasks.wait_for, str(gate))
    futures = [executor.submit(tasks.summed, numpy.full(20_000, n)) for n in range(400)]
    opened = _opened() - before
    assert not blocker.done(), "they wait while they are counted"
    gate.touch()
    assert opened < 250, f"{opened} more descriptors are open for 400 arguments of 160 KB that wait"
    assert [int(future.result(60)) for future in futures] == [20_000 * n for n in range(400)]


def test_unread_results_that_are_not_copied_leave_the_process_descriptors(executor):
    before = _opened()
    futures = [executor.submit(tasks.counted, n, 1 << 20) for n in range(160)]
    futures[-1].result(120)
    # 128 buffers in use, and the buffers that the pool keeps.
    assert _opened() - before < 250
    assert all(int(future.result(60)[0]) == n for n, future in enumerate(futures))


def test_a_death_behind_which_large_and_small_tasks_wait_costs_no_slot_and_none_of_them(executor):
    big = numpy.ones(100_000)
    for round in range(4):
        # Short tasks first, so that many tasks are sent ahead.
        list(executor.map(tasks.add, range(300), timeout=60))
        dying = executor.submit(tasks.die_of, big, 4)
        others = []
        for n in range(40):
            others.append((n, executor.submit(tasks.add, n)))
            others.append((100_000, executor.submit(tasks.summed, big)))
        with pytest.raises((hotlease.WorkerDied, hotlease.OutcomeUnknown)):
            dying.result(60)
        assert [future.result(60) for _, future in others] == [value for value, _ in others], round
    assert executor.submit(tasks.add, 1, 1).result(60) == 2


def test_a_poisonous_idempotent_task_with_large_arguments_kills_two_workers_and_no_more(platform, tmp_path):
    path = str(tmp_path / "poison")
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(idempotent=True)) as executor:
        # OutcomeUnknown if the agent, on a loaded host, reports the reason too late.
        with pytest.raises((hotlease.WorkerDied, hotlease.OutcomeUnknown)):
            executor.submit(tasks.mark_and_die, path, numpy.ones(100_000)).result(60)
        assert os.path.getsize(path) == 2, "runs, each the end of a worker"
        assert executor.submit(tasks.add, 1, 1).result(60) == 2


def test_a_large_task_has_its_whole_time_though_it_waits_behind_another_one(platform):
    big = numpy.ones(100_000)
    with hotlease.Executor(1, timeout=6) as executor:
        # Short tasks first, so that all later tasks are sent ahead.
        list(executor.map(tasks.add, range(500), timeout=60))
        # Together these tasks take longer than the timeout; each takes so much less that a busy host does not matter.
        first = [executor.submit(tasks.sleep, 1.1) for _ in range(6)]
        second = executor.submit(tasks.summed_slowly, big, 1.1)
        # Uses the memory of the second task, if this memory is released too early.
        later = executor.submit(tasks.summed, 3 * big)
        assert [task.result(60) for task in first] == [1.1] * 6
        assert (second.result(60), later.result(60)) == (100_000, 300_000)


def test_a_task_that_runs_again_has_its_large_arguments_as_they_were_submitted(platform, tmp_path):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(idempotent=True)) as executor:
        tasks.mark(str(tmp_path / "there"))
        for path in ("there", "not there, and its function known"):
            future = executor.submit(tasks.add_one_and_die_once, numpy.ones(100_000), str(tmp_path / path))
            result = future.result(60)
            assert set(result) == {2.0}, "one was added once to each, not once for each run"


def test_a_task_that_is_tried_again_has_its_large_arguments_as_they_were_submitted(executor, tmp_path):
    again = executor.options(retries=1)
    tasks.mark(str(tmp_path / "there"))
    for path in ("there", "not there, and its function known"):
        result = again.submit(tasks.add_one_and_fail_once, numpy.ones(100_000), str(tmp_path / path)).result(60)
        assert set(result) == {2.0}, "one was added once to each, not once for each try"


def test_a_function_that_keeps_its_large_argument_is_told_and_its_worker_replaced(executor):
    before = executor.submit(tasks.pid).result(60)
    with pytest.raises(RuntimeError, match="kept a large argument"):
        executor.submit(tasks.keep, numpy.ones(100_000)).result(60)
    assert executor.submit(tasks.pid).result(60) != before
    assert executor.submit(tasks.summed, numpy.ones(100_000)).result(60) == 100_000


def test_tasks_sent_to_a_worker_that_is_about_to_leave_run_on_the_next_one(executor, tmp_path):
    big, ran = numpy.ones(100_000), tmp_path / "ran"
    for round in range(10):
        gate = tmp_path / f"gate {round}"
        # Short tasks first, so that other tasks are sent behind the next one.
        list(executor.map(tasks.add, range(200), timeout=60))
        keeping = executor.submit(tasks.wait_and_keep, str(gate), big)
        behind = [executor.submit(tasks.mark_and_return, str(ran), n) for n in range(20)]
        sums = [executor.submit(tasks.summed, big) for _ in range(3)]
        gate.touch()
        with pytest.raises(RuntimeError, match="kept a large argument"):
            keeping.result(60)
        # Tasks are also submitted while the worker leaves.
        behind += [executor.submit(tasks.mark_and_return, str(ran), 20 + n) for n in range(20)]
        assert [future.result(60) for future in behind] == list(range(40)), f"round {round}"
        assert [future.result(60) for future in sums] == [100_000] * 3, f"round {round}"
    assert ran.stat().st_size == 400, "each ran once"


def test_a_task_that_runs_again_has_its_large_results_of_others_as_they_were(platform, tmp_path):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(idempotent=True)) as executor:
        ones = executor.submit(tasks.ones, 100_000)
        result = executor.submit(tasks.add_one_and_die_once, ones, str(tmp_path / "once")).result(60)
        assert set(result) == {2.0}, "one was added once to each, not once for each run"


def test_a_large_task_starts_at_once_on_an_idle_worker_while_another_one_works(pair, tmp_path):
    gate = tmp_path / "gate"
    big = numpy.ones(100_000)
    # Both workers have the function and are idle; then one worker works, and no result arrives.
    assert pair.submit(tasks.summed, big).result(60) == 100_000
    working = pair.submit(tasks.wait_for, str(gate))
    while not working.running():
        time.sleep(0.001)
    at_once, end = 0, time.monotonic() + 60
    while at_once < 6:
        # After this time the thread of the executor's core sleeps, for 100 ms at a time.
        time.sleep(0.13)
        begin = time.monotonic()
        future = pair.submit(tasks.summed, big)
        while not future.running() and not future.done():
            time.sleep(0.0005)
        # Counts consecutive fast tasks: on a loaded host some tasks take longer, and without a wake-up some are fast by chance.
        at_once = at_once + 1 if time.monotonic() - begin < 0.03 else 0
        assert future.result(60) == 100_000
        assert time.monotonic() < end, "such tasks are sent only when something else wakes the core"
    gate.touch()
    working.result(60)
