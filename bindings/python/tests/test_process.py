"""Processes of workers and programs: arithmetic, teams of threads, folders of any name, few descriptors."""

import os
import pathlib
import subprocess
import sys

import pytest

import hotlease

numpy = pytest.importorskip("numpy")

# A library that changes the arithmetic of the thread that loads it, like a library that is linked with -ffast-math, and of
# the thread that calls its function.
_CHANGES = """\
#include <fenv.h>
#include <hotlease/function.h>

__attribute__((constructor)) static void change(void)
{
    fesetround(FE_UPWARD);
}

HOTLEASE_PLAIN_FUNCTION(changes)
{
    change();
    return 0;
}
"""


@pytest.fixture(scope="module")
def changing(tmp_path_factory):
    """A library that changes the arithmetic of a thread when the thread loads it or calls its function."""
    folder = tmp_path_factory.mktemp("library")
    source, built = folder / "changes.c", folder / "changes.so"
    source.write_text(_CHANGES)
    include = pathlib.Path(__file__).parents[3] / "include"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-I", str(include), "-o", str(built), str(source), "-lm"]
    subprocess.run(command, check=True)
    return str(built)


def _third(load=None):
    if load:
        import ctypes

        ctypes.CDLL(load)
    return float(numpy.float64(1.0) / numpy.float64(3.0))


class _Loads:
    """An argument that loads a library when it is unpickled, as the import of a module does."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        import ctypes

        return ctypes.CDLL, (self.path,)


def _third_beside(_):
    return _third()


def test_no_library_and_no_function_changes_the_arithmetic_of_later_tasks(platform, changing):
    changes = hotlease.native(changing, "changes", output=1)
    expected = 1 / 3
    with hotlease.Executor(1) as executor:
        assert executor.submit(_third).result(60) == expected
        for _ in range(2):
            executor.submit(changes, b"x").result(60)
            assert executor.submit(_third).result(60) == expected, "after a native task"
    with hotlease.Executor(1) as executor:
        executor.submit(_third, changing).result(60)
        assert executor.submit(_third).result(60) == expected, "after a task that loaded the library"
    with hotlease.Executor(1) as executor:
        assert executor.submit(_third_beside, _Loads(changing)).result(60) == expected, "the first run is as later ones"


def test_imports_do_not_change_the_arithmetic_of_tasks(platform, run, changing, tmp_path):
    (tmp_path / "loader.py").write_text(f"import ctypes\nctypes.CDLL({changing!r})\n")
    done = run(
        """
import hotlease, test_process
with hotlease.Executor(1, options=hotlease.ExecutorOptions(imports=["loader"])) as executor:
    print(executor.submit(test_process._third).result(60) == 1 / 3)
"""
    )
    assert done.stdout == "True\n", done.stdout + done.stderr


def test_a_function_that_the_program_calls_itself_leaves_its_arithmetic_alone(changing):
    hotlease.native(changing, "changes", output=1)(b"x")
    assert _third() == 1 / 3


_TEAMS = ("MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def _teams(names):
    return [os.environ.get(name) for name in names]


def test_teams_of_threads_have_the_size_of_a_slot_unless_a_variable_says_otherwise(platform, monkeypatch):
    for name in _TEAMS:
        monkeypatch.delenv(name, raising=False)
    with hotlease.Executor(1) as executor:
        assert executor.submit(_teams, _TEAMS).result(60) == ["1"] * 5
    options = hotlease.ExecutorOptions(variables={"RAYON_NUM_THREADS": "5"})
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    with hotlease.Executor(1, options=options) as executor:
        assert executor.submit(_teams, _TEAMS).result(60) == ["1", "1", "1", "3", "5"]
    # Most libraries use OpenMP's number of threads if their own variable is not set.
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with hotlease.Executor(1) as executor:
        assert executor.submit(_teams, _TEAMS).result(60) == [None, None, "2", None, "1"]


@pytest.mark.parametrize("name", [b"run_2026-01-01T12:30:00", b"caf\xe9", "caf\u00e9".encode(), b"100%3A", b"a b\n"])
def test_programs_run_from_folders_of_any_name(platform, tmp_path, name):
    folder = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(folder)
    with open(os.path.join(folder, b"helper.py"), "w") as file:
        file.write("import os\ndef here(): return os.fsencode(os.getcwd()), os.fsencode(__file__)\n")
    with open(os.path.join(folder, b"main.py"), "w") as file:
        file.write("import helper, hotlease\nwith hotlease.Executor(1) as executor: print(executor.submit(helper.here).result(60))\n")
    command = [sys.executable, os.path.join(folder, b"main.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60)
    assert done.stdout.strip() == repr((folder, os.path.join(folder, b"helper.py"))), done.stderr


def test_a_program_may_run_in_a_folder_that_was_removed(platform, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    program = (
        "import os, sys; os.rmdir(os.getcwd())\n"
        "import hotlease\n"
        "with hotlease.Executor(1) as executor: print(executor.submit(os.getcwd).result(60))\n"
    )
    for first in ("", "relative"):
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {first!r})\n{program}"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60)
        assert done.stdout == "/\n", done.stderr


def test_with_few_descriptors_large_arguments_and_results_are_copied(platform, run):
    done = run(
        """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
import numpy, hotlease
with hotlease.Executor(1) as executor:
    array = numpy.ones(200_000)
    print(len([future.result(60) for future in [executor.submit(len, array) for _ in range(40)]]))
    doubled = [future.result(60) for future in [executor.submit(numpy.multiply, array, 2) for _ in range(40)]]
    print(sum(float(result.sum()) for result in doubled) == 40 * 400_000)
    # A program that has few descriptors left itself.
    files = []
    while True:
        try:
            files.append(open("/dev/null"))
        except OSError:
            break
    if files:
        files.pop().close()
    futures = [executor.submit(len, array) for _ in range(20)]
    print(len([future.result(60) for future in futures]))
"""
    )
    assert done.stdout.split() == ["40", "True", "20"], done.stdout + done.stderr
