"""Parsl's guarantees, with its apps in leased workers."""

import os
import threading
import traceback

import pytest
import tasks

import hotlease

parsl = pytest.importorskip("parsl")

import hotlease.parsl  # noqa: E402
from parsl import bash_app, join_app, python_app  # noqa: E402
from parsl.app.errors import AppTimeout, BashExitFailure, wrap_error  # noqa: E402
from parsl.config import Config  # noqa: E402
from parsl.dataflow.errors import DependencyError  # noqa: E402
from parsl.executors.errors import BadStateException, InvalidResourceSpecification  # noqa: E402
from parsl.serialize.errors import SerializationError  # noqa: E402


@pytest.fixture(scope="module")
def kernel(platform, tmp_path_factory):
    """Executor with one worker, in a kernel that tries a failed task once more."""
    executor = hotlease.parsl.HotleaseExecutor(max_workers=1)
    config = Config(executors=[executor], run_dir=str(tmp_path_factory.mktemp("runs")), retries=1, usage_tracking=0)
    with parsl.load(config):
        yield executor


@python_app
def add(a, b=0):
    return a + b


@python_app
def pid():
    import os

    return os.getpid()


@python_app
def fail(text):
    import tasks

    tasks.fail(text)


@python_app
def die(status, path=None):
    import tasks

    return tasks.die(status) if path is None else tasks.die_once(path)


@python_app(executors=["hotlease"])
def slow(walltime=0.2):
    import time

    for _ in range(1000):
        time.sleep(0.01)


@bash_app
def shell(command, stdout=None):
    return command


@join_app
def fibonacci(n):
    return add(n, 0) if n < 2 else add(fibonacci(n - 1), fibonacci(n - 2))


def test_python_apps_run_in_workers_and_take_futures(kernel):
    assert pid().result(300) != os.getpid()
    total = add(0)
    for n in range(20):
        total = add(total, b=n)
    assert total.result(300) == sum(range(20))


def test_bash_apps_run_in_workers(kernel, tmp_path):
    path = tmp_path / "out"
    assert shell("echo said", stdout=str(path)).result(300) == 0
    assert path.read_text().split("\n")[-2] == "said"
    with pytest.raises(BashExitFailure):
        shell("exit 3").result(300)


def test_join_apps_join_apps_that_run_in_workers(kernel):
    assert fibonacci(6).result(300) == 8


def test_an_exception_of_an_app_has_the_traceback_of_the_worker(kernel):
    with pytest.raises(ValueError, match="on purpose") as raised:
        fail("on purpose").result(300)
    text = "".join(traceback.format_exception(type(raised.value), raised.value, raised.value.__traceback__))
    assert "tasks.py" in text and "in fail" in text
    with pytest.raises(DependencyError):
        add(fail("first"), 1).result(300)


def test_a_worker_that_dies_is_told_replaced_and_tried_again(kernel, tmp_path):
    with pytest.raises(hotlease.WorkerDied) as raised:
        die(3).result(300)
    assert raised.value.exit_code == 3 and "last words" in raised.value.output
    assert die(0, str(tmp_path / "once")).result(300) == "survived", "Parsl tries it again, on another worker"
    assert add(1, 2).result(300) == 3
    assert not kernel.bad_state_is_set, "a worker's death is its task's alone"


def test_a_walltime_ends_a_task(kernel):
    with pytest.raises(AppTimeout):
        slow().result(300)
    assert add(1, 1).result(300) == 2


def test_large_arrays_and_what_does_not_pickle(kernel):
    np = pytest.importorskip("numpy")
    array = np.arange(500_000)
    assert np.array_equal(add(array, b=1).result(300), array + 1)
    with pytest.raises(SerializationError, match="add"):
        add(threading.Lock()).result(300)


def test_resources_of_a_task_are_refused_by_name(kernel):
    @python_app
    def asking(parsl_resource_specification={}):  # noqa: B006
        return 1

    with pytest.raises(InvalidResourceSpecification, match="cores"):
        asking(parsl_resource_specification={"cores": 2}).result(300)


def test_the_executor_reports_its_state(kernel, tmp_path, eventually):
    gate = tmp_path / "gate"
    assert kernel.connected_workers == 1
    waiting = [kernel.submit(tasks.wait_for, {}, str(gate)) for _ in range(3)]
    assert kernel.outstanding() == 3
    gate.touch()
    assert [future.result(300) for future in waiting] == [str(gate)] * 3
    eventually(lambda: kernel.outstanding() == 0, "nothing is outstanding")
    assert kernel.monitor_resources()
    assert "label='hotlease'" in repr(kernel)


def test_a_broken_executor_stays_broken_and_says_why(kernel):
    executor = hotlease.parsl.HotleaseExecutor("broken", 1)
    with pytest.raises(RuntimeError, match="not started"):
        executor.submit(abs, {}, 1)

    class Broken(hotlease.Executor):
        def __init__(self):
            self._result_classes = None

        def submit(self, *args):
            raise hotlease.ExecutorBroken("the platform is gone", False)

        def shutdown(self, wait):
            pass

    executor._executor = Broken()
    for _ in range(2):
        with pytest.raises(BadStateException, match="the platform is gone"):
            executor.submit(abs, {}, 1)
    assert executor.bad_state_is_set and isinstance(executor.executor_exception, hotlease.ExecutorBroken)
    executor.shutdown()


def test_an_executor_can_be_used_on_its_own(platform, kernel):
    # The configuration's only worker leaves a core free, if there are two cores.
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    with hotlease.parsl.HotleaseExecutor("alone", 1, timeout=300) as executor:
        executor.start()
        assert executor.submit(tasks.add, {}, 1, c=2).result(300) == 3
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(tasks.add, {}, 1)


def test_the_program_gets_the_exception_of_an_app_in_a_sandbox(platform, tmp_path):
    if os.environ.get("HOTLEASE_TRANSPORT"):
        pytest.skip("a worker without a network is reached through shared memory only")
    executor = hotlease.parsl.HotleaseExecutor("confined", 1, sandbox="namespace")
    try:
        executor.start()
    except hotlease.Error as error:
        if "no sandbox of kind" not in str(error):
            raise
        pytest.skip(str(error))
    try:
        returned = wrap_error(tasks.fail)
        with pytest.raises(ValueError, match="on purpose"):
            executor.submit(returned, {}, "on purpose").result(300)
        with pytest.raises(BashExitFailure) as raised:
            executor.submit(wrap_error(tasks.fails_as_bash), {}, 3).result(300)
        assert raised.value.exitcode == 3
        assert executor.submit(wrap_error(pow), {}, 2, 3).result(300) == 8
    finally:
        executor.shutdown()
