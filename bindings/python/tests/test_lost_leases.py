"""Executors that lose all of their workers: their tasks wait for others, as long as some may come."""

import concurrent.futures
import os
import pathlib
import subprocess
import time

import pytest
import tasks

import hotlease
from hotlease import ExecutorOptions, _programs

# Longer than one search for another lease.
LONG = 8


@pytest.fixture
def platform_of_its_own(tmp_path):
    """A platform that is started and stopped by a call, and the options of executors on it, which start none themselves."""
    directory = str(tmp_path / "run")
    environment = {**os.environ, "HOTLEASE_RUNTIME_DIR": directory}

    def command(*arguments, check=True):
        subprocess.run([_programs.find("hotlease"), *arguments], env=environment, capture_output=True, timeout=60, check=check)

    command("up", "--detach")
    yield command, ExecutorOptions(runtime_dir=directory)
    command("down", check=False)


def meet(folder, own, other):
    pathlib.Path(folder, own).touch()
    return tasks.wait_for(str(pathlib.Path(folder, other)))


@pytest.mark.parametrize("workers", [1, 2])
def test_tasks_wait_for_workers_after_all_were_lost(platform_of_its_own, tmp_path, eventually, workers):
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
        command("up", "--detach")
        # Two of them need two workers.
        assert [future.result(60) for future in waiting] == [str(tmp_path / name) for name in reversed(names)]


def test_an_executor_that_has_lost_its_worker_while_no_task_waits_takes_another_for_the_next_task(platform_of_its_own, eventually):
    command, options = platform_of_its_own
    with hotlease.Executor(1, options=options) as executor:
        lost = executor.submit(tasks.sleep, 600)
        eventually(lost.running, "it runs")
        command("down")
        with pytest.raises(concurrent.futures.BrokenExecutor):
            lost.result(60)
        # Nothing waits for a worker: the search for one ends.
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
