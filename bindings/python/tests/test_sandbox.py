"""Workers in sandboxes of kind namespace. On nodes that cannot make sandboxes, these tests are skipped with the reason."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile

import pytest
import talking
import tasks

import hotlease
from hotlease import _shared_key

from conftest import end


@pytest.fixture
def sandboxed(platform):
    """An executor with one worker in a namespace."""
    if os.environ.get("HOTLEASE_TRANSPORT"):
        pytest.skip("a worker without a network is reached through shared memory only")
    executor = None
    try:
        executor = hotlease.Executor(1, options=hotlease.ExecutorOptions(sandbox="namespace"))
        executor.submit(int).result(60)
    except hotlease.Error as error:
        if "no sandbox of kind" not in str(error):
            raise
        pytest.skip(str(error))
    yield executor
    end(executor)


def _seen(file, runtime):
    files = [name for _, _, names in os.walk(runtime) for name in names]
    return os.getuid(), files, os.path.exists("/sys"), os.path.exists(file)


def test_tasks_run_and_see_a_root_of_their_own(sandboxed):
    # Of the home directory, only the path to this Python is visible.
    with tempfile.NamedTemporaryFile(dir=os.path.expanduser("~")) as own:
        runtime = os.environ["HOTLEASE_RUNTIME_DIR"]
        user, sockets, system, file = sandboxed.submit(_seen, own.name, runtime).result(60)
    assert user == 1000
    assert not system and not file
    assert os.listdir(runtime) and not sockets
    assert list(sandboxed.map(pow, range(5), [2] * 5)) == [0, 1, 4, 9, 16]


@pytest.mark.parametrize("place", ["ann", "ann/project"])
def test_a_sandbox_shows_the_programs_folder_but_no_home_folder(sandboxed, output, tmp_path, place):
    end(sandboxed)
    home, folder = tmp_path / "ann", tmp_path / place
    (home / ".ssh").mkdir(parents=True)
    key = home / ".ssh" / "id_ed25519"
    key.write_text("private")
    folder.mkdir(exist_ok=True)
    (folder / "beside.py").write_text("import os\n\ndef seen(*paths):\n    return [os.path.exists(path) for path in paths]\n")
    is_home = folder == home
    lines = output(
        """
        import json, os, subprocess, warnings
        import beside, hotlease

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            executor = hotlease.Executor(1, options=hotlease.ExecutorOptions(sandbox="namespace"))
        here = os.path.dirname(os.path.abspath(__file__))
        with executor:
            print(executor.submit(beside.seen, os.environ["KEY"], here).result(60))
            explain = [os.path.join(os.environ["HOTLEASE_PROGRAMS"], "hotlease"), "explain", "--json"]
            explained = json.loads(subprocess.run(explain, capture_output=True, text=True, check=True).stdout)
        print([here in str(each.message) for each in caught if "home folder" in str(each.message)])
        print(here in explained["shows"], here in explained["hides"])
        """,
        folder,
        KEY=str(key),
    )
    assert lines[0] == str([False, not is_home]), "the key, and the program's folder"
    assert lines[1] == str([True] if is_home else [])
    assert lines[2] == f"{not is_home} {is_home}"
    # With a lease that declares the folder, tasks see it, and the program gets no warning.
    if is_home:
        with _in_sandbox(mounts=[str(home)]) as executor:
            assert executor.submit(os.path.exists, str(home / "beside.py")).result(60)


def test_a_task_that_dies_is_told_and_the_next_one_runs(sandboxed):
    with pytest.raises(hotlease.Error, match="signal 11"):
        sandboxed.submit(lambda: os.kill(os.getpid(), signal.SIGSEGV)).result(60)
    assert sandboxed.submit(pow, 2, 10).result(60) == 1024


def _in_sandbox(**options):
    return hotlease.Executor(1, options=hotlease.ExecutorOptions(sandbox="namespace", **options))


def test_a_result_from_a_sandbox_runs_no_code_in_the_program(sandboxed, tmp_path):
    numpy = pytest.importorskip("numpy")
    path = str(tmp_path / "made")
    for way in (tasks.returns_code, tasks.raises_code, tasks.returns_place_of_file, tasks.returns_code_as_to_a_trusting_program):
        with pytest.raises(hotlease.TaskError, match="NotAdmitted") as raised:
            sandboxed.submit(way, path).result(60)
        assert raised.value.ran is True and not os.path.exists(path), way
        with pytest.raises(hotlease.TaskError, match="NotAdmitted"):
            next(sandboxed.map(way, [path]))
        assert not os.path.exists(path), way
    # From now on this worker may send the program anything, so it is replaced. Other workers are not changed.
    end(sandboxed)
    with _in_sandbox() as executor:
        with pytest.raises(KeyError, match="plain"):
            executor.submit({}.__getitem__, "plain").result(60)
        mapped = executor.submit(tasks.returns_mapped).result(60)
        assert type(mapped) is numpy.ndarray and mapped.tolist() == [1, 2, 3]


def test_the_code_in_a_dask_exception_does_not_run_either(sandboxed, tmp_path):
    dask = pytest.importorskip("dask")
    from hotlease import dask as scheduler

    task = dask.delayed(tasks.raises_code)(str(tmp_path / "made"))
    with pytest.raises(hotlease.TaskError, match="NotAdmitted"):
        dask.compute(task, scheduler=scheduler.get, pool=sandboxed)
    assert not os.listdir(tmp_path)


def test_what_a_sandbox_prints_or_logs_has_no_control_characters(sandboxed, capsys):
    evil, plain = "\x1b]0;title\x07\ta 10 %\rb\x9b31m", "b\ufffd31m"
    sandboxed.submit(talking.say_what_is, f"{evil}\n").result(60)
    assert capsys.readouterr().out == f"[say_what_is worker 0] {plain}\n"
    seen = []
    options = hotlease.ExecutorOptions(sandbox="namespace", output=seen.append)
    end(sandboxed)
    with hotlease.Executor(1, options=options) as executor:
        executor.submit(talking.warn, evil, evil).result(60)
    (record,) = seen
    assert record.getMessage() == record.name == "\ufffd]0;title\ufffd\ta 10 %\rb\ufffd31m"


def test_a_sandbox_returns_objects_of_classes_that_the_program_names(sandboxed, output):
    lines = output("""
        import dataclasses, enum, hotlease, numpy

        @dataclasses.dataclass
        class Point:
            x: object

        class Colour(enum.Enum):
            RED = 1

        class Failed(Exception):
            pass

        def made():
            return [Point(numpy.ones(100_000)), Colour.RED]

        def fail():
            raise Failed(Point(1))

        def size(made):
            point, colour = made
            return int(point.x.sum()), colour is Colour.RED

        named = hotlease.ExecutorOptions(sandbox="namespace", result_classes=[Point, Colour, Failed])
        with hotlease.Executor(1, options=named) as executor:
            future = executor.submit(made)
            point, colour = future.result()
            print(type(point) is Point, colour is Colour.RED, point.x.sum())
            print(executor.submit(size, executor.submit(made)).result())
            try:
                executor.submit(fail).result()
            except Failed as error:
                print(error.args)
            for other in (lambda: (lambda: 1), lambda: type("Point", (), {})()):
                try:
                    executor.submit(other).result()
                except hotlease.TaskError as error:
                    print(error.ran, "result_classes" in str(error))
    """)
    assert lines == ["True True 100000.0", "(100000, True)", "(Point(x=1),)", "True True", "True True"]


def test_results_of_a_sandbox_are_trusted_only_if_the_program_says_so(sandboxed, tmp_path):
    end(sandboxed)
    with pytest.warns(RuntimeWarning, match="trust_results=True"), _in_sandbox(trust_results=True) as executor:
        executor.submit(tasks.returns_code, str(tmp_path / "made")).result(60)
    assert os.listdir(tmp_path) == ["made"]


def test_a_program_that_trusts_results_finds_none_of_a_sandbox_in_its_checkpoint(sandboxed, tmp_path):
    end(sandboxed)
    options = {"checkpoint": tmp_path / "results", "memo": True}
    results = []
    for sandbox in ("namespace", "process", "namespace", "process"):
        with hotlease.Executor(1, options=hotlease.ExecutorOptions(sandbox=sandbox, **options)) as executor:
            results.append(executor.submit(tasks.token).result(60))
    assert results[0] == results[2] != results[1] == results[3]


def test_an_unknown_kind_is_refused(platform):
    with pytest.raises(hotlease.Error, match="sandbox"):
        hotlease.Executor(1, options=hotlease.ExecutorOptions(sandbox="jail")).submit(int).result(60)


def test_a_sandboxed_worker_gets_no_key_of_the_program(sandboxed):
    with multiprocessing.Manager() as manager:
        with pytest.raises(PermissionError, match="outside of a sandbox; this worker did not"):
            sandboxed.submit(len, manager.list()).result(60)


def test_only_a_process_that_sees_the_program_s_files_gets_its_key(tmp_path):
    script = "import sys\nfrom hotlease import _shared_key\nprint(_shared_key._asked(sys.argv[1]) == bytes.fromhex(sys.argv[2]))"
    asking = [sys.executable, "-c", script, _shared_key._served(), multiprocessing.current_process().authkey.hex()]
    assert subprocess.run(asking, capture_output=True, text=True, timeout=60).stdout == "True\n"
    apart = ["unshare", "--mount", "--map-root-user"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
        pytest.skip("no other namespaces here")
    done = subprocess.run([*apart, *asking], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "PermissionError" in done.stderr and "does not know it as one" in done.stderr
