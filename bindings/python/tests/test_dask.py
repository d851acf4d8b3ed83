"""Dask's guarantees, with its tasks in leased workers."""

import io
import operator
import os
import re
import threading

import pytest
import talking
import tasks

import hotlease

dask = pytest.importorskip("dask")

import hotlease.dask  # noqa: E402
from dask import delayed  # noqa: E402

pytestmark = pytest.mark.usefixtures("kept")
get = hotlease.dask.get


def test_delayed_calls_run_in_workers():
    total = delayed(sum)([delayed(tasks.add)(n, c=1) for n in range(50)])
    assert total.compute(scheduler=get) == sum(range(1, 51))
    assert delayed(tasks.pid)().compute(scheduler=get) != os.getpid()


def test_dask_selects_the_scheduler_by_its_usual_ways():
    with dask.config.set(scheduler=get):
        assert delayed(tasks.pid)().compute() != os.getpid()
    assert delayed(tasks.pid)().compute(scheduler="hotlease") != os.getpid()
    assert dask.compute(delayed(abs)(-1), delayed(abs)(-2), scheduler=get) == (1, 2)


def test_graphs_of_tuples_and_keys_in_lists_are_computed_in_order():
    graph = {"a": 1, "b": (tasks.add, "a", 10), "c": (sum, ["a", "b"]), "unused": (tasks.fail, "it is not asked for")}
    assert get(graph, "c") == 12
    assert tuple(get(graph, ["c", "a", "b"])) == (12, 1, 11)
    assert get(graph, [["c"], ["b", "a"]]) == ((12,), (11, 1))


def test_chains_become_one_task_unless_told_otherwise():
    sent = []

    class Counting(hotlease.Executor):
        def __init__(self):
            pass

        def _slots(self):
            return 1

        def submit(self, function, *args):
            sent.append(args)
            from hotlease import _kept

            return _kept.executor().submit(function, *args)

    chain = {"0": 1, **{str(n + 1): (tasks.add, str(n), 1) for n in range(20)}}
    assert get(chain, "20", pool=Counting()) == 21
    assert len(sent) == 1
    assert get(chain, "20", pool=Counting(), optimize_graph=False) == 21
    assert len(sent) == 21
    with dask.config.set(pool=Counting()):
        assert get(chain, "20", chunksize=5) == 21
    with pytest.raises(TypeError, match=r"hotlease\.Executor"):
        get(chain, "20", pool=5)


def test_an_exception_shows_where_it_was_raised():
    with pytest.raises(ValueError, match="on purpose") as raised:
        delayed(tasks.add)(delayed(tasks.fail)("on purpose")).compute(scheduler=get)
    assert "in fail" in str(raised.value.__cause__)
    with pytest.raises(hotlease.TaskError, match="Unpicklable"):
        delayed(tasks.fail_unpicklably)().compute(scheduler=get)
    with pytest.raises(hotlease.WorkerDied):
        delayed(tasks.die)(3).compute(scheduler=get)
    with pytest.raises(TypeError, match="pickle"):
        delayed(tasks.lock)().compute(scheduler=get)
    assert delayed(abs)(-1).compute(scheduler=get) == 1


def test_a_failed_task_can_be_run_here_to_look_at_it():
    with pytest.raises(ValueError, match="here") as raised:
        delayed(tasks.fail)("here").compute(scheduler=get, rerun_exceptions_locally=True)
    assert raised.value.__cause__ is None, "it was raised in this process"


def test_callbacks_are_called():
    from dask.callbacks import Callback
    from dask.diagnostics import ProgressBar

    workers, ended = set(), []

    class Watching(Callback):
        def _posttask(self, key, result, dsk, state, worker_id):
            workers.add(worker_id)

        def _finish(self, dsk, state, failed):
            ended.append(failed)

    with Watching(), open(os.devnull, "w") as nowhere, ProgressBar(out=nowhere):
        assert sum(dask.compute(*[delayed(abs)(-n) for n in range(20)], scheduler=get)) == 190
    assert ended == [False] and workers and os.getpid() not in workers


def test_a_progress_bar_moves_as_tasks_end(tmp_path, eventually):
    from dask.diagnostics import ProgressBar

    out, gate = io.StringIO(), tmp_path / "gate"
    ended = [delayed(tasks.add)(n) for n in range(9)]
    last = delayed(wait_behind)(str(gate), *ended)

    def see_and_go_on():
        try:
            # All tasks have ended but one or two, which wait.
            eventually(lambda: re.search(r"\[#+ +\] \| [5-9]\d% Completed", out.getvalue()), "the bar moves")
            moved.append(True)
        finally:
            gate.touch()

    moved = []
    watching = threading.Thread(target=see_and_go_on)
    watching.start()
    with ProgressBar(out=out, dt=0.01):
        assert last.compute(scheduler=get, optimize_graph=False) == 9
    watching.join(60)
    assert moved and "| 100% Completed" in out.getvalue(), out.getvalue()


def wait_behind(gate, *ended):
    import tasks

    tasks.wait_for(gate)
    return len(ended)


def test_arrays_are_computed_as_numpy_computes_them():
    np = pytest.importorskip("numpy")
    import dask.array as da

    here = np.arange(1_000_000, dtype="f8").reshape(1000, 1000)
    array = da.from_array(here, chunks=(250, 500))
    result = (array + array.T).compute(scheduler=get)
    assert np.array_equal(result, here + here.T)
    result[0, 0] = 1
    assert array.mean(axis=0).sum().compute(scheduler=get) == here.mean(axis=0).sum()


def test_bags_are_computed_and_grouped():
    import dask.bag as db

    words = [f"word{n % 7}" for n in range(500)]
    bag = db.from_sequence(words, npartitions=6)
    assert dict(bag.frequencies().compute(scheduler=get)) == {f"word{n}": words.count(f"word{n}") for n in range(7)}
    assert bag.map(lambda word: len(word) * 2).sum().compute(scheduler=get) == 5000
    # Strings are grouped by their hash, which must be the same in all workers.
    with dask.config.set(scheduler=get):
        groups = bag.groupby(operator.itemgetter(slice(None)), shuffle="tasks").map(lambda group: (group[0], len(group[1]))).compute()
    assert sorted(groups) == sorted((f"word{n}", words.count(f"word{n}")) for n in range(7))


def test_threads_may_compute_at_once():
    found = {}

    def work(thread):
        found[thread] = sum(dask.compute(*[delayed(tasks.add)(thread, n) for n in range(30)], scheduler=get))

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join(120) for thread in threads]
    assert found == {100 * n: 3000 * n + sum(range(30)) for n in range(4)}


def nested(n):
    import hotlease.dask

    return delayed(sum)([delayed(abs)(-m) for m in range(n)]).compute(scheduler=hotlease.dask.get)


def test_a_task_may_compute():
    assert dask.compute(*[delayed(nested)(n) for n in range(5)], scheduler=get) == tuple(sum(range(n)) for n in range(5))


def test_tasks_that_print_are_named_by_their_keys(capsys):
    values = dask.compute(*(delayed(talking.square)(n) for n in range(10)), scheduler=get)
    assert list(values) == [n * n for n in range(10)]
    said = re.findall(r"^\[square worker \d+\] square of (\d+)$", capsys.readouterr().out, re.M)
    assert sorted(map(int, said)) == list(range(10))
