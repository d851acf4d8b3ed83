"""joblib's guarantees, with its batches in leased workers."""

import io
import multiprocessing
import os
import pathlib
import re
import sys
import threading
import time
import warnings

import pytest
import talking
import tasks

import hotlease

joblib = pytest.importorskip("joblib")
np = pytest.importorskip("numpy")

import hotlease.joblib  # noqa: E402
from joblib import Parallel, delayed, parallel_backend, parallel_config  # noqa: E402

pytestmark = pytest.mark.usefixtures("kept")


@pytest.fixture
def two():
    with parallel_config(backend="hotlease", n_jobs=2):
        yield


@pytest.mark.parametrize("batch_size", ["auto", 1, 7])
def test_results_come_in_order_from_other_processes(two, batch_size):
    assert Parallel(batch_size=batch_size)(delayed(tasks.add)(n, c=n) for n in range(100)) == list(range(0, 200, 2))
    assert os.getpid() not in Parallel()(delayed(tasks.pid)() for _ in range(20))


def test_joblib_selects_the_backend_by_name():
    with parallel_backend("hotlease", n_jobs=2):
        assert os.getpid() not in Parallel()(delayed(tasks.pid)() for _ in range(4))
    assert os.getpid() not in Parallel(n_jobs=2, backend="hotlease")(delayed(tasks.pid)() for _ in range(4))
    assert Parallel(n_jobs=2, backend=hotlease.joblib.HotleaseBackend())(delayed(abs)(-n) for n in range(3)) == [0, 1, 2]


def test_n_jobs_counts_workers(kept):
    workers = kept()._slots()
    with parallel_config(backend="hotlease"):
        assert joblib.effective_n_jobs(-1) == workers
        assert joblib.effective_n_jobs(-1000) == 1
        assert joblib.effective_n_jobs(5) == 5
        with pytest.raises(ValueError, match="n_jobs == 0"):
            Parallel(n_jobs=0)(delayed(abs)(n) for n in range(3))
        assert Parallel(n_jobs=1)(delayed(tasks.pid)() for _ in range(2)) == [os.getpid()] * 2, "one job runs here"


def test_no_more_tasks_run_at_once_than_jobs_were_asked_for(kept, tmp_path):
    executor = Counting(most=8)
    with parallel_config(backend="hotlease", executor=executor):
        assert Parallel(n_jobs=3, batch_size=1)(delayed(abs)(-n) for n in range(50)) == list(range(50))
    assert executor.highest == 3


class Counting(hotlease.Executor):
    """Executor that claims more workers than there are, and counts the tasks that are pending at the same time."""

    def __init__(self, most):
        # The program's own executor has all workers.
        from hotlease import _kept

        self.inner, self.most, self.now, self.highest = _kept.executor(), most, 0, 0
        self.lock = threading.Lock()

    def _slots(self):
        return self.most

    def submit(self, *args):
        with self.lock:
            self.now += 1
            self.highest = max(self.highest, self.now)
        future = self.inner.submit(*args)
        future.add_done_callback(self.ended)
        return future

    def ended(self, future):
        with self.lock:
            self.now -= 1


def test_an_exception_ends_the_call_and_shows_where_it_was_raised(two, tmp_path):
    def some(n):
        return tasks.fail("the third") if n == 3 else tasks.mark(str(tmp_path / "ran"))

    with pytest.raises(ValueError, match="the third") as raised:
        Parallel(batch_size=1)(delayed(some)(n) for n in range(10_000))
    assert "in fail" in str(raised.value.__cause__)
    assert (tmp_path / "ran").stat().st_size < 5_000, "the rest is not run"
    assert Parallel()(delayed(abs)(-n) for n in range(10)) == list(range(10)), "the next call works"


def test_a_verbose_call_says_how_far_it_is(two, tmp_path, monkeypatch, eventually):
    told, gate = io.StringIO(), tmp_path / "gate"
    monkeypatch.setattr(sys, "stderr", told)

    def see_and_go_on():
        try:
            # Some tasks are done, and the last task still runs.
            eventually(lambda: re.search(r"Done +\d+ tasks +\| elapsed:", told.getvalue()), "joblib tells")
            moved.append(True)
        finally:
            gate.touch()

    moved = []
    watching = threading.Thread(target=see_and_go_on)
    watching.start()
    paths = [__file__] * 30 + [str(gate)]
    assert Parallel(verbose=10, batch_size=1)(delayed(tasks.wait_for)(path) for path in paths) == paths
    watching.join(60)
    assert moved, told.getvalue()
    assert "Using backend HotleaseBackend with 2 concurrent workers" in told.getvalue()
    assert re.search(r"Done +31 out of +31 \| elapsed: .*finished", told.getvalue()), told.getvalue()


def test_the_death_of_a_worker_is_reported(two):
    with pytest.raises(hotlease.WorkerDied) as raised:
        Parallel(batch_size=1)(delayed(tasks.die)(3) for _ in range(1))
    assert raised.value.exit_code == 3
    assert Parallel()(delayed(abs)(-n) for n in range(10)) == list(range(10))


def test_an_argument_that_does_not_pickle_raises(two):
    with pytest.raises(TypeError, match="pickle"):
        Parallel()(delayed(tasks.add)(threading.Lock()) for _ in range(4))


def test_a_call_gives_up_at_its_timeout(two, tmp_path):
    gate = tmp_path / "gate"
    try:
        with pytest.raises(multiprocessing.TimeoutError):
            Parallel(timeout=0.1)(delayed(tasks.wait_for)(str(gate)) for _ in range(4))
    finally:
        gate.touch()
    assert Parallel()(delayed(abs)(-n) for n in range(10)) == list(range(10))


def test_results_can_be_drawn_one_after_another(two, tmp_path):
    gate = tmp_path / "gate"
    results = Parallel(return_as="generator", batch_size=1)(
        delayed(tasks.wait_for)(str(path)) for path in (__file__, gate)
    )
    assert next(results) == __file__, "the first is there while the second runs"
    gate.touch()
    assert list(results) == [str(gate)]
    unordered = Parallel(return_as="generator_unordered")(delayed(abs)(-n) for n in range(50))
    assert sorted(unordered) == list(range(50))


def test_calls_may_overlap_in_one_context(two):
    first = Parallel(return_as="generator", pre_dispatch=2, batch_size=1)(delayed(abs)(-n) for n in range(200))
    assert next(first) == 0
    assert Parallel()(delayed(abs)(-n) for n in range(100)) == list(range(100))
    assert list(first) == list(range(1, 200)), "one call's end is not the other's"


def test_a_generator_that_is_dropped_unread_ends_its_call(two):
    results = Parallel(return_as="generator", batch_size=1)(delayed(tasks.sleep)(0.05) for _ in range(1000))
    next(results)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del results
    begin = time.monotonic()
    assert Parallel()(delayed(abs)(-n) for n in range(10)) == list(range(10))
    assert time.monotonic() - begin < 20, "it must not wait for the other's thousand tasks"


def test_a_parallel_object_can_be_used_again(two):
    with Parallel() as parallel:
        for _ in range(5):
            assert parallel(delayed(abs)(-n) for n in range(20)) == list(range(20))
        with pytest.raises(ValueError):
            parallel(delayed(tasks.fail)("x") for _ in range(4))
        assert parallel(delayed(abs)(-n) for n in range(20)) == list(range(20))


def nested(n, backend=None):
    return sum(Parallel(n_jobs=2, backend=backend)(delayed(abs)(-m) for m in range(n)))


@pytest.mark.parametrize("backend", [None, "hotlease"])
def test_parallel_calls_may_be_nested(two, backend):
    assert Parallel()(delayed(nested)(n, backend) for n in range(10)) == [sum(range(n)) for n in range(10)]


def test_threads_may_each_have_their_call():
    found = {}

    def work(thread):
        with parallel_config(backend="hotlease", n_jobs=2):
            found[thread] = Parallel()(delayed(tasks.add)(thread, n) for n in range(100))

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join(120) for thread in threads]
    assert found == {1000 * n: [1000 * n + m for m in range(100)] for n in range(4)}


def test_functions_of_main_closures_and_large_arrays_go(two):
    array = np.arange(300_000, dtype="f8")
    scale = 2
    sums = Parallel(batch_size=1)(delayed(lambda a, n: a * scale + n)(array, n) for n in range(6))
    for n, result in enumerate(sums):
        assert np.array_equal(result, 2 * array + n)
        result[0] = 1


def test_scikit_learn_uses_it(two):
    sklearn = pytest.importorskip("sklearn")
    from sklearn.datasets import load_iris
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.neighbors import KNeighborsClassifier

    assert sklearn
    data, target = load_iris(return_X_y=True)
    search = GridSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 3, 5, 9]}, n_jobs=2, cv=3)
    with parallel_config(backend="sequential"):
        alone = GridSearchCV(KNeighborsClassifier(), {"n_neighbors": [1, 3, 5, 9]}, cv=3).fit(data, target)
    search.fit(data, target)
    assert list(search.cv_results_["mean_test_score"]) == list(alone.cv_results_["mean_test_score"])
    forest = RandomForestClassifier(20, random_state=0, n_jobs=2).fit(data, target)
    assert forest.score(data, target) > 0.95
    # Arrays that are shared with workers, and to which the estimators keep a reference.
    large = np.repeat(data, 50, axis=0), np.repeat(target, 50)
    assert cross_val_score(KNeighborsClassifier(), *large, cv=3, n_jobs=2).min() > 0.9


def test_functions_find_the_program_s_modules(two):
    assert Parallel()(delayed(pathlib.PurePath)("a") for _ in range(2)) == [pathlib.PurePath("a")] * 2


def test_batches_that_print_are_named_by_their_functions(capsys):
    with parallel_config(backend="hotlease"):
        assert Parallel(n_jobs=2)(delayed(talking.square)(n) for n in range(10)) == [n * n for n in range(10)]
    said = re.findall(r"^\[square worker \d+\] square of (\d+)$", capsys.readouterr().out, re.M)
    assert sorted(map(int, said)) == list(range(10))
