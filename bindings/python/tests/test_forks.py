"""Processes that a program or a task forks: they start as they would without hotlease."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

import hotlease

# A program that forks; each child has to end by itself.
_PROGRAM = """\
import multiprocessing, os, signal, sys, threading, time, warnings
import hotlease
import tasks

# Python 3.12 and later warns of forks because other threads exist.
warnings.simplefilter("ignore", DeprecationWarning)

def awaited(child):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"

def calls(number):
    with hotlease.Executor(1) as mine:
        return mine.submit(abs, -number).result(60)

"""


def test_the_child_of_a_fork_makes_its_own_executor(platform, run):
    done = run(
        _PROGRAM
        + """
print(calls(1))
child = os.fork()
if child == 0:
    grandchild = os.fork()
    if grandchild == 0:
        os._exit(calls(3))
    os._exit(10 * calls(2) + awaited(grandchild))
print(awaited(child), calls(4))
"""
    )
    assert done.stdout.split() == ["1", "23", "4"], done.stdout + done.stderr


@pytest.mark.parametrize("end", ["os._exit(calls(2))", "sys.exit(calls(2))", "del executor, array; sys.exit(calls(2))"])
def test_a_child_leaves_its_parent_s_executor_alone(platform, run, end):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    done = run(
        _PROGRAM
        + f"""
executor = hotlease.Executor(1)
worker = executor.submit(os.getpid).result(60)
# Memory that is registered with the worker, and that a child drops at its end.
array = executor.submit(bytearray, 1_000_000).result(60)
child = os.fork()
if child == 0:
    {end}
print(awaited(child), executor.submit(os.getpid).result(60) == worker, len(executor.submit(bytearray, 1_000_000).result(60)))
"""
    )
    assert done.stdout.split() == ["2", "True", "1000000"], done.stdout + done.stderr


def test_children_start_though_other_threads_use_hotlease(platform, run):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    done = run(
        _PROGRAM
        + """
executor = hotlease.Executor(1)
is_over = threading.Event()
def submit():
    while not is_over.is_set():
        list(executor.map(abs, range(100)))
threads = [threading.Thread(target=submit) for _ in range(2)]
for thread in threads:
    thread.start()
with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
    print(pool.map(calls, range(4), chunksize=1))
is_over.set()
for thread in threads:
    thread.join()
print(executor.submit(abs, -5).result(60))
"""
    )
    assert done.stdout.splitlines() == ["[0, 1, 2, 3]", "5"], done.stdout + done.stderr


def test_the_program_s_executor_is_each_process_s_own(platform, run):
    done = run(
        _PROGRAM
        + """
@hotlease.function
def triple(n):
    return 3 * n

print(triple.submit(1).result(60))
from hotlease import _kept
_kept.executor().shutdown()
child = os.fork()
if child == 0:
    sys.exit(triple.submit(2).result(60))
print(awaited(child))
"""
    )
    assert done.stdout.split() == ["3", "6"], done.stdout + done.stderr


def _signals_in(status):
    """Returns the blocked, ignored and caught signals in a process's status, without the two signals that the C library
    uses itself."""
    rows = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Sig"))
    return [hex(int(rows[name], 16) & ~(3 << 31)) for name in ("SigBlk", "SigIgn", "SigCgt")]


def _signals_of_a_child():
    """Returns the signals of a forked process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with open("/proc/self/status") as status:
            os.write(write, status.read().encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        text = told.read()
    os.waitpid(child, 0)
    return _signals_in(text)


def _signals_of_a_program():
    """Returns the signals of a program that is executed."""
    return _signals_in(subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout)


def test_children_of_a_task_have_the_signals_of_any_child_of_python(executor):
    plain = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_forks; print(test_forks._signals_of_a_child())"
    done = subprocess.run([sys.executable, "-c", plain], capture_output=True, text=True, timeout=60)
    assert repr(executor.submit(_signals_of_a_child).result(60)) == done.stdout.strip(), done.stderr
    assert executor.submit(_signals_of_a_program).result(60) == ["0x0"] * 3


def _sleep():
    time.sleep(600)


def _terminate(times):
    """Ends processes at any moment after their start; returns their exit codes, and the seconds that this took."""
    context, codes = multiprocessing.get_context("fork"), set()
    begin = time.monotonic()
    for number in range(times):
        process = context.Process(target=_sleep, daemon=True)
        process.start()
        time.sleep(0.001 * (number % 5))
        process.terminate()
        process.join(30)
        codes.add(process.exitcode)
    return codes, time.monotonic() - begin


def test_a_process_of_a_task_can_be_terminated(executor):
    codes, took = executor.submit(_terminate, 20).result(120)
    assert codes == {-signal.SIGTERM} and took < 30, (codes, took)


def _pools(times):
    context = multiprocessing.get_context("fork")
    results = []
    for _ in range(times):
        with context.Pool(2) as pool:
            results.append(pool.map(abs, range(-3, 3)))
    return results


def test_pools_of_processes_in_tasks_end(executor):
    assert executor.submit(_pools, 20).result(120) == [[3, 2, 1, 0, 1, 2]] * 20


_NAMES_OF_MAIN = """\
import concurrent.futures, dataclasses, multiprocessing, pickle
import hotlease

@dataclasses.dataclass
class Point:
    x: int
    y: int = 0

class Diverged(Exception):
    pass

def square(x):
    return Point(x.x * x.x) if isinstance(x, Point) else x * x

def in_pools(points):
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        numbers = pool.map(square, range(4))
    with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
        return numbers, list(pool.map(square, points))

def there_and_back(values):
    return pickle.loads(pickle.dumps(values)) == values, pickle.loads(pickle.dumps(square)) is square

def fail(point):
    pickle.dumps(point)
    raise Diverged(point)

def unknown():
    import __main__
    return hasattr(__main__, "nothing"), hasattr(__main__, "__file__")

if __name__ == "__main__":
    with hotlease.Executor(1) as executor:
        points = [Point(2), Point(3)]
        numbers, squares = executor.submit(in_pools, points).result(120)
        assert numbers == [0, 1, 4, 9] and squares == [Point(4), Point(9)], (numbers, squares)
        assert all(type(each) is Point for each in squares)
        assert executor.submit(there_and_back, points).result(60) == (True, True)
        # Results and exceptions have the program's own classes as before.
        made = executor.submit(lambda: [square, Point, Point(1)]).result(60)
        assert made[:2] == [square, Point] and type(made[2]) is Point
        error = executor.submit(fail, points[0]).exception(60)
        assert type(error) is Diverged and error.args == (points[0],), repr(error)
        assert executor.submit(unknown).result(60) == (False, False)
        # A class that has changed is the new one for pickles by name, too.
        Point.more = 5
        assert executor.submit(lambda one: pickle.loads(pickle.dumps(one)).more, Point(1)).result(60) == 5
    print("right")
"""


def test_processes_and_pickles_in_tasks_find_what_the_program_has_defined(platform, run):
    done = run(_NAMES_OF_MAIN)
    assert done.stdout.split() == ["right"], done.stdout + done.stderr


def _keep_own_action(path):
    """Sets an action for a signal, which a forked child inherits."""
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
    child = os.fork()
    if child == 0:
        open(path, "w").close()
        time.sleep(60)
        os._exit(0)
    while not os.path.exists(path):
        time.sleep(0.001)
    os.kill(child, signal.SIGUSR1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_actions_that_a_task_has_set_are_its_child_s_too(executor, tmp_path):
    assert executor.submit(_keep_own_action, str(tmp_path / "ready")).result(60) == 7


def _child_aborts():
    child = os.fork()
    if child == 0:
        os.abort()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_death_of_a_child_is_not_its_worker_s(executor):
    assert executor.submit(_child_aborts).result(60) == -signal.SIGABRT
    with pytest.raises(hotlease.WorkerDied) as raised:
        executor.submit(os._exit, 3).result(60)
    assert raised.value.exit_code == 3, "not the signal of the child"
