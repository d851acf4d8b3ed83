"""Arrays that are mapped from a file: tasks map the file itself, not a copy."""

import os
import subprocess
import sys
import textwrap

import pytest
import tasks

import hotlease

np = pytest.importorskip("numpy")


@pytest.fixture
def mapped(tmp_path):
    array = np.memmap(tmp_path / "data", dtype="f8", mode="w+", shape=(4, 1000))
    array[:] = np.arange(4000.0).reshape(4, 1000)
    return array


def test_tasks_write_into_a_mapped_array(executor, mapped):
    for row in range(4):
        executor.submit(tasks.put_into, mapped, (row, 0), row + 1.0).result(60)
    assert mapped[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    "part",
    [
        lambda array: array[1:3],
        lambda array: array[::2, ::-3],
        lambda array: array.T[5:7],
        lambda array: np.asarray(array),
        lambda array: np.asarray(array)[2],
        lambda array: array[1:, 10:].view("i8"),
        lambda array: {"deep": [array[3]]}["deep"][0],
    ],
    ids=["rows", "steps", "transposed", "array", "row of an array", "other dtype", "nested"],
)
def test_views_of_mapped_arrays_are_views_in_tasks(executor, mapped, part):
    view = part(mapped)
    before = view.copy()
    got = executor.submit(tasks.put_into_copy_of, view, (0, 0)[: view.ndim], 77).result(60)
    assert np.array_equal(got, before)
    assert view[(0, 0)[: view.ndim]] == 77


def test_a_read_only_map_stays_read_only(executor, mapped, tmp_path):
    mapped.flush()
    readonly = np.memmap(tmp_path / "data", dtype="f8", mode="r", shape=(4, 1000))
    for array in (readonly, readonly[1:], np.load(_saved(tmp_path), mmap_mode="r")):
        assert executor.submit(tasks.sum_of, array).result(60) == array.sum()
        with pytest.raises(ValueError, match="read-only"):
            executor.submit(tasks.put_into, array, 0, 1.0).result(60)
    private = np.memmap(tmp_path / "data", dtype="f8", mode="c", shape=(4, 1000))
    private[0, 0] = 123
    assert executor.submit(tasks.item, private, (0, 0)).result(60) == 123, "changes that are not in the file go along"
    assert mapped[0, 0] == 0


def _saved(folder):
    np.save(folder / "saved.npy", np.arange(5_000.0))
    return folder / "saved.npy"


def test_a_sparse_file_of_a_terabyte_is_an_argument(executor, tmp_path):
    array = np.memmap(tmp_path / "sparse", dtype="u1", mode="w+", shape=(1 << 40,))
    executor.submit(tasks.put_into, array, 1 << 39, 5).result(60)
    assert array[1 << 39] == 5
    assert os.stat(tmp_path / "sparse").st_blocks * 512 < 1 << 20


def test_a_file_that_the_worker_does_not_see_is_an_error_that_says_so(executor, mapped, tmp_path):
    path = tmp_path / "data"
    data = hotlease._pickles.dump_arguments((mapped,), None)[0]
    path.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match="data, which the worker cannot map.*pass a copy"):
        executor.submit(tasks.loaded, data).result(60)
    path.write_bytes(bytes(32_000))
    with pytest.raises(FileNotFoundError, match="the worker finds another file at that path"):
        executor.submit(tasks.loaded, data).result(60)
    path.unlink()
    assert executor.submit(tasks.sum_of, mapped).result(60) == mapped.sum(), "of a removed file there is only the copy"


def test_joblib_fills_a_mapped_array(platform, tmp_path):
    pytest.importorskip("joblib")
    script = """
        import joblib, numpy as np
        import hotlease.joblib

        def fill(out, i):
            out[i] = i + 1.0

        out = np.memmap("out", dtype="f8", mode="w+", shape=(4, 50_000))
        shared = np.memmap("shared", dtype="f8", mode="w+", shape=(4,))

        def of_global(i):
            shared[i] = i

        with joblib.parallel_config(backend="hotlease"):
            joblib.Parallel(n_jobs=2)(joblib.delayed(fill)(out, i) for i in range(4))
            joblib.Parallel(n_jobs=2)(joblib.delayed(of_global)(i) for i in range(4))
        print(out[:, 0].tolist(), shared.tolist())
    """
    (tmp_path / "main.py").write_text(textwrap.dedent(script))
    done = subprocess.run([sys.executable, "main.py"], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.stdout.split("\n")[0] == "[1.0, 2.0, 3.0, 4.0] [0.0, 1.0, 2.0, 3.0]", done.stderr
