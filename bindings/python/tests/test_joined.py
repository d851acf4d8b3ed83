"""Equal tasks with `memo` that are pending at the same time: one task runs, and each task gets its own copy of the result."""

import concurrent.futures
import os

import pytest
import tasks

import hotlease


@pytest.fixture
def gate(tmp_path):
    """A file that tasks wait for."""
    return tmp_path / "gate"


@pytest.fixture
def blocked(executor, gate):
    """Returns an executor whose only worker waits for the gate: later tasks wait in the queue."""
    first = executor.submit(tasks.wait_for, str(gate))
    # Tasks behind the first task, which may already be sent to its worker.
    behind = [executor.submit(tasks.wait_for, str(gate)) for _ in range(3)]
    yield executor
    gate.touch()
    concurrent.futures.wait([first, *behind], 60)


def ran(path):
    return os.path.getsize(path) if os.path.exists(path) else 0


def test_equal_tasks_are_computed_once_though_none_has_ended(pair, gate, tmp_path):
    path, memo = str(tmp_path / "ran"), pair.options(memo=True)
    equal = [memo.submit(tasks.mark_and_wait, path, str(gate)) for _ in range(50)]
    other = memo.submit(tasks.add, 1, 2)
    plain = pair.submit(tasks.concat, equal[-1], "!")
    assert other.result(60) == 3, "they keep no worker from others"
    assert not any(future.done() for future in equal)
    gate.touch()
    assert [future.result(60) for future in equal] == [str(gate)] * 50 and plain.result(60) == f"{gate}!"
    assert ran(path) == 1


def test_tasks_that_get_equal_by_what_they_need_are_computed_once(pair, gate, tmp_path):
    path, memo = str(tmp_path / "ran"), pair.options(memo=True)
    needed = [pair.submit(tasks.concat, pair.submit(tasks.wait_for, str(gate)), end) for end in ("?", "?", "!")]
    equal = [memo.submit(tasks.mark_and_return, path, future) for future in needed]
    gate.touch()
    assert [future.result(60) for future in equal] == [f"{gate}?", f"{gate}?", f"{gate}!"]
    assert ran(path) == 2


def test_more_equal_tasks_than_the_kernel_has_credits_keep_no_other_waiting(pair, gate, tmp_path):
    path, memo = str(tmp_path / "ran"), pair.options(memo=True)
    equal = [memo.submit(tasks.mark_and_wait, path, str(gate)) for _ in range(10_000)]
    others = [memo.submit(tasks.add, n) for n in range(10)]
    assert [future.result(60) for future in others] == list(range(10)) and not equal[0].done()
    assert all(future.cancel() for future in equal[1:9000])
    others = [memo.submit(tasks.add, n) for n in range(10, 20)]
    assert [future.result(60) for future in others] == list(range(10, 20))
    gate.touch()
    assert {future.result(60) for future in [equal[0], *equal[9000:]]} == {str(gate)}
    assert ran(path) == 1 and pair._pending() == 0


def test_a_joined_future_has_a_result_although_the_first_is_cancelled(blocked, gate, tmp_path):
    path, memo = str(tmp_path / "ran"), blocked.options(memo=True)
    first, second, third, fourth = [memo.submit(tasks.mark_and_return, path, 5) for _ in range(4)]
    needs = blocked.submit(tasks.add, second, 1)
    assert third.cancel(), "one that waits can be cancelled"
    assert first.cancel(), "and so can the one that the others wait for"
    gate.touch()
    # A short timeout: if the task is not passed on to the second future, no future ever has a result.
    assert second.result(10) == fourth.result(10) == 5 and needs.result(10) == 6
    assert first.cancelled() and third.cancelled()
    assert ran(path) == 1


def test_all_of_them_cancelled_run_nothing(blocked, gate, tmp_path):
    path, memo = str(tmp_path / "ran"), blocked.options(memo=True)
    equal = [memo.submit(tasks.mark_and_return, path, 5) for _ in range(5)]
    assert all(future.cancel() for future in equal)
    gate.touch()
    assert memo.submit(tasks.add, 1).result(60) == 1
    assert ran(path) == 0 and blocked._pending() == 0
    assert memo.submit(tasks.mark_and_return, path, 5).result(60) == 5, "no task waits for the first computation any more"


def test_a_failure_is_its_own_and_the_next_one_is_run(blocked, gate, tmp_path):
    path, memo = str(tmp_path / "ran"), blocked.options(memo=True)
    first, second, third = [memo.submit(tasks.mark_and_fail, path, 1) for _ in range(3)]
    gate.touch()
    assert isinstance(first.exception(60), OSError)
    assert second.result(60) == third.result(60) == 2
    assert ran(path) == 2


def test_a_joined_future_has_the_result_of_a_retry_or_retries_itself(blocked, gate, tmp_path):
    path, memo = str(tmp_path / "ran"), blocked.options(memo=True, retries=1)
    equal = [memo.submit(tasks.mark_and_fail, path, 1) for _ in range(3)]
    often = str(tmp_path / "often")
    failing = [memo.submit(tasks.mark_and_fail, often, 3) for _ in range(3)]
    gate.touch()
    assert [future.result(60) for future in equal] == [2] * 3 and ran(path) == 2
    assert isinstance(failing[0].exception(60), OSError), "it was tried twice"
    assert failing[1].result(60) == failing[2].result(60) == 4, "the next one's second try was the fourth"


def test_the_death_of_a_worker_fails_only_its_own_task(blocked, gate, tmp_path):
    path, memo = str(tmp_path / "ran"), blocked.options(memo=True)
    first, second, third = [memo.submit(tasks.die_once, path) for _ in range(3)]
    gate.touch()
    assert isinstance(first.exception(60), hotlease.WorkerDied)
    assert second.result(60) == third.result(60) == "survived"


def test_a_task_of_higher_priority_does_not_wait_behind_others(blocked, gate, tmp_path):
    path = str(tmp_path / "order")
    low = blocked.options(memo=True, priority=-1).submit(tasks.append_to, path, "equal")
    usual = [blocked.submit(tasks.append_to, path, "usual") for _ in range(5)]
    high = blocked.options(memo=True, priority=1).submit(tasks.append_to, path, "equal")
    again = blocked.options(memo=True).submit(tasks.append_to, path, "equal")
    gate.touch()
    concurrent.futures.wait([low, *usual, high, again], 60)
    assert low.result() == high.result() == again.result() == "equal"
    assert open(path).read().split() == ["equal"] + ["usual"] * 5


def test_an_overtaken_task_runs_if_the_other_is_cancelled(blocked, gate, tmp_path):
    path = str(tmp_path / "order")
    low = blocked.options(memo=True, priority=-1).submit(tasks.append_to, path, "equal")
    high = blocked.options(memo=True, priority=1).submit(tasks.append_to, path, "equal")
    assert high.cancel()
    gate.touch()
    assert low.result(60) == "equal" and open(path).read().split() == ["equal"]


def test_each_has_a_large_result_of_its_own(blocked, gate):
    numpy = pytest.importorskip("numpy")
    memo = blocked.options(memo=True)
    futures = [memo.submit(tasks.ones, 200_000) for _ in range(3)]
    gate.touch()
    first, *others = [future.result(60) for future in futures]
    first *= 7
    assert all(numpy.array_equal(other, numpy.ones(200_000)) for other in others), "what one writes to is no other's"
    assert memo.submit(tasks.ones, 200_000).result(60).sum() == 200_000


def test_a_checkpoint_has_one_record_of_them(platform, gate, tmp_path):
    sizes = []
    for number in (1, 20):
        file = tmp_path / f"{number}.checkpoint"
        with hotlease.Executor(1, options=hotlease.ExecutorOptions(memo=True, checkpoint=file)) as executor:
            blocking = executor.options(memo=False).submit(tasks.wait_for, str(gate))
            futures = [executor.submit(tasks.add, 20, 1) for _ in range(number)]
            gate.touch()
            assert blocking.result(60) and {future.result(60) for future in futures} == {21}
        gate.unlink()
        sizes.append(os.path.getsize(file))
    assert sizes[0] == sizes[1]


def test_a_shutdown_cancels_those_that_wait_or_waits_for_them(platform, gate, tmp_path):
    for cancels in (True, False):
        executor = hotlease.Executor(1)
        memo, path = executor.options(memo=True), str(tmp_path / f"{cancels}")
        blocking = executor.submit(tasks.mark_and_wait, str(tmp_path / "blocking"), str(gate))
        behind = [executor.submit(tasks.wait_for, str(gate)) for _ in range(3)]
        equal = [memo.submit(tasks.mark_and_return, path, 1) for _ in range(9)]
        executor.shutdown(wait=False, cancel_futures=cancels)
        gate.touch()
        executor.shutdown()
        concurrent.futures.wait([blocking, *behind], 60)
        assert [future.cancelled() for future in equal] == [cancels] * 9
        assert ran(path) == (0 if cancels else 1)
        gate.unlink()


def test_a_broken_executor_ends_those_that_wait(platform, gate, tmp_path):
    executor = hotlease.Executor(1, initializer=tasks.die_if_there, initargs=(str(tmp_path / "broken"),))
    memo = executor.options(memo=True)
    assert executor.submit(tasks.add, 1).result(60) == 1, "the first worker was prepared"
    dies = memo.submit(tasks.wait_and_die, str(gate))
    equal = [memo.submit(tasks.wait_and_die, str(gate)) for _ in range(5)]
    (tmp_path / "broken").touch()
    gate.touch()
    assert isinstance(dies.exception(60), hotlease.WorkerDied)
    assert all(isinstance(future.exception(60), concurrent.futures.BrokenExecutor) for future in equal)
    executor.shutdown()


def test_a_joined_future_is_timed(platform, gate, tmp_path):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(memo=True, timing=True)) as executor:
        futures = [executor.submit(tasks.mark_and_wait, str(tmp_path / "ran"), str(gate)) for _ in range(2)]
        gate.touch()
        assert futures[0].result(60) == futures[1].result(60)
        took = futures[1].timing
        assert took.ending == "returned" and took.runs == 0 and took.waiting > 0 and took.running is None
