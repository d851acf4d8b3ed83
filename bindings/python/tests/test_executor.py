"""The guarantees of `concurrent.futures.Executor`, on the real platform."""

import collections
import concurrent.futures
import functools
import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest
import tasks

import hotlease


def run(script, **environment):
    """Runs a separate program; returns the completed process."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=os.path.dirname(__file__),
        env={**os.environ, **environment},
    )


def test_submit_returns_the_result_of_the_call(executor):
    assert executor.submit(tasks.add, 1, 2, c=3).result(60) == 6
    assert executor.submit(tasks.add, "a", b="b", c="c").result(60) == "abc"
    assert isinstance(executor, concurrent.futures.Executor)
    assert isinstance(executor.submit(abs, -1), concurrent.futures.Future)


def test_tasks_run_in_another_process(executor):
    assert executor.submit(tasks.pid).result(60) != os.getpid()


@pytest.mark.parametrize(
    "value",
    [None, True, -1, 2**40, 2**100, 1.5, "ä" * 300, b"\0" * 5000, (1, ("a", b"b")), [1, {"a": {2, 3}}], "\ud800"],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back_as_they_went(executor, value):
    result = executor.submit(tasks.concat, (value,), ()).result(60)
    assert result == (value,) and type(result[0]) is type(value)


@pytest.mark.parametrize("size", [8000, 8200, 100_000, 5_000_000])
def test_large_arguments_and_results_come_back_as_they_went(executor, size):
    value = os.urandom(size)
    assert executor.submit(tasks.concat, value, b"end").result(60) == value + b"end"


def test_map_gives_results_in_order_and_takes_several_iterables(executor):
    assert list(executor.map(tasks.add, range(100), range(100, 200))) == [100 + 2 * n for n in range(100)]
    assert list(executor.map(tasks.add, [], [])) == []


@pytest.mark.parametrize("chunksize", [2, 7, 1000])
def test_map_in_chunks_gives_what_map_gives(executor, chunksize):
    assert list(executor.map(pow, range(50), [2] * 50, chunksize=chunksize)) == [n * n for n in range(50)]
    with pytest.raises(ValueError):
        executor.map(pow, [], chunksize=0)


def test_map_with_a_buffer_reads_its_input_as_results_are_drawn(executor):
    drawn = []

    def numbers():
        for n in range(100):
            drawn.append(n)
            yield n

    results = executor.map(abs, numbers(), buffersize=4)
    assert len(drawn) == 4, "it must submit a buffer full, and no more"
    assert next(results) == 0
    assert len(drawn) == 5
    assert list(results) == list(range(1, 100))


def test_map_raises_what_a_task_raises_where_its_result_would_be(executor):
    results = executor.map(tasks.fail, ["first"])
    with pytest.raises(ValueError, match="first"):
        next(results)


def test_map_gives_up_at_its_timeout(executor, tmp_path):
    gate = tmp_path / "gate"
    try:
        with pytest.raises(concurrent.futures.TimeoutError):
            list(executor.map(tasks.wait_for, [str(tmp_path), str(gate)], timeout=0.5))
    finally:
        gate.touch()


def test_an_exception_comes_with_the_traceback_of_the_worker(executor):
    future = executor.submit(tasks.fail, "on purpose")
    with pytest.raises(ValueError, match="on purpose") as raised:
        future.result(60)
    assert "in fail" in str(raised.value.__cause__), "the cause must show where it was raised"
    assert future.exception() is raised.value
    assert executor.submit(abs, -1).exception(60) is None


def test_result_and_exception_give_up_at_their_timeout(executor, tmp_path):
    gate = tmp_path / "gate"
    future = executor.submit(tasks.wait_for, str(gate))
    try:
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(timeout=0.1)
        with pytest.raises(concurrent.futures.TimeoutError):
            future.exception(timeout=0)
        assert not future.done()
    finally:
        gate.touch()
    assert future.result(60) == str(gate)


def test_a_task_that_has_not_started_can_be_cancelled_and_does_not_run(executor, tmp_path):
    gate = tmp_path / "gate"
    first = executor.submit(tasks.wait_for, str(gate))
    others = [executor.submit(tasks.mark, str(tmp_path / "ran")) for _ in range(2000)]
    last = others[-1]
    assert last.cancel() and last.cancelled() and last.done() and not last.running()
    assert last.cancel(), "cancelling again changes nothing"
    with pytest.raises(concurrent.futures.CancelledError):
        last.result()
    with pytest.raises(concurrent.futures.CancelledError):
        last.exception()
    called = []
    last.add_done_callback(called.append)
    assert called == [last]
    try:
        assert first.running() and not first.cancel(), "what was sent cannot be cancelled"
    finally:
        gate.touch()
    assert first.result(60) == str(gate)
    assert not first.cancel(), "what has ended cannot be cancelled"
    left = [future for future in others if not future.cancelled()]
    assert not concurrent.futures.wait(left, 60).not_done
    assert os.path.getsize(tmp_path / "ran") == len(left)


def test_callbacks_are_called_once_whenever_they_were_added(executor, tmp_path, eventually):
    gate = tmp_path / "gate"
    future = executor.submit(tasks.wait_for, str(gate))
    called = []
    future.add_done_callback(called.append)
    future.add_done_callback(lambda future: 1 / 0)  # logged, and affects nothing else
    future.add_done_callback(called.append)
    assert called == []
    gate.touch()
    eventually(lambda: len(called) == 2, "both callbacks were called")
    future.add_done_callback(called.append)
    assert called == [future] * 3


def test_wait_and_as_completed_see_futures_end(executor, tmp_path):
    gate = tmp_path / "gate"
    quick = [executor.submit(abs, n) for n in range(50)]
    slow = executor.submit(tasks.wait_for, str(gate))
    done, waiting = concurrent.futures.wait([*quick, slow], return_when=concurrent.futures.FIRST_COMPLETED)
    assert done and slow in waiting
    assert not concurrent.futures.wait(quick, timeout=60).not_done
    done, waiting = concurrent.futures.wait([*quick, slow], timeout=0.2)
    assert waiting == {slow}
    gate.touch()
    assert set(concurrent.futures.as_completed([*quick, slow], timeout=60)) == {*quick, slow}
    failing = executor.submit(tasks.fail, "x")
    never = executor.submit(tasks.sleep, 0.5)
    done, _ = concurrent.futures.wait([failing, never], return_when=concurrent.futures.FIRST_EXCEPTION)
    assert failing in done


def test_futures_of_two_kinds_can_be_waited_for_together(executor):
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        mixed = [pool.submit(tasks.add, n) for n in range(200) for pool in (executor, threads)]
        assert len(concurrent.futures.wait(mixed, timeout=60).done) == 400


def test_many_threads_may_use_an_executor_at_once(executor):
    wrong = []

    def work(thread):
        for n in range(300):
            if executor.submit(tasks.add, thread, n).result(60) != thread + n:
                wrong.append((thread, n))

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(8)]
    [thread.start() for thread in threads]
    [thread.join(120) for thread in threads]
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    assert wrong == []


def test_a_shutdown_runs_all_tasks_and_accepts_no_more(platform):
    executor = hotlease.Executor(1)
    futures = [executor.submit(tasks.add, n) for n in range(1000)]
    executor.shutdown()
    assert all(future.done() for future in futures), "shutdown must wait for what was submitted"
    assert [future.result() for future in futures] == list(range(1000))
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(abs, 1)
    executor.shutdown()


def test_a_shutdown_can_cancel_what_waits(platform, tmp_path):
    executor = hotlease.Executor(1)
    gate = tmp_path / "gate"
    first = executor.submit(tasks.wait_for, str(gate))
    others = [executor.submit(tasks.sleep, 0.01) for _ in range(500)]
    executor.shutdown(wait=False, cancel_futures=True)
    gate.touch()
    executor.shutdown(wait=True)
    assert first.result() == str(gate), "what was running must end"
    assert sum(future.cancelled() for future in others) > 400
    assert all(future.done() for future in others)


def test_a_dropped_executor_still_runs_what_was_submitted(platform):
    executor = hotlease.Executor(1)
    reference = weakref.ref(executor)
    future = executor.submit(tasks.sleep, 0.2)
    del executor
    gc.collect()
    assert reference() is None
    assert future.result(60) == 0.2


def test_futures_that_the_program_drops_cost_nothing_later(executor, eventually):
    for _ in range(20_000):
        executor.submit(abs, 1)
    eventually(lambda: executor._pending() == 0, "all tasks have ended")
    assert executor.submit(abs, -3).result(60) == 3


def test_an_initializer_runs_in_each_worker_before_any_task(platform):
    with hotlease.Executor(1, initializer=tasks.set_state, initargs=("prepared",)) as executor:
        assert executor.submit(tasks.get_state).result(60) == "prepared"


def test_a_failing_initializer_breaks_the_executor_and_says_why(platform):
    executor = hotlease.Executor(1, initializer=tasks.fail, initargs=("bad start",))
    with pytest.raises(concurrent.futures.BrokenExecutor) as raised:
        for _ in range(2000):
            executor.submit(tasks.sleep, 0.01).result(60)
    assert "bad start" in str(raised.value)
    executor.shutdown()


def test_a_program_that_ends_with_tasks_pending_runs_them_first(platform, tmp_path):
    done = run(
        f"""
        import hotlease, tasks
        executor = hotlease.Executor(1)
        for _ in range(20):
            executor.submit(tasks.mark, {str(tmp_path / "ran")!r})
        """
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ran").read_text() == "x" * 20


def test_a_program_that_ends_runs_what_was_submitted_to_an_executor_that_it_dropped(platform, tmp_path):
    done = run(
        f"""
        import gc, hotlease, tasks
        executor = hotlease.Executor(1)
        executor.submit(tasks.sleep, 0.3)
        for _ in range(20):
            executor.submit(tasks.mark, {str(tmp_path / "ran")!r})
        del executor
        gc.collect()
        """
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ran").read_text() == "x" * 20, done.stderr


def test_functions_of_main_and_lambdas_are_sent_by_value(platform):
    done = run(
        """
        import hotlease

        factor = 3

        class Point:
            def __init__(self, x):
                self.x = x

        def scale(point):
            return Point(factor * point.x)

        with hotlease.Executor(1) as executor:
            print(executor.submit(scale, Point(5)).result().x, executor.submit(lambda a: a + factor, 1).result())
        """
    )
    assert done.stdout.split() == ["15", "4"], done.stderr


def test_the_child_of_a_fork_is_told_that_the_executor_is_its_parents(executor, tmp_path):
    gate = tmp_path / "gate"
    waiting = executor.submit(tasks.wait_for, str(gate))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        for use in (lambda: executor.submit(abs, 1), lambda: waiting.result(5)):
            try:
                use()
            except RuntimeError as error:
                text += str(error)
        text += repr(executor)
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        text = told.read()
    assert text.count("make an Executor in this process") == 2
    assert "0 tasks pending" in text, text
    os.waitpid(child, 0)
    gate.touch()
    assert waiting.result(60) == str(gate), "the parent's go on"


def test_ctrl_c_reaches_a_waiting_program_at_once(platform):
    done = run(
        """
        import hotlease, tasks, tempfile, threading, os, signal
        # If these tests were started in the background, SIGINT may be ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        executor = hotlease.Executor(1)
        # The gate is not opened before the interrupt: a wait for the task would never end.
        gate = os.path.join(tempfile.mkdtemp(), "gate")
        future = executor.submit(tasks.wait_for, gate)
        try:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            future.result()
        except KeyboardInterrupt:
            print("interrupted", future.done())
        tasks.mark(gate)
        """
    )
    assert done.stdout.split() == ["interrupted", "False"], done.stderr


def test_closures_are_sent_as_they_are_when_they_are_submitted(executor):
    results = []
    for n in range(5):
        results.append(executor.submit(lambda: n))
    assert [future.result(60) for future in results] == [0, 1, 2, 3, 4]
    held = [1]

    def length():
        return len(held)

    before = executor.submit(length)
    held.append(2)
    assert (before.result(60), executor.submit(length).result(60)) == (1, 2)


def test_objects_that_are_called_are_fresh_for_each_task(executor):
    counter = tasks.Counter()
    assert [executor.submit(counter).result(60) for _ in range(3)] == [1, 1, 1]
    assert [executor.submit(counter.next).result(60) for _ in range(3)] == [1, 1, 1]
    assert executor.submit(functools.partial(tasks.add, 1, c=5), 2).result(60) == 8


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_an_executor_made_right_after_another_one_soon_has_all_of_its_workers(platform, eventually):
    # The manager learns of the released core with the agent's next report. Until then only the other core is free for it.
    for _ in range(4):
        with hotlease.Executor(1) as first:
            assert first.submit(abs, -1).result(60) == 1
        with hotlease.Executor(2, initializer=tasks.set_state, initargs=("ready",)) as second:
            seen = set()
            eventually(lambda: seen.update(second.map(tasks.state_and_pid, range(20))) or len(seen) == 2, "both work")
            assert {state for state, _ in seen} == {"ready"}, "the one that came later was prepared, too"


def test_a_quick_initializer_does_not_have_a_short_task_wait_behind_a_long_one(pair, platform, tmp_path, eventually):
    pair.shutdown()
    prepared, gate = str(tmp_path / "prepared"), str(tmp_path / "gate")
    first, long_gate = str(tmp_path / "first"), str(tmp_path / "long")
    with hotlease.Executor(2, initializer=tasks.dawdle, initargs=(first, gate)) as executor:
        eventually(lambda: executor._slots() == 2, "both workers are there")
        # One worker is prepared, and gets the long task; the other worker is still being prepared.
        long = executor.submit(tasks.mark_and_wait, prepared, long_gate)
        eventually(lambda: os.path.exists(prepared), "the long one runs")
        short = executor.submit(tasks.add, 1, 1)
        tasks.mark(gate)
        try:
            assert short.result(20) == 2, "it waits behind the long one, and the other worker is idle"
            assert not long.done()
        finally:
            tasks.mark(long_gate)
        assert long.result(60) == long_gate


def test_one_long_task_does_not_hold_up_what_is_queued_behind_it(pair, tmp_path):
    gate = tmp_path / "gate"
    long = pair.submit(tasks.wait_for, str(gate))
    others = [pair.submit(tasks.sleep, 0.002) for _ in range(200)]
    done, _ = concurrent.futures.wait(others, timeout=60)
    assert len(done) == 200, "they must go to the other worker"
    assert not long.done()
    gate.touch()
    assert long.result(60) == str(gate)


def test_long_tasks_behind_short_ones_of_the_same_function_are_shared_by_both_workers(pair):
    tried = []
    # A worker that a busy host stops for a while gets fewer tasks: such a try is not counted.
    while sum(len(each) == 2 and min(each) >= 6 for each in tried) < 3:
        assert len(tried) < 9, f"tasks that each worker had, of 20: {tried}"
        concurrent.futures.wait([pair.submit(tasks.sleep_and_tell_pid, 0) for _ in range(500)], timeout=60)
        long = [pair.submit(tasks.sleep_and_tell_pid, 0.02) for _ in range(20)]
        tried.append(list(collections.Counter(future.result(60) for future in long).values()))
