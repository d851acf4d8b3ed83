"""Failures are reported on the future that they concern, and on no other future."""

import concurrent.futures
import dataclasses
import os
import subprocess
import sys
import threading
import time

import pytest
import tasks

import hotlease
from hotlease._options import OptionArguments


def works(executor):
    return executor.submit(tasks.add, 1, 1).result(60) == 2


@pytest.mark.parametrize("argument", [threading.Lock(), (n for n in range(3))], ids=lambda a: type(a).__name__)
def test_an_argument_that_does_not_pickle_fails_its_future_only(executor, argument):
    future = executor.submit(tasks.add, argument)
    with pytest.raises(TypeError, match="pickle"):
        future.result(60)
    assert works(executor)


def test_an_object_that_is_not_callable_fails_its_future_only(executor):
    with pytest.raises(TypeError, match="not callable"):
        executor.submit(5).result(60)
    assert works(executor)


def test_a_result_that_does_not_pickle_is_an_error_with_text(executor):
    with pytest.raises(Exception, match="pickle"):
        executor.submit(tasks.lock).result(60)
    assert works(executor)


def test_an_exception_that_does_not_pickle_comes_as_text(executor):
    with pytest.raises(hotlease.TaskError, match="Unpicklable") as raised:
        executor.submit(tasks.fail_unpicklably).result(60)
    assert raised.value.ran is True
    assert "fail_unpicklably" in str(raised.value.__cause__)
    assert works(executor)


def test_sys_exit_in_a_task_is_its_result(executor):
    with pytest.raises(SystemExit) as raised:
        executor.submit(tasks.leave).result(60)
    assert raised.value.code == 7
    assert works(executor)


@pytest.mark.parametrize("way", [tasks.Exits, tasks.Interrupts, tasks.ExitsWhenPickled], ids=lambda way: way.__name__)
def test_an_object_that_exits_in_pickling_ends_its_task_only(executor, way):
    with pytest.raises(hotlease.TaskError, match="the function ran, but its result does not (un)?pickle") as raised:
        executor.submit(way).result(60)
    assert raised.value.ran is True
    if way is not tasks.ExitsWhenPickled:
        with pytest.raises(hotlease.TaskError, match="an argument does not unpickle") as raised:
            executor.submit(tasks.add, way(), 1).result(60)
        assert raised.value.ran is False
        with pytest.raises(hotlease.TaskError, match="does not unpickle here"):
            executor.submit(tasks.raise_with, way).result(60)
    assert works(executor)


def test_ctrl_c_while_a_result_is_unpickled_is_ctrl_c(run):
    # The unpickling itself sends the signal, as if the user pressed Ctrl-C while the result is unpickled.
    done = run(
        """
import signal, hotlease, tasks

signal.alarm(60)
with hotlease.Executor(1) as executor:
    for how in (tasks.sends_interrupt, tasks.sends_exit):
        try:
            executor.submit(tasks.Signals, how).result()
        except (KeyboardInterrupt, SystemExit) as error:
            print(type(error).__name__)
"""
    )
    assert done.stdout.split() == ["KeyboardInterrupt", "SystemExit"], done.stderr


def test_a_dead_worker_is_told_with_cause_and_exit_code_and_replaced(executor):
    first = executor.submit(tasks.pid).result(60)
    with pytest.raises(hotlease.WorkerDied) as raised:
        executor.submit(tasks.die, 5).result(60)
    died = raised.value
    assert isinstance(died, concurrent.futures.BrokenExecutor)
    assert (died.exit_code, died.deaths, died.ran) == (5, 1, None), died
    assert "last words" in died.output
    assert works(executor), "the executor goes on with another worker"
    assert executor.submit(tasks.pid).result(60) != first


def test_tasks_queued_behind_a_death_run(executor, tmp_path):
    gate = tmp_path / "gate"
    executor.submit(tasks.wait_for, str(gate))
    dying = executor.submit(tasks.die, 1)
    others = [executor.submit(tasks.add, n) for n in range(500)]
    gate.touch()
    # On a busy host the agent of the dead worker may be too late to say why.
    assert isinstance(dying.exception(60), (hotlease.WorkerDied, hotlease.OutcomeUnknown))
    assert [future.result(60) for future in others] == list(range(500))


def test_a_task_is_not_run_again_unless_it_is_idempotent(executor, tmp_path):
    path = str(tmp_path / "ran")
    with pytest.raises(hotlease.WorkerDied) as raised:
        executor.submit(tasks.mark_and_die, path).result(60)
    assert raised.value.exit_code == -9
    assert works(executor)
    assert os.path.getsize(path) == 1


def test_an_idempotent_task_survives_its_worker_and_a_poisonous_one_stops_after_two(platform, tmp_path):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(idempotent=True)) as executor:
        assert executor.submit(tasks.die_once, str(tmp_path / "once")).result(60) == "survived"
        path = str(tmp_path / "poison")
        with pytest.raises(hotlease.WorkerDied) as raised:
            executor.submit(tasks.mark_and_die, path).result(60)
        assert raised.value.deaths == 2
        assert os.path.getsize(path) == 2
        assert works(executor)


def test_a_task_over_its_deadline_is_ended(platform, eventually):
    with hotlease.Executor(1, timeout=0.3) as executor:
        with pytest.raises(hotlease.DeadlineExceeded):
            executor.submit(tasks.sleep, 30).result(60)

        def works_in_time():
            # On a loaded host, the next worker may not have started when the timeout ends.
            try:
                return works(executor)
            except hotlease.DeadlineExceeded:
                return False

        eventually(works_in_time, "another worker runs tasks")


def test_options_that_make_no_sense_are_refused(platform):
    for bad in (0, -1):
        with pytest.raises(ValueError):
            hotlease.Executor(bad)
    for of in (hotlease.Executor, hotlease.Gang):
        with pytest.raises(TypeError, match=f"{of.__name__} has no option 'no_such_thing': help"):
            of(1, no_such_thing=1)
        for name, meant in (("chekpoint", "checkpoint"), ("time_out", "timeout"), ("initialiser", "initializer")):
            if of is hotlease.Executor or name != "initialiser":
                with pytest.raises(TypeError, match=f"{of.__name__} has no option '{name}': did you mean '{meant}'"):
                    of(1, **{name: 1})
        with pytest.raises(TypeError, match=f"{of.__name__} got the option ttl twice"):
            of(1, ttl=1, options=hotlease.ExecutorOptions(ttl=2))
    with pytest.raises(TypeError, match="no_such_option"):
        hotlease.ExecutorOptions(no_such_option=1)
    with pytest.raises(TypeError):
        hotlease.Executor(1, initializer=5)
    for name in ("hot_budget", "ttl", "patience"):
        with pytest.raises(ValueError, match=f"{name} must be a number of seconds from 0 on, not -1"):
            hotlease.Executor(1, options=hotlease.ExecutorOptions(**{name: -1}))
        with pytest.raises(ValueError, match=f"{name} must be a number of seconds from 0 on, not -1"):
            hotlease.Executor(1, **{name: -1})
    with pytest.raises(TypeError, match="Python workers have cores of their own"):
        hotlease.Executor(1, shared=True)


def test_options_have_one_value_each_that_stays():
    options = hotlease.ExecutorOptions(gpus=1)
    assert (options.gpus, options.at_least, options.patience, options.output) == (1, 1, None, True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.gpus = 2
    with pytest.raises(TypeError):
        hotlease.ExecutorOptions(True)
    assert dataclasses.replace(options, gpus=2) == hotlease.ExecutorOptions(gpus=2)


def test_each_option_may_be_given_by_name_beside_those_of_an_object(platform, tmp_path):
    seen = []
    common = hotlease.ExecutorOptions(memo=True, output=seen.append)
    for _ in range(2):
        with hotlease.Executor(1, checkpoint=tmp_path / "kept", options=common) as executor:
            assert executor.submit(tasks.mark_and_return, str(tmp_path / "ran"), 5).result(60) == 5
    assert len((tmp_path / "ran").read_text()) == 1, "the checkpoint knows the second run"
    with hotlease.Gang(1, variables={"OF_THE_PROGRAM": "5"}, options=common) as gang:
        assert gang.run(os.getenv, "OF_THE_PROGRAM") == ["5"]


def test_names_of_options_are_typed_as_the_fields_of_the_object():
    by_name = {name: getattr(kind, "__forward_arg__", kind) for name, kind in OptionArguments.__annotations__.items()}
    assert by_name == hotlease.ExecutorOptions.__annotations__


def test_without_a_platform_a_manager_that_was_named_is_not_replaced_by_another(tmp_path):
    with pytest.raises(hotlease.NotRunning) as raised:
        hotlease.Executor(1, options=hotlease.ExecutorOptions(runtime_dir=str(tmp_path), patience=0))
    assert raised.value.ran is False


_STARTS_A_PLATFORM = """
import hotlease
with hotlease.Executor(1) as executor:
    print(executor.submit(pow, 2, 3).result(60))
"""


def test_a_platform_that_a_program_starts_is_announced_and_ends_when_it_is_idle(tmp_path):
    environment = {**os.environ, "HOTLEASE_RUNTIME_DIR": str(tmp_path / "run"), "HOTLEASE_IDLE_LIMIT": "3s"}
    command = [sys.executable, "-c", _STARTS_A_PLATFORM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "8\n", done.stderr
    assert done.stderr.count("ends after 3s without leases") == 1 and "`hotlease down`" in done.stderr
    end = time.monotonic() + 60
    while (tmp_path / "run" / "up.pid").exists():
        assert time.monotonic() < end, "it runs on"
        time.sleep(0.05)


def _say_and_die(word):
    print(word)
    if word == "last":
        os.abort()


def test_a_death_names_the_function_and_shows_its_own_output(platform):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(output=lambda _: None)) as executor:
        for _ in range(2):
            executor.submit(_say_and_die, "earlier").result(60)
        with pytest.raises(hotlease.WorkerDied) as raised:
            executor.submit(_say_and_die, "last").result(60)
    assert "while running `_say_and_die`" in str(raised.value) and raised.value.output == "last\n", raised.value


def _hold_a_memory_file(mebibytes):
    file = os.memfd_create("of-the-task")
    for _ in range(mebibytes):
        os.write(file, bytes(1 << 20))
    time.sleep(60)


def test_a_limit_on_memory_bounds_memory_files_too(platform):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(memory=256 << 20)) as executor:
        with pytest.raises(hotlease.WorkerDied, match="ran out of memory"):
            executor.submit(_hold_a_memory_file, 600).result(60)
        assert works(executor)


def test_the_death_of_an_initializer_names_it(platform):
    executor = hotlease.Executor(1, initializer=_say_and_die, initargs=("last",))
    with pytest.raises(hotlease.ExecutorBroken, match="while running `_say_and_die`"):
        executor.submit(abs, 1).result(60)
    executor.shutdown()


def test_exceptions_that_carry_arrays_arrive(output):
    pytest.importorskip("numpy")
    script = """
        import numpy as np
        import hotlease

        class NotConverged(Exception):
            def __init__(self, message, residuals):
                super().__init__(message, residuals)
                self.residuals = residuals

        class Code(RuntimeError):
            def __reduce__(self):
                return Code, (self.args[0], lambda: 3)

        def solve(n):
            raise NotConverged("gave up", np.arange(float(n)))

        def code():
            raise Code(np.arange(3))

        def usual():
            raise ValueError("wrong", np.arange(3))

        with hotlease.Executor(1) as executor:
            for n in (3, 100_000):
                error = executor.submit(solve, n).exception()
                print(type(error) is NotConverged, len(error.residuals), error.residuals[2])
                print("in solve" in str(error.__cause__))
            error = executor.submit(code).exception()
            print(type(error) is Code, error.args[0].tolist(), error.args[1]())
            print(executor.submit(usual).exception().args[1].tolist())
    """
    expected = ["True 3 2.0", "True", "True 100000 2.0", "True", "True [0, 1, 2] 3", "[0, 1, 2]"]
    assert output(script) == expected
