"""Executors that lose workers, or have fewer workers than requested: their tasks wait while they may get other workers."""

import concurrent.futures
import os
import pathlib
import subprocess
import time

import pytest
import tasks

import hotlease
from hotlease import ExecutorOptions, _programs

# Seconds; longer than one search for another lease.
LONG = 8


@pytest.fixture
def platform_of_its_own(tmp_path):
    """Returns a function that starts and stops a platform, and options of executors on it, which do not start it themselves."""
    directory = str(tmp_path / "run")
    environment = {**os.environ, "HOTLEASE_RUNTIME_DIR": directory}

    def command(*arguments, check=True):
        subprocess.run([_programs.find("hotlease"), *arguments], env=environment, capture_output=True, timeout=60, check=check)

    command("up", "--detach")
    yield command, ExecutorOptions(runtime_dir=directory)
    command("down", check=False)


def said(capsys):
    """Returns how often a test's program printed that tasks wait."""
    lines = vars(capsys).setdefault("told", [])
    lines += [line for line in capsys.readouterr().err.splitlines() if line.startswith("hotlease: ") and "wait" in line]
    return len(lines)


def meet(folder, own, other):
    pathlib.Path(folder, own).touch()
    return tasks.wait_for(str(pathlib.Path(folder, other)))


@pytest.mark.parametrize("workers", [1, 2])
def test_tasks_wait_for_workers_after_all_were_lost(platform_of_its_own, tmp_path, eventually, workers, capsys):
    if len(os.sched_getaffinity(0)) < workers:
        pytest.skip("needs two cores")
    command, options = platform_of_its_own
    with hotlease.Executor(workers, options=options) as executor:
        eventually(lambda: executor._slots() == workers, "all workers are there")
        assert executor.submit(abs, -1).result(60) == 1
        command("down")
        names = ["one", "two"][:workers]
        waiting = [executor.submit(meet, str(tmp_path), name, other) for name, other in zip(names, reversed(names))]
        with pytest.raises(concurrent.futures.TimeoutError):
            waiting[0].result(LONG)
        eventually(lambda: said(capsys) == 1, "the program is told once that its tasks wait")
        command("up", "--detach")
        # These two tasks wait for each other, so they need two workers.
        assert [future.result(60) for future in waiting] == [str(tmp_path / name) for name in reversed(names)]


def test_an_executor_that_has_lost_its_worker_while_no_task_waits_takes_another_for_the_next_task(platform_of_its_own, eventually):
    command, options = platform_of_its_own
    with hotlease.Executor(1, options=options) as executor:
        lost = executor.submit(tasks.sleep, 600)
        eventually(lost.running, "it runs")
        command("down")
        with pytest.raises(concurrent.futures.BrokenExecutor):
            lost.result(60)
        # No task waits for a worker, so the search for a worker ends.
        time.sleep(LONG)
        command("up", "--detach")
        assert executor.submit(abs, -2).result(60) == 2


def test_an_executor_without_workers_ends_when_it_is_told_to(platform_of_its_own, eventually):
    command, options = platform_of_its_own
    with hotlease.Executor(1, options=options) as executor:
        lost = executor.submit(tasks.sleep, 600)
        eventually(lost.running, "it runs")
        command("down")
        with pytest.raises(concurrent.futures.BrokenExecutor):
            lost.result(60)
        waiting = executor.submit(abs, -2)
        executor.shutdown(cancel_futures=True)
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.result(60)


def test_a_shutdown_ends_the_search_for_other_workers(platform_of_its_own, eventually):
    command, options = platform_of_its_own
    late = []
    # A node that is busy with other work may be late now and then.
    while len(late) < 3:
        command("up", "--detach", check=False)
        executor = hotlease.Executor(1, options=options)
        lost = executor.submit(tasks.sleep, 600)
        eventually(lost.running, "it runs")
        command("down")
        with pytest.raises(concurrent.futures.BrokenExecutor):
            lost.result(60)
        begin = time.monotonic()
        executor.shutdown()
        # A search takes five seconds.
        took = time.monotonic() - begin
        if took < 2:
            return
        late.append(took)
    pytest.fail(f"each shutdown waited for the search: {late}")


def test_an_executor_of_which_a_part_comes_back_goes_on_with_that(platform_of_its_own, eventually):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    command, options = platform_of_its_own
    with hotlease.Executor(2, options=options) as executor:
        eventually(lambda: executor._slots() == 2, "both workers are there")
        assert executor.submit(abs, -1).result(60) == 1
        command("down")
        waiting = [executor.submit(abs, -number) for number in range(4)]
        command("up", "--detach", "--cores", "1")
        assert [future.result(60) for future in waiting] == [0, 1, 2, 3]


def test_an_executor_that_got_fewer_workers_asks_for_the_rest_while_tasks_wait(platform_of_its_own, tmp_path, eventually):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    command, options = platform_of_its_own
    command("down")
    command("up", "--detach", "--cores", "2")
    with hotlease.Executor(1, options=options) as other:
        assert other.submit(abs, -1).result(60) == 1
        busy = other.submit(tasks.wait_for, str(tmp_path / "busy"))
        with hotlease.Executor(2, options=options) as executor:
            # These two tasks wait for each other, so they need two workers.
            waiting = [executor.submit(meet, str(tmp_path), *names) for names in (("one", "two"), ("two", "one"))]
            # Longer than the executor asks for workers right after its start.
            with pytest.raises(concurrent.futures.TimeoutError):
                waiting[0].result(LONG)
            assert executor._slots() == 1
            pathlib.Path(tmp_path, "busy").touch()
            assert busy.result(60)
            other.shutdown()
            assert [future.result(60) for future in waiting] == [str(tmp_path / name) for name in ("two", "one")]


def test_tasks_that_wait_for_workers_fail_after_the_timeout_and_the_executor_goes_on(platform_of_its_own, eventually):
    command, options = platform_of_its_own
    with hotlease.Executor(1, timeout=2, options=options) as executor:
        assert executor.submit(abs, -1).result(60) == 1
        command("down")
        waiting = executor.submit(abs, -2)
        begin = time.monotonic()
        with pytest.raises(hotlease.DeadlineExceeded) as raised:
            waiting.result(60)
        assert time.monotonic() - begin > 1.9 and raised.value.ran is False, raised.value
        command("up", "--detach")
        assert executor.submit(abs, -3).result(60) == 3
