"""Parsl's guarantees, with its apps as tasks of hotlease's own dataflow kernel."""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import threading
import time
import traceback

import pytest

import hotlease

parsl = pytest.importorskip("parsl")

import hotlease.parsl  # noqa: E402
from parsl import File, bash_app, join_app, python_app  # noqa: E402
from parsl.app.errors import AppTimeout, BadStdStreamFile, BashExitFailure, MissingOutputs  # noqa: E402
from parsl.config import Config  # noqa: E402
from parsl.data_provider.staging import Staging  # noqa: E402
from parsl.dataflow.errors import DependencyError, JoinError  # noqa: E402
from parsl.dataflow.memoization import BasicMemoizer  # noqa: E402
from parsl.errors import ConfigurationError, NoDataFlowKernelError  # noqa: E402
from parsl.executors import ThreadPoolExecutor  # noqa: E402
from parsl.executors.errors import InvalidResourceSpecification  # noqa: E402
from parsl.serialize.errors import SerializationError  # noqa: E402
from parsl.utils import get_all_checkpoints  # noqa: E402


@pytest.fixture
def load(platform, tmp_path):
    """Loads kernels with one worker, as a program does; cleans up remaining kernels afterwards."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores: the kept kernel has one")
    kernels = []

    def load(executor=None, **options):
        options.setdefault("run_dir", str(tmp_path / "runs"))
        executors = [executor or hotlease.parsl.HotleaseExecutor(max_workers=1)]
        kernels.append(hotlease.parsl.load(Config(executors=executors, usage_tracking=0, **options)))
        return kernels[-1]

    yield load
    for kernel in kernels:
        if not kernel.cleanup_called:
            kernel.cleanup()
    parsl.clear()


@pytest.fixture(scope="module")
def kernel(platform, tmp_path_factory):
    """Kernel for tests that do not change it. It is cleared from Parsl, so that other tests may load their own kernels."""
    config = Config(executors=[hotlease.parsl.HotleaseExecutor(max_workers=1)], run_dir=str(tmp_path_factory.mktemp("runs")))
    kernel = hotlease.parsl.load(config)
    parsl.clear()
    yield kernel
    kernel.cleanup()


@pytest.fixture
def loaded(kernel):
    """The shared kernel, as if the program had loaded it."""
    parsl.dataflow.dflow.DataFlowKernelLoader._dfk = kernel
    yield kernel
    parsl.clear()


@python_app
def add(a, b=0):
    return a + b


@python_app
def total(inputs=()):
    return sum(inputs)


@python_app
def same(value, **named):
    return [value, named] if named else value


@python_app
def pid():
    import os

    return os.getpid()


@python_app
def fail(text):
    try:
        {}["nothing"]
    except KeyError as error:
        raise ValueError(text) from error


@python_app
def wait_for(path):
    import tasks

    return tasks.wait_for(path)


@python_app
def fail_first(path, times):
    import tasks

    return tasks.mark_and_fail(path, times)


@python_app
def die(path):
    import tasks

    return tasks.die_once(path)


@python_app
def slow(walltime=0.2):
    import time

    [time.sleep(0.01) for _ in range(1000)]


@python_app(cache=True, ignore_for_cache=["label"])
def once(path, value, label=None):
    import tasks

    return tasks.mark_and_return(path, value)


@bash_app
def shell(command, inputs=(), outputs=(), stdout=None, stderr=None):
    return command.format(inputs=inputs, outputs=outputs)


@join_app
def fibonacci(n):
    return add(n, 0) if n < 2 else add(fibonacci(n - 1), fibonacci(n - 2))


@join_app
def each(numbers):
    return [add(n, 1) for n in numbers]


@join_app
def join_what(what):
    return fail("inside") if what == "failure" else what


def is_direct(future):
    """Whether the task of a future belongs to hotlease's kernel, and not to Parsl's kernel."""
    return isinstance(future, hotlease.Future) and isinstance(future, parsl.dataflow.futures.AppFuture)


def runs(path):
    return os.path.getsize(path)


def test_apps_are_tasks_of_the_executor_in_workers(loaded):
    future = pid()
    assert is_direct(future) and future.result(300) != os.getpid()
    assert parsl.dfk() is loaded and loaded.tasks == {}, "Parsl's kernel has nothing of it"


def test_a_chain_of_a_thousand(loaded):
    future = add(0)
    for _ in range(1000):
        future = add(future, b=1)
    assert is_direct(future) and future.result(300) == 1000


def test_futures_are_arguments_by_place_by_name_in_inputs_and_inside(loaded):
    many = [add(n) for n in range(500)]
    assert total(inputs=many).result(300) == sum(range(500))
    while len(many) > 1:
        many = [add(*many[at : at + 2]) for at in range(0, len(many), 2)]
    assert many[0].result(300) == sum(range(500))
    assert same(add(1), k=add(2)).result(300) == [1, {"k": 2}]
    assert same([add(1), {"k": (add(2),)}]).result(300) == [1, {"k": (2,)}]


def test_futures_of_others_are_arguments_too(loaded, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        gate = tmp_path / "gate"
        future = add(threads.submit(lambda: [time.sleep(0.001) for _ in iter(gate.exists, True)] and 1 or 1), fibonacci(5))
        assert is_direct(future) and not future.done()
        gate.touch()
        assert future.result(300) == 6


def test_an_exception_of_an_app_has_the_form_that_parsl_gives_it(loaded):
    future = fail("on purpose")
    with pytest.raises(ValueError, match="on purpose") as raised:
        future.result(300)
    assert isinstance(raised.value.__cause__, KeyError), "its cause is that of the worker"
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames[-1] == "fail", "its traceback goes on in the worker"
    assert future.exception() is raised.value and future.task_status() == "failed"


def test_an_exception_that_does_not_pickle_is_told(loaded):
    @python_app
    def unpicklable():
        import threading

        class Odd(Exception):
            pass

        raise Odd("told", threading.Lock())

    with pytest.raises(hotlease.TaskError, match="Odd.*told"):
        unpicklable().result(300)


def test_an_app_that_depends_on_a_failed_app_fails_with_parsl_s_error(loaded):
    first = fail("first")
    second = add(first, 1)
    third = total(inputs=[second, add(1)])
    with pytest.raises(DependencyError) as raised:
        third.result(300)
    assert isinstance(raised.value.__cause__, ValueError) and raised.value.task_id == third.tid
    assert str(raised.value).endswith(f"via task {second.tid} <- task {first.tid}")
    assert [(type(error), text) for error, text in raised.value.dependent_exceptions_tids] == [
        (DependencyError, f"task {second.tid}")
    ]
    assert third.task_status() == "dep_fail"


def test_the_cause_is_known_though_the_failed_future_is_gone(loaded):
    with pytest.raises(DependencyError, match="representative cause is via add <- fail") as raised:
        add(add(fail("let go"))).result(300)
    assert isinstance(raised.value.__cause__, ValueError) and str(raised.value.__cause__) == "let go"


def test_failures_cross_between_the_kernels(loaded):
    joined = join_what("failure")
    with pytest.raises(DependencyError) as raised:
        add(joined).result(300)
    assert isinstance(raised.value.dependent_exceptions_tids[0][0], JoinError)
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(DependencyError) as raised:
        once("unused", fail("direct"), label=0).result(300)
    assert isinstance(raised.value.__cause__, ValueError)


def test_join_apps(loaded):
    assert fibonacci(7).result(300) == 13
    assert each([1, 2, 3]).result(300) == [2, 3, 4]
    assert each([]).result(300) == []
    with pytest.raises(JoinError) as raised:
        join_what("failure").result(300)
    assert isinstance(raised.value.__cause__, ValueError) and "via task" in str(raised.value)
    with pytest.raises(TypeError, match="must return a Future"):
        join_what(3).result(300)


def test_bash_apps_write_where_they_are_told_to(loaded, tmp_path):
    out, err = str(tmp_path / "deep" / "out"), str(tmp_path / "err")
    future = shell("echo said; echo warned >&2", stdout=out, stderr=err)
    assert is_direct(future) and future.result(300) == 0
    assert (future.stdout, future.stderr) == (out, err)
    assert pathlib.Path(out).read_text() == "said\n" and pathlib.Path(err).read_text().endswith("warned\n")
    assert shell("echo more", stdout=(out, "a")).result(300) == 0
    assert pathlib.Path(out).read_text() == "said\nmore\n"
    named = shell("echo named", stdout=parsl.AUTO_LOGNAME)
    assert named.result(300) == 0 and named.stdout.startswith(loaded.run_dir)
    assert pathlib.Path(named.stdout).read_text() == "named\n"


def test_bash_apps_fail_with_parsl_s_errors(loaded, tmp_path):
    with pytest.raises(BashExitFailure) as raised:
        shell("exit 3").result(300)
    assert (raised.value.app_name, raised.value.exitcode) == ("shell", 3)
    with pytest.raises(MissingOutputs):
        shell("true", outputs=[File(str(tmp_path / "missing"))]).result(300)
    (tmp_path / "file").touch()
    with pytest.raises(BadStdStreamFile):
        shell("true", stdout=str(tmp_path / "file" / "out")).result(300)


def test_files_are_promised_and_waited_for(loaded, tmp_path):
    first, second = File(str(tmp_path / "first")), File(f"file://{tmp_path}/second")
    written = shell("sleep 0.1; echo data > {outputs[0]}", outputs=[first])
    (promise,) = written.outputs
    assert is_direct(written) and promise.filepath == first.filepath and promise.tid == written.tid
    copied = shell("cat {inputs[0]} {inputs[0]} > {outputs[0]}", inputs=[promise], outputs=[second])
    assert is_direct(copied) and copied.outputs[0].result(300).filepath == f"{tmp_path}/second"
    assert (tmp_path / "second").read_text() == "data\n" * 2
    logged = shell("cat {inputs[0]}", inputs=[first], stdout=File(str(tmp_path / "log")))
    assert logged.stdout.result(300).filepath == str(tmp_path / "log")
    assert (tmp_path / "log").read_text() == "data\n"
    failed = shell("exit 1", outputs=[File(str(tmp_path / "never"))])
    with pytest.raises(DependencyError) as raised:
        shell("cat {inputs[0]}", inputs=failed.outputs).result(300)
    assert isinstance(raised.value.__cause__, BashExitFailure)


def test_a_walltime_ends_an_app(loaded):
    with pytest.raises(AppTimeout):
        slow().result(300)
    with pytest.raises(AppTimeout):
        slow(walltime=0.05).result(300)
    assert is_direct(slow(walltime=0.01)) and add(1, 1).result(300) == 2


def test_futures_are_parsl_s(loaded, tmp_path):
    gate = tmp_path / "gate"
    first = wait_for(str(gate))
    second, third = add(1), same({"key": [5, 6]})
    called = []
    third.add_done_callback(called.append)
    assert [future.tid for future in (second, third)] == [first.tid + 1, first.tid + 2]
    assert second.task_status() in ("pending", "launched") and not second.done()
    with pytest.raises(concurrent.futures.TimeoutError):
        second.result(0.01)
    gate.touch()
    assert set(concurrent.futures.as_completed([first, second, third], 300)) == {first, second, third}
    assert third["key"][1].result(300) == 6
    assert same(3 + 4j).imag.result(300) == 4
    assert second.task_status() == "exec_done" and second.outputs == [] and second.stdout is None
    assert second.task_record["dfk"] is loaded and second.task_record["func_name"] == "add"
    loaded.wait_for_current_tasks()
    assert called == [third]


def test_unsupported_app_options_are_refused_by_name(loaded):
    @python_app
    def asking(parsl_resource_specification={}):  # noqa: B006
        return 1

    @python_app(executors=["elsewhere"])
    def elsewhere():
        return 1

    with pytest.raises(InvalidResourceSpecification, match="cores"):
        asking(parsl_resource_specification={"cores": 2}).result(300)
    assert asking().result(300) == 1
    with pytest.raises(ValueError, match="invalid executor elsewhere"):
        elsewhere().result(300)
    with pytest.raises(SerializationError, match="add"):
        add(threading.Lock()).result(300)
    with pytest.raises(ConfigurationError, match="already"):
        hotlease.parsl.load()


def test_other_executors_are_refused_before_anything_starts(platform, tmp_path):
    folder = tmp_path / "runs"
    two = [hotlease.parsl.HotleaseExecutor(), ThreadPoolExecutor("other")]
    for executors in (two, two[1:]):
        with pytest.raises(ConfigurationError, match=r"the configuration has .*other \(ThreadPoolExecutor\)"):
            hotlease.parsl.load(Config(executors=executors, run_dir=str(folder)))
    with pytest.raises(ConfigurationError, match="names one"):
        hotlease.parsl.load(Config(executors=two[:1], run_dir=str(folder)), max_workers=1)
    with pytest.raises(hotlease.Error):
        hotlease.parsl.load(Config(run_dir=str(folder)), manager="https://127.0.0.1:1", patience=0.0)
    assert parsl.dataflow.dflow.DataFlowKernelLoader._dfk is None and not folder.exists()


def test_an_app_is_tried_again_as_often_as_configured(load, tmp_path):
    load(retries=2)
    path = str(tmp_path / "ran")
    future = fail_first(path, 2)
    assert is_direct(future) and add(future).result(300) == 3
    with pytest.raises(OSError, match="run 3"):
        fail_first(str(tmp_path / "often"), 99).result(300)
    assert die(str(tmp_path / "once")).result(300) == "survived", "the death of a worker counts, too"


def test_a_retry_handler_is_asked(load, tmp_path):
    asked = []

    def handler(error, record):
        asked.append((type(error).__name__, record["func_name"]))
        return 0.5

    load(retries=1, retry_handler=handler)
    assert fail_first(str(tmp_path / "ran"), 2).result(300) == 3
    assert asked == [("OSError", "fail_first")] * 2


def test_a_remembered_result_is_not_computed_again(load, tmp_path):
    load()
    path = str(tmp_path / "ran")
    assert [once(path, 5, label=n).result(300) for n in range(3)] == [5] * 3
    assert once(path, add(2, 3), label="other").result(300) == 5
    assert runs(path) == 1, "what is ignored does not count, and a future counts by its result"
    assert once(path, 6, label=0).result(300) == 6
    assert runs(path) == 2


def test_a_checkpoint_spares_the_next_kernel_what_was_computed(load, tmp_path):
    path = str(tmp_path / "ran")
    for _ in range(2):
        written = get_all_checkpoints(str(tmp_path / "runs"))
        kernel = load(memoizer=BasicMemoizer(checkpoint_files=written, checkpoint_mode="task_exit"))
        assert once(path, 7, label=0).result(300) == 7
        kernel.cleanup()
    assert runs(path) == 1


def test_the_kernel_can_be_cleared_and_loaded_again(load, platform):
    with load() as kernel:
        assert add(1).result(300) == 1
    with pytest.raises(NoDataFlowKernelError):
        add(1)
    assert kernel.cleanup_called
    first = load()
    parsl.clear()
    first.cleanup()
    second = load()
    assert parsl.dfk() is second and add(2).result(300) == 2
    bound = python_app(lambda n: -n, data_flow_kernel=second)
    parsl.clear()
    assert bound(3).result(300) == -3
    second.cleanup()
    with pytest.raises(NoDataFlowKernelError):
        bound(3)


def test_leaving_waits_for_what_was_begun(load, tmp_path):
    path = tmp_path / "gate"
    with load(exit_mode="wait"):
        gate = wait_for(str(path))
        last = add(gate, "!")
        threading.Timer(0.1, path.touch).start()
    assert last.done() and last.result() == f"{path}!"


def test_leaving_with_an_exception_does_not_wait_for_what_was_not_begun(load, tmp_path):
    path = tmp_path / "gate"
    with pytest.raises(ZeroDivisionError):
        with load():
            first = wait_for(str(path))
            last = shell("touch {outputs[0]}", inputs=[first], outputs=[File(str(tmp_path / "never"))])
            threading.Timer(0.1, path.touch).start()
            raise ZeroDivisionError
    assert first.done() and last.done()
    for future in (last, last.outputs[0]):
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(300)
    assert not (tmp_path / "never").exists()


class Copied(Staging):
    """Stages files of a separate scheme."""

    def can_stage_in(self, file):
        return file.scheme == "copied"

    def can_stage_out(self, file):
        return False

    def replace_task(self, dm, executor, file, func):
        file.local_path = file.path
        return func


def test_staging_from_elsewhere_is_parsl_s(load, tmp_path):
    (tmp_path / "far").write_text("away")
    executor = hotlease.parsl.HotleaseExecutor(max_workers=1, storage_access=[Copied()])
    load(executor)
    future = shell("cat {inputs[0]}", inputs=[File(f"copied://{tmp_path}/far")], stdout=str(tmp_path / "out"))
    assert future.result(300) == 0 and not is_direct(future)
    assert (tmp_path / "out").read_text() == "away"


PROGRAM = pathlib.Path(__file__).with_name("parsl_program.py")


def outputs_of(module, folder):
    folder.mkdir()
    script = PROGRAM.read_text().replace("with parsl.load(", f"with {module}.load(")
    (folder / "program.py").write_text(f"import {module}\n{script}")
    done = subprocess.run([sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_says_the_same_on_both_kernels(platform, tmp_path):
    said = outputs_of("parsl", tmp_path / "theirs")
    assert len(said.splitlines()) > 20
    assert outputs_of("hotlease.parsl", tmp_path / "ours") == said


def test_a_program_that_cleans_nothing_up_ends(platform, tmp_path):
    script = """
import hotlease.parsl, parsl
hotlease.parsl.load(parsl.Config(), max_workers=1)
print(parsl.python_app(lambda n: n + 1)(1).result())
parsl.python_app(print)("last words", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.split("\n")[0]) == (0, "2"), done.stderr
