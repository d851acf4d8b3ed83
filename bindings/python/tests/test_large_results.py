"""Large results, which are written to the client's memory and passed to other tasks in place, and arrays that tasks get
without a copy."""

import gc
import os
import random

import pytest
import tasks

import hotlease

numpy = pytest.importorskip("numpy")

_MB = 1 << 20
_OVER_A_FABRIC = os.environ.get("HOTLEASE_TRANSPORT", "") not in ("", "shm")

# Over a fabric, tasks have their arguments in memory of their worker, so addresses do not show whether they were copied.
in_shared_memory = pytest.mark.skipif(_OVER_A_FABRIC, reason="HOTLEASE_TRANSPORT is a fabric: no memory is shared")


def _opened():
    return len(os.listdir("/proc/self/fd"))


def _buffers():
    """Returns the pieces of this process's memory that workers may use."""
    with open("/proc/self/maps") as maps:
        return {line.split()[4] for line in maps if "hotlease-buffer" in line}


def _resident():
    with open("/proc/self/statm") as statm:
        words = statm.read().split()
    return (int(words[1])) * os.sysconf("SC_PAGE_SIZE")


def test_a_result_of_an_expected_size_is_not_copied_by_the_client(executor):
    for n in range(4):
        result = executor.submit(tasks.counted, n, _MB).result(60)
        assert set(result) == {float(n)}
        assert result.flags.writeable, "it is the caller's alone"
        del result
    result = executor.submit(tasks.counted, 7, _MB).result(60)
    memory, _ = tasks.place(result)
    with open("/proc/self/maps") as maps:
        names = [line for line in maps if line.split()[4] == str(memory)]
    assert all("hotlease-buffer" in name for name in names) and names, "not in memory that the worker wrote to"


@pytest.mark.parametrize("seed", range(3))
def test_results_of_unexpected_sizes_are_what_the_tasks_returned(executor, seed):
    print(f"seed {seed}")
    picked = random.Random(seed)
    sizes = [8 * picked.choice([1, 500, 1000, 5000, 20_000, 130_000, 700_000]) for _ in range(60)]
    if seed == 0:
        sizes.sort()
    elif seed == 1:
        sizes.sort(reverse=True)
    futures = [executor.submit(tasks.counted, n, size) for n, size in enumerate(sizes)]
    for n, (size, future) in enumerate(zip(sizes, futures)):
        result = future.result(120)
        assert result.nbytes == size, (n, size)
        assert result[0] == result[-1] == n, (n, size)


def test_exceptions_and_small_results_come_from_functions_whose_results_are_large(executor):
    asked = [(1, "array"), (3 * _MB, "array"), (30, "raise"), (50_000, "raise"), (3 * _MB, "bytes"), (2, "bytes")] * 8
    futures = [executor.submit(tasks.ones_or, size, what) for size, what in asked]
    for (size, what), future in zip(asked, futures):
        if what == "raise":
            with pytest.raises(ValueError, match=f"^x{{{size}}}$"):
                future.result(60)
        else:
            assert len(future.result(60)) == (size // 8 if what == "array" else size)


def test_the_time_of_a_task_is_told_whose_result_is_written_in_place(platform):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(timing=True)) as executor:
        for _ in range(3):
            future = executor.submit(tasks.summed_slowly, numpy.ones(100_000), 0.02)
            assert future.result(60) == 100_000
            assert 0.02 <= future.timing.running < 5
            future = executor.submit(tasks.increased, numpy.ones(100_000))
            assert set(future.result(60)) == {2.0}
            assert future.timing.running > 0
        given = executor.empty(100_000)
        given[:] = 1
        future = executor.submit(tasks.summed_slowly, given, 0.02)
        assert future.result(60) == 100_000 and future.timing.running >= 0.02


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_worker_that_dies_before_a_large_result_is_told_or_replaced(platform, tmp_path, idempotent):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(idempotent=idempotent)) as executor:
        path = tmp_path / "runs"
        path.write_text("x")
        for _ in range(3):
            # The file exists, so the task does not die, as it does in its first run.
            executor.submit(tasks.mark_and_return_ones, str(path), 200_000).result(60)
        path.unlink()
        dying = executor.submit(tasks.mark_and_return_ones, str(path), 200_000)
        others = [executor.submit(tasks.counted, n, 2 * _MB) for n in range(20)]
        if idempotent:
            assert set(dying.result(60)) == {1.0}
        else:
            with pytest.raises((hotlease.WorkerDied, hotlease.OutcomeUnknown)):
                dying.result(60)
        for n, other in enumerate(others):
            assert set(other.result(60)) == {float(n)}


def test_tasks_sent_behind_a_death_run_on_an_initialized_worker(platform):
    with hotlease.Executor(1, initializer=tasks.set_state, initargs=(7,)) as executor:
        for _ in range(3):
            # Short tasks first, so that all later tasks are sent ahead.
            for _ in range(4):
                futures = [executor.submit(tasks.states, 5000) for _ in range(30)]
                assert all(future.result(60)[0] == 7 for future in futures)
            dying = executor.submit(tasks.die, 4)
            futures = [executor.submit(tasks.states, 5000) for _ in range(10)]
            # Each of these tasks is sent with its function.
            likes = [lambda array, n=n: tasks.states_like(array) for n in range(10)]
            futures += [executor.submit(like, numpy.ones(20_000)) for like in likes]
            with pytest.raises((hotlease.WorkerDied, hotlease.OutcomeUnknown)):
                dying.result(60)
            assert [float(future.result(60)[-1]) for future in futures] == [7.0] * 20


def test_a_large_result_over_its_time_leaves_others_theirs(platform):
    with hotlease.Executor(1, timeout=2) as executor:
        assert set(executor.submit(tasks.wait_for_and_return, "/", numpy.ones(200_000)).result(60)) == {1.0}
        late = executor.submit(tasks.wait_for_and_return, "/nowhere", numpy.full(200_000, 9.0))
        others = [executor.submit(tasks.counted, n, 2 * _MB) for n in range(8)]
        with pytest.raises(hotlease.DeadlineExceeded):
            late.result(60)
        for n, other in enumerate(others):
            assert set(other.result(60)) == {float(n)}


def test_many_large_results_at_once_are_each_their_own_task_s(executor):
    executor.submit(tasks.counted, 0, _MB).result(60)
    futures = [executor.submit(tasks.counted, n, 200_000 if n % 2 else _MB) for n in range(400)]
    for n, future in enumerate(futures):
        result = future.result(120)
        assert result[0] == result[-1] == n


def test_thousands_of_large_results_leave_descriptors_and_memory_as_they_were(executor):
    size = 1_000_000
    warm = [executor.submit(tasks.counted, n, size) for n in range(300)]
    warm[-1].result(120)
    del warm
    gc.collect()
    # From now on, the number of buffers in the pool should not change.
    descriptors, memory = _opened(), _resident()
    for _ in range(10):
        futures = [executor.submit(tasks.counted, n, size) for n in range(200)]
        assert futures[-1].result(120)[0] == 199
        del futures
    gc.collect()
    assert _opened() <= descriptors + 8
    assert _resident() < memory + 256 * _MB, "2 GB of results went through; 256 MiB are kept at most"


def _chained(executor, length, hold):
    """Returns the last future of a chain, and the other futures if `hold` is true."""
    future = executor.submit(tasks.counted, 0, 8 * _MB)
    held = []
    for _ in range(length):
        # In place, or into a new array.
        step = executor.submit(tasks.scaled, executor.submit(tasks.increased, future), 1)
        if hold:
            held.append(future)
        future = step
    return future, held


@pytest.mark.parametrize("hold", [False, True])
def test_a_chain_of_large_arrays_gives_what_it_computes_whether_its_futures_are_held_or_not(executor, hold):
    for _ in range(2):
        last, held = _chained(executor, 12, hold)
        assert set(last.result(60)) == {12.0}
        for n, future in enumerate(held):
            assert set(future.result(60)) == {float(n)}, "a later step has written to it"


def _expected_place(executor):
    """Returns the offset, in its memory, of a result of 8 MiB that was written in place."""
    for _ in range(3):
        executor.submit(tasks.counted, 0, 8 * _MB).result(60)
    return tasks.place(executor.submit(tasks.counted, 0, 8 * _MB).result(60))[1]


@in_shared_memory
def test_a_result_without_another_user_is_passed_on_in_place(executor, tmp_path):
    at = _expected_place(executor)
    for _ in range(3):
        gate = tmp_path / "gate"
        blocker = executor.submit(tasks.wait_for, str(gate))
        first = executor.submit(tasks.counted, 3, 8 * _MB)
        second = executor.submit(tasks.place_of, first)
        del first
        gate.touch()
        blocker.result(60)
        assert second.result(60)[1] == at, "it was copied, to another place"
        gate.unlink()
    first = executor.submit(tasks.counted, 3, 8 * _MB)
    second = executor.submit(tasks.place_of, first)
    assert second.result(60)[1] != at, "its future is held: the task may write to what it gets"
    assert set(first.result(60)) == {3.0}


def test_a_task_that_writes_to_a_result_changes_it_for_no_other_task(executor):
    for _ in range(3):
        first = executor.submit(tasks.counted, 3, 8 * _MB)
        doubled, tripled = executor.submit(tasks.scaled, first, 2), executor.submit(tasks.scaled, first, 3)
        del first
        plain = executor.submit(tasks.scaled, doubled, 1)
        assert set(plain.result(60)) == {6.0}
        assert set(doubled.result(60)) == {6.0}
        assert set(tripled.result(60)) == {9.0}


def test_a_task_that_runs_again_has_the_result_of_another_as_it_was(executor, tmp_path):
    trying = executor.options(retries=2)
    for n in range(2):
        first = executor.submit(tasks.counted, 3, 8 * _MB)
        again = trying.submit(tasks.scale_and_fail_once, first, 2, str(tmp_path / f"once {n}"))
        del first
        assert set(again.result(60)) == {6.0}
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(idempotent=True)) as other:
        first = other.submit(tasks.counted, 3, 8 * _MB)
        again = other.submit(tasks.add_one_and_die_once, first, str(tmp_path / "died"))
        del first
        assert set(again.result(60)) == {4.0}


def test_a_task_whose_worker_died_before_it_began_has_the_result_of_another(executor, tmp_path):
    gate = tmp_path / "gate"
    first = executor.submit(tasks.counted, 3, 8 * _MB)
    second = executor.submit(tasks.scaled, first, 2)
    del first
    blocker = executor.submit(tasks.wait_for, str(gate))
    dying = executor.submit(tasks.die_of, second, 4)
    after = executor.submit(tasks.counted, 5, 8 * _MB)
    gate.touch()
    blocker.result(60)
    with pytest.raises((hotlease.WorkerDied, hotlease.OutcomeUnknown)):
        dying.result(60)
    assert set(second.result(60)) == {6.0}
    assert set(after.result(60)) == {5.0}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("idempotent", [False, True])
def test_graphs_of_arrays_give_what_they_give_without_workers(platform, seed, idempotent):
    print(f"seed {seed}")
    picked = random.Random(seed)
    with hotlease.Executor(2, options=hotlease.ExecutorOptions(idempotent=idempotent)) as executor:
        # For each task: the expected value, and the future while it is needed.
        values, futures, checked = [], [], []
        for n in range(150):
            size = picked.choice([10, 3000, 40_000, 150_000])
            kept = [at for at, future in enumerate(futures) if future is not None]
            one = picked.choice(kept) if kept else None
            two = picked.choice(kept) if kept else None
            what = picked.choice(["new", "scaled", "increased", "summed up", "given"])
            if what == "new" or one is None:
                future, value = executor.submit(tasks.counted, n, 8 * size), float(n)
            elif what == "scaled":
                future, value = executor.submit(tasks.scaled, futures[one], 3), 3 * values[one]
            elif what == "increased":
                future, value = executor.submit(tasks.increased, futures[one]), values[one] + 1
            elif what == "summed up":
                future = executor.submit(tasks.first_sum, futures[one], futures[two])
                value = values[one] + values[two]
            else:
                array = executor.empty(size)
                array[:] = n
                future, value = executor.submit(tasks.increased, array), n + 1.0
            values.append(value)
            futures.append(future)
            if picked.random() < 0.1:
                checked.append((value, future))
            if one is not None and picked.random() < 0.5:
                futures[one] = None
            del future
        checked += [(value, future) for value, future in zip(values, futures) if future is not None]
        for value, future in checked:
            result = future.result(120)
            assert result.size > 0 and set(result) == {value}


def test_remembered_results_stay_as_they_were_when_tasks_write_to_them(executor):
    remembering = executor.options(memo=True)
    for _ in range(3):
        first = remembering.submit(tasks.counted, 3, 8 * _MB)
        second = executor.submit(tasks.scaled, first, 2)
        del first
        assert set(second.result(60)) == {6.0}
        assert set(remembering.submit(tasks.counted, 3, 8 * _MB).result(60)) == {3.0}


def test_an_array_in_shared_memory_is_sent_from_where_it_lies(executor):
    small, large = executor.empty(300_000, "uint8"), executor.empty(30_000_000, "uint8")
    small[:] = large[:] = 1
    # The first call is sent with the function, and may take memory for a result of unknown size.
    assert executor.submit(tasks.summed, small).result(60) == 300_000
    before = _buffers()
    for _ in range(3):
        assert executor.submit(tasks.summed, large).result(60) == 30_000_000
    assert _buffers() <= before, "it was copied, into memory that was not there before"


@in_shared_memory
def test_an_array_in_shared_memory_reaches_tasks_without_a_copy(executor):
    array = executor.empty((1000, 500), "float32")
    array[:] = 2
    memory, _ = tasks.place(array)
    # The first call is sent with the function.
    for _ in range(3):
        assert executor.submit(tasks.place_of, array).result(60)[0] == memory
        assert executor.submit(tasks.place_of, array[:500]).result(60)[0] == memory, "from its beginning on"
    assert executor.submit(tasks.place_of, array, 3).result(60)[0] == memory, "beside small arguments"
    assert not executor.submit(tasks.is_writable, array).result(60), "the program sees it"
    assert executor.submit(tasks.summed, array).result(60) == 1_000_000


def test_slices_and_arrays_beside_other_arguments_are_copied(executor, tmp_path):
    array = executor.empty(200_000)
    array[:] = numpy.arange(200_000)
    memory, _ = tasks.place(array)
    assert executor.submit(tasks.place_of, array[1:]).result(60)[0] != memory
    assert executor.submit(tasks.place_of, array, numpy.ones(50_000)).result(60)[0] != memory
    assert executor.submit(tasks.place_of, array[::2]).result(60)[0] != memory
    gate = tmp_path / "gate"
    first = executor.submit(tasks.wait_for_and_return, str(gate), array)
    second = executor.submit(tasks.place_of, array)
    gate.touch()
    assert (first.result(60) == array).all()
    assert second.result(60)[0] != memory, "another task had it"
    assert (array == numpy.arange(200_000)).all()
    is_in_place = executor.submit(tasks.place_of, array).result(60)[0] == memory
    assert is_in_place != _OVER_A_FABRIC, "it is free again"


def test_tasks_that_may_run_again_get_copies_of_an_array_in_shared_memory(platform, tmp_path):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(idempotent=True)) as executor:
        array = executor.empty(100_000)
        array[:] = 1
        assert executor.submit(tasks.place_of, array).result(60)[0] != tasks.place(array)[0]
        assert executor.submit(tasks.summed, array).result(60) == 100_000
        trying = executor.options(retries=1, idempotent=False)
        assert trying.submit(tasks.summed, array).result(60) == 100_000
    assert set(array) == {1.0}, "it is there after its executor"


def test_an_array_in_shared_memory_that_is_gone_gives_its_memory_back(executor):
    before = _opened()
    for _ in range(300):
        array = executor.empty(1_000_000, "uint8")
        array[:] = 7
        assert executor.submit(tasks.summed, array).result(60) == 7_000_000
        view = array[10:]
        del array
        assert view[0] == 7
        del view
    assert _opened() < before + 10


def test_a_function_of_more_bytes_than_are_free_before_an_array_gets_it_all_the_same(executor):
    data = bytes(range(256)) * 400

    def marked(array, data=data):
        return array + data[-1]

    array = executor.empty(100_000)
    array[:] = 1
    for _ in range(2):
        assert set(executor.submit(marked, array).result(60)) == {256.0}
        first = executor.submit(tasks.counted, 3, _MB)
        second = executor.submit(marked, first)
        del first
        assert set(second.result(60)) == {258.0}
        assert set(executor.submit(marked, numpy.ones(100_000)).result(60)) == {256.0}
    assert set(array) == {1.0}


def test_arrays_of_objects_and_of_less_than_nothing_are_not_shared(executor):
    with pytest.raises(TypeError, match="Python objects"):
        executor.empty(3, object)
    with pytest.raises(ValueError, match="negative"):
        executor.empty((2, -1))
    assert executor.empty((0, 5)).shape == (0, 5)
    assert executor.submit(tasks.summed, executor.empty(0)).result(60) == 0
