"""Futures as arguments: dependencies, and their failures."""

import concurrent.futures
import os
import pickle
import subprocess
import sys
import textwrap
import threading

import pytest
import tasks

import hotlease


@pytest.fixture
def gate(tmp_path):
    """A file that tasks wait for."""
    return tmp_path / "gate"


def chain(executor, length, start=0):
    futures = [executor.submit(tasks.add, start, 1)]
    for _ in range(length - 1):
        futures.append(executor.submit(tasks.add, futures[-1], 1))
    return futures


def test_a_future_stands_for_its_result_wherever_it_is_an_argument(executor):
    one, two = executor.submit(tasks.add, 1), executor.submit(tasks.add, 2)
    assert executor.submit(tasks.add, one, two, c=one).result(60) == 4
    nested = executor.submit(tasks.listed, [one, (two, {"k": [one]})], {two: one}, deep=((one,),), n={one})
    assert nested.result(60) == [[1, (2, {"k": [1]})], {2: 1}, {"deep": ((1,),), "n": {1}}]
    assert executor.submit(tasks.held, tasks.Holder(two)).result(60) == 2
    assert executor.submit(tasks.listed, one, one).result(60) == [1, 1, {}]


def test_a_future_that_is_done_stands_for_its_result_too(executor):
    waited, seen = executor.submit(tasks.listed, 1), executor.submit(tasks.listed, 2)
    assert seen.result(60) == [2, {}]
    concurrent.futures.wait([waited], 60)
    assert executor.submit(tasks.concat, waited, seen).result(60) == [1, {}, 2, {}]
    assert executor.submit(tasks.total, [[waited, seen][0]][0:0] + [1]).result(60) == 1
    assert waited.result(60) == [1, {}], "its own result is still there"
    assert executor.submit(tasks.listed, [seen], (waited,)).result(60) == [[[2, {}]], ([1, {}],), {}]


def test_a_long_chain_gives_its_sum(executor):
    futures = chain(executor, 1500)
    assert futures[-1].result(120) == 1500
    assert [future.result(60) for future in futures[:100]] == list(range(1, 101))


def test_a_tree_of_adds_gives_its_sum(executor):
    level = [executor.submit(tasks.add, n) for n in range(256)]
    while len(level) > 1:
        level = [executor.submit(tasks.add, a, b) for a, b in zip(level[::2], level[1::2])]
    assert level[0].result(120) == sum(range(256))


def test_dependencies_may_be_many_to_one_and_one_to_many(executor):
    first = executor.submit(tasks.add, 7)
    many = [executor.submit(tasks.add, first, n) for n in range(1500)]
    assert executor.submit(tasks.total, many).result(120) == sum(7 + n for n in range(1500))


def test_a_diamond_waits_for_both_sides(executor, gate):
    top = executor.submit(tasks.wait_for, str(gate))
    left, right = executor.submit(tasks.concat, top, "l"), executor.submit(tasks.concat, top, "r")
    bottom = executor.submit(tasks.concat, left, right)
    assert not bottom.done()
    gate.touch()
    assert bottom.result(60) == f"{gate}l{gate}r"


def test_large_results_get_to_tasks_that_need_them_and_each_has_its_own(executor):
    numpy = pytest.importorskip("numpy")
    array = executor.submit(tasks.ones, 200_000)
    twice = executor.submit(tasks.scaled, array, 2.0)
    thrice = executor.submit(tasks.scaled, [array][0], 3.0)
    both = executor.submit(tasks.listed, twice, {"thrice": thrice})
    assert numpy.array_equal(twice.result(60), numpy.full(200_000, 2.0))
    assert numpy.array_equal(array.result(60), numpy.ones(200_000)), "a task wrote to a copy of its own"
    first, rest = both.result(60)[0], both.result()[1]["thrice"]
    assert first.sum() == 400_000 and rest.sum() == 600_000


@pytest.mark.parametrize("size", [5000, 8100, 8192, 40_000, 1_000_000])
def test_results_of_every_size_are_passed_on_as_they_are(executor, size):
    value = os.urandom(size)
    first = executor.submit(tasks.concat, value, b"")
    assert executor.submit(tasks.concat, executor.submit(tasks.concat, first, first), b"!").result(60) == 2 * value + b"!"


def test_a_failure_is_told_along_the_chain(executor):
    read = executor.submit(tasks.fail, "no such file")
    parse = executor.submit(tasks.add, read, 1)
    draw = executor.submit(tasks.listed, [parse])
    with pytest.raises(hotlease.DependencyError) as raised:
        draw.result(60)
    assert str(raised.value) == "listed was not run: it needs add, which needs fail, which failed: ValueError: no such file"
    assert raised.value.ran is False and raised.value.chain == ("listed", "add", "fail")
    cause = raised.value.__cause__
    assert isinstance(cause, ValueError) and str(cause) == "no such file"
    assert "in fail" in str(cause.__cause__), "the worker's traceback is still there"
    late = executor.submit(tasks.concat, draw, "")
    with pytest.raises(hotlease.DependencyError, match="concat was not run: it needs listed, which needs add, which needs fail"):
        late.result(60)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.chain, str(again)) == (raised.value.chain, str(raised.value))


def test_a_long_chain_fails_at_once_and_names_the_first_and_the_last(executor):
    futures = [executor.submit(tasks.fail, "root")]
    for _ in range(3000):
        futures.append(executor.submit(tasks.add, futures[-1]))
    with pytest.raises(hotlease.DependencyError) as raised:
        futures[-1].result(60)
    assert raised.value.chain == ("add",) * 8 + ("fail",) and raised.value.left_out == 2992
    assert isinstance(raised.value.__cause__, ValueError)
    assert all(isinstance(future.exception(60), hotlease.DependencyError) for future in futures[1:])


def test_tasks_that_do_not_depend_on_a_failed_task_run(executor):
    bad = executor.submit(tasks.fail, "x")
    dependent = executor.submit(tasks.add, bad)
    good = executor.submit(tasks.add, executor.submit(tasks.add, 1), 1)
    assert good.result(60) == 2
    assert isinstance(dependent.exception(60), hotlease.DependencyError)


def test_a_task_that_waits_for_another_can_be_cancelled_and_what_needs_it_fails(executor, gate, tmp_path, eventually):
    first = executor.submit(tasks.wait_for, str(gate))
    second = executor.submit(tasks.mark_and_return, str(tmp_path / "ran"), first)
    third = executor.submit(tasks.listed, second)
    called = []
    second.add_done_callback(called.append)
    third.add_done_callback(called.append)
    assert second.cancel() and second.cancelled()
    with pytest.raises(hotlease.DependencyError, match="it needs mark_and_return, which was cancelled") as raised:
        third.result(60)
    assert isinstance(raised.value.__cause__, concurrent.futures.CancelledError)
    eventually(lambda: set(called) == {second, third}, "both were told")
    gate.touch()
    assert first.result(60) == str(gate), "what it needed goes on"
    assert not (tmp_path / "ran").exists()
    with pytest.raises(hotlease.DependencyError):
        executor.submit(tasks.add, second).result(60)


def test_cancelling_a_plain_task_fails_what_needs_it(executor, gate):
    first = executor.submit(tasks.wait_for, str(gate))
    queued = [executor.submit(tasks.sleep, 0.001) for _ in range(2000)]
    dependent = executor.submit(tasks.add, queued[-1])
    assert queued[-1].cancel()
    assert isinstance(dependent.exception(60), hotlease.DependencyError)
    gate.touch()
    assert first.result(60) == str(gate)
    concurrent.futures.wait(queued[:-1], 60)


def test_a_worker_that_dies_in_the_middle_of_a_chain_fails_the_rest_of_it_only(executor):
    before = chain(executor, 10)
    dies = executor.submit(tasks.die, before[-1])
    after = executor.submit(tasks.add, executor.submit(tasks.add, dies))
    other = chain(executor, 200)
    assert isinstance(dies.exception(60), hotlease.WorkerDied)
    error = after.exception(60)
    assert isinstance(error, hotlease.DependencyError) and isinstance(error.__cause__, hotlease.WorkerDied)
    assert other[-1].result(60) == 200 and before[-1].result(60) == 10


def test_an_idempotent_chain_survives_the_death_of_a_worker(platform, tmp_path):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(idempotent=True)) as executor:
        path = executor.submit(tasks.concat, str(tmp_path / "on"), "ce")
        assert executor.submit(tasks.concat, executor.submit(tasks.die_once, path), "!").result(60) == "survived!"


def test_futures_of_other_executors_are_waited_for(executor, gate):
    with concurrent.futures.ThreadPoolExecutor(1) as threads, hotlease.Executor(1) as other:
        foreign = threads.submit(tasks.wait_for, str(gate))
        ours = executor.submit(tasks.listed, [foreign], other=other.submit(tasks.add, 5))
        top = executor.submit(tasks.concat, foreign, "!")
        assert not ours.done()
        gate.touch()
        assert ours.result(60) == [[str(gate)], {"other": 5}]
        assert top.result(60) == f"{gate}!"
        failing = executor.submit(tasks.add, threads.submit(tasks.fail, "there"))
        with pytest.raises(hotlease.DependencyError, match="a future of another executor, which failed: ValueError: there"):
            failing.result(60)


def test_a_future_is_no_part_of_a_function(executor):
    future = executor.submit(tasks.add, 1)
    with pytest.raises(TypeError, match="pass it as an argument"):
        executor.submit(lambda: future).result(60)
    with pytest.raises(TypeError, match="pass it as an argument"):
        pickle.dumps(future)


def test_results_that_no_task_needs_any_more_are_released(executor):
    for _ in range(3):
        last = executor.submit(tasks.concat, b"x" * 1000, b"")
        for _ in range(150):
            last = executor.submit(tasks.concat, last, b"")
        assert last.result(60) == b"x" * 1000
    assert executor._pending() == 0


def test_shutdown_waits_for_tasks_that_wait(platform):
    executor = hotlease.Executor(1)
    futures = chain(executor, 300)
    executor.shutdown()
    assert futures[-1].done() and futures[-1].result() == 300


def test_shutdown_can_cancel_what_waits_for_others(platform, gate):
    executor = hotlease.Executor(1)
    first = executor.submit(tasks.wait_for, str(gate))
    waiting = [executor.submit(tasks.concat, first, "")]
    for _ in range(50):
        waiting.append(executor.submit(tasks.concat, waiting[-1], ""))
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in waiting), "none of them may fail instead"
    gate.touch()
    executor.shutdown()
    assert first.result() == str(gate)


def test_a_broken_executor_ends_what_waits(platform):
    executor = hotlease.Executor(1, initializer=tasks.fail, initargs=("bad start",))
    with pytest.raises(concurrent.futures.BrokenExecutor):
        futures = chain(executor, 50)
        for future in futures:
            assert isinstance(future.exception(60), (concurrent.futures.BrokenExecutor, hotlease.DependencyError))
        for _ in range(2000):
            executor.submit(tasks.sleep, 0.01).result(60)
    executor.shutdown()


def test_many_threads_may_build_graphs_at_once(executor):
    wrong = []

    def work(thread):
        for n in range(10):
            futures = chain(executor, 10, start=thread)
            total = executor.submit(tasks.total, futures).result(60)
            if total != sum(thread + k for k in range(1, 11)):
                wrong.append((thread, n, total))

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(6)]
    [thread.start() for thread in threads]
    [thread.join(120) for thread in threads]
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    assert wrong == []


def test_futures_cancelled_while_they_come_true_end_one_way_or_the_other(executor):
    for _ in range(20):
        futures = chain(executor, 100)
        canceller = threading.Thread(target=lambda futures=futures: [future.cancel() for future in futures[::7]])
        canceller.start()
        for future in futures:
            try:
                future.result(60)
            except (concurrent.futures.CancelledError, hotlease.DependencyError):
                pass
        canceller.join()
    assert executor.submit(tasks.add, 1).result(60) == 1
    assert executor._pending() == 0


def test_a_task_is_tried_again_as_often_as_asked_for(executor, tmp_path):
    path = str(tmp_path / "ran")
    assert executor.options(retries=3).submit(tasks.mark_and_fail, path, 2).result(60) == 3
    path = str(tmp_path / "often")
    with pytest.raises(OSError, match="run 3"):
        executor.options(retries=2).submit(tasks.mark_and_fail, path, 99).result(60)
    assert os.path.getsize(path) == 3
    with pytest.raises(OSError, match="run 1"):
        executor.submit(tasks.mark_and_fail, str(tmp_path / "once"), 1).result(60)
    path = str(tmp_path / "needs")
    needed = executor.submit(tasks.concat, path, "")
    assert executor.options(retries=1).submit(tasks.mark_and_fail, needed, 1).result(60) == 2


def test_a_retried_task_is_not_run_again_after_its_worker_died_unless_idempotent(executor, tmp_path):
    path = str(tmp_path / "ran")
    with pytest.raises(hotlease.WorkerDied):
        executor.options(retries=5).submit(tasks.mark_and_die, path).result(60)
    assert os.path.getsize(path) == 1
    path = str(tmp_path / "idempotent")
    with pytest.raises(hotlease.WorkerDied):
        executor.options(retries=5, idempotent=True).submit(tasks.mark_and_die, path).result(60)
    assert os.path.getsize(path) == 2


def test_functions_and_executors_say_how_their_tasks_are_treated(platform, tmp_path):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(retries=1)) as executor:
        assert executor.submit(tasks.mark_and_fail, str(tmp_path / "executor"), 1).result(60) == 2
        declared = hotlease.function(executor=executor, retries=3)(tasks.mark_and_fail)
        assert declared.submit(str(tmp_path / "function"), 3).result(60) == 4
        with pytest.raises(OSError):
            declared.options(retries=0).submit(str(tmp_path / "less"), 1).result(60)
    for bad in ({"retries": -1}, {"memo": 5}, {"priority": "high"}):
        with pytest.raises((TypeError, OverflowError)):
            executor.options(**bad)


def test_tasks_run_in_the_order_of_their_priority(executor, gate, tmp_path):
    path = str(tmp_path / "order")
    first = executor.submit(tasks.wait_for, str(gate))
    low = [executor.options(priority=-1).submit(tasks.append_to, path, "low") for _ in range(3)]
    usual = [executor.submit(tasks.append_to, path, "usual") for _ in range(3)]
    high = [executor.options(priority=5).submit(tasks.append_to, path, "high") for _ in range(3)]
    chained = executor.options(priority=9).submit(tasks.append_to, path, "highest", first)
    ran = executor._pending()
    assert ran == 11, "all of them are still to come"
    gate.touch()
    concurrent.futures.wait([*low, *usual, *high, chained], 60)
    lines = open(path).read().split()
    # One of the first tasks may have been sent already, behind the task that waits.
    order = {name: lines.index(name) for name in lines}
    assert sorted(lines) == sorted(["low"] * 3 + ["usual"] * 3 + ["high"] * 3 + ["highest"])
    assert order["high"] < len(lines) - 1 - lines[::-1].index("usual") and lines[-1] == "low", lines


def test_a_remembered_task_is_not_computed_again(executor, tmp_path):
    path = str(tmp_path / "ran")
    memo = executor.options(memo=True)
    assert [memo.submit(tasks.mark_and_return, path, 5).result(60) for _ in range(3)] == [5] * 3
    assert os.path.getsize(path) == 1
    assert memo.submit(tasks.mark_and_return, path, 6).result(60) == 6
    assert os.path.getsize(path) == 2, "other arguments are another computation"
    for _ in range(2):
        five = executor.submit(tasks.add, 2, 3)
        assert memo.submit(tasks.mark_and_return, path, executor.submit(tasks.add, five, 2)).result(60) == 7
    assert os.path.getsize(path) == 3, "what it needs counts by its result"
    named = executor.options(memo="the answer")
    assert [named.submit(tasks.mark_and_return, path, n).result(60) for n in range(3)] == [0] * 3
    with pytest.raises(ValueError):
        memo.submit(tasks.fail, "x").result(60)
    with pytest.raises(ValueError):
        memo.submit(tasks.fail, "x").result(60)


def test_a_function_that_was_changed_is_computed_again(platform, tmp_path):
    program = """
        import hotlease, changing
        with hotlease.Executor(1, options=hotlease.ExecutorOptions(memo=True, checkpoint="checkpoint")) as executor:
            print(executor.submit(changing.changed, 1).result())
    """
    told = []
    for body in ("n + 1", "n + 1", "n + 20"):
        (tmp_path / "changing.py").write_text(f"def changed(n):\n    open('ran', 'a').write('x')\n    return {body}\n")
        command = [sys.executable, "-c", textwrap.dedent(program)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        told.append((done.stdout.strip(), os.path.getsize(tmp_path / "ran")))
    assert told == [("2", 1), ("2", 1), ("21", 2)], "what it computes is not what it computed under its name"


PROGRAM = """
    import hotlease, tasks, sys, warnings
    warnings.simplefilter("always")
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(memo=True, checkpoint=sys.argv[1])) as executor:
        first = [executor.submit(tasks.mark_and_return, sys.argv[2], n) for n in range(20)]
        print(executor.submit(tasks.total, first).result())
"""


def run(*arguments):
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=os.path.dirname(__file__))
    assert done.stdout.split() == ["190"], done.stderr
    return done.stderr


def test_a_checkpoint_spares_the_next_program_what_was_computed(platform, tmp_path):
    file, ran = tmp_path / "run.checkpoint", tmp_path / "ran"
    assert run(file, ran) == ""
    assert os.path.getsize(ran) == 20
    assert run(file, ran) == ""
    assert os.path.getsize(ran) == 20, "nothing is computed again"


def test_a_torn_checkpoint_costs_what_was_torn_and_says_so(platform, tmp_path):
    file, ran = tmp_path / "run.checkpoint", tmp_path / "ran"
    run(file, ran)
    whole = file.read_bytes()
    file.write_bytes(whole[:-30])
    assert "no whole record" in run(file, ran)
    torn = file.read_bytes()
    middle = len(torn) // 2
    file.write_bytes(torn[:middle] + bytes(byte ^ 0xFF for byte in torn[middle : middle + 8]) + torn[middle + 8 :])
    before = os.path.getsize(ran)
    assert "no whole record" in run(file, ran)
    assert before <= os.path.getsize(ran) <= before + 2, "only what was damaged is computed again"


def test_a_checkpoint_that_cannot_be_used_is_refused_with_a_reason(platform, tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("not a checkpoint, but something that the user wrote and wants to keep " * 3)
    with pytest.raises(hotlease.OptionError, match="is no checkpoint"):
        hotlease.Executor(1, options=hotlease.ExecutorOptions(checkpoint=other))
    file = tmp_path / "shared.checkpoint"
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(checkpoint=file)):
        with pytest.raises(hotlease.OptionError, match="in use"):
            hotlease.Executor(1, options=hotlease.ExecutorOptions(checkpoint=file))


def test_submit_waits_where_too_many_are_pending(platform):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(max_pending=50)) as executor:
        most, futures = 0, [executor.submit(tasks.sleep, 0.0005)]
        for _ in range(400):
            futures.append(executor.submit(tasks.add, futures[-1], 0))
            most = max(most, executor._pending())
        assert most <= 50, "the bound was passed"
        assert futures[-1].result(60) == 0.0005
        callback = concurrent.futures.Future()
        futures[-1].add_done_callback(lambda _: callback.set_result([executor.submit(tasks.add, n) for n in range(200)]))
        assert [future.result(60) for future in callback.result(60)] == list(range(200)), "a callback may submit, too"


def test_a_hundred_thousand_tasks_that_wait_add_less_than_a_hundred_megabytes(platform, gate):
    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    executor = hotlease.Executor(1)
    first = executor.submit(tasks.wait_for, str(gate))
    before = resident()
    futures = [executor.submit(tasks.concat, first, "!") for _ in range(100_000)]
    added = (resident() - before) / 1e6
    executor.shutdown(wait=False, cancel_futures=True)
    gate.touch()
    executor.shutdown()
    assert added < 100, f"{added:.0f} MB"
    assert all(future.cancelled() for future in futures)
