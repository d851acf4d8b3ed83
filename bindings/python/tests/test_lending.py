"""Cores of an idle executor are lent to another program that finds no free cores, and are returned."""

import concurrent.futures
import os
import subprocess
import threading
import time

import hotlease
import pytest
import tasks
from hotlease import ExecutorOptions, _programs


def test_an_idle_executor_lends_its_cores_and_gets_others_for_its_next_tasks(platform):
    with hotlease.Executor(initializer=tasks.set_state, initargs=("ready",)) as first:
        _, worker = first.submit(tasks.state_and_pid, 0).result(60)
        with hotlease.Executor() as second:
            assert second.submit(abs, -1).result(60) == 1
            assert len(list(first.map(abs, range(100)))) == 100, "the second one is idle now"
            state, other = first.submit(tasks.state_and_pid, 0).result(60)
            assert (state, other == worker) == ("ready", False)
            assert second.submit(abs, -2).result(60) == 2
    assert first._pending() == second._pending() == 0


def test_an_executor_that_works_keeps_its_cores_and_so_does_one_that_does_not_lend(platform, tmp_path):
    impatient = ExecutorOptions(patience=1.5)
    gate = tmp_path / "gate"
    with hotlease.Executor() as busy:
        task = busy.submit(tasks.wait_for, str(gate))
        with pytest.raises(hotlease.Refused):
            hotlease.Executor(options=impatient)
        gate.touch()
        assert task.result(60) == str(gate)
    with hotlease.Executor(options=ExecutorOptions(lends=False)) as idle:
        workers = set(idle.map(tasks.sleep_and_tell_pid, [0.02] * 8))
        with pytest.raises(hotlease.Refused):
            hotlease.Executor(options=impatient)
        assert workers & set(idle.map(tasks.sleep_and_tell_pid, [0.02] * 8))


def test_tasks_wait_for_room_while_others_compute_on_the_cores_that_were_lent(platform, tmp_path):
    gate = tmp_path / "gate"
    with hotlease.Executor() as first:
        assert first.submit(abs, -1).result(60) == 1
        with hotlease.Executor() as second:
            held = [second.submit(tasks.wait_for, str(gate)) for _ in range(second._slots())]
            waiting = first.submit(abs, -2)
            with pytest.raises(concurrent.futures.TimeoutError):
                # Longer than one attempt to get cores.
                waiting.result(3)
            gate.touch()
            assert waiting.result(60) == 2
            assert [task.result(60) for task in held] == [str(gate)] * len(held)


def test_an_executor_that_runs_a_short_task_now_and_then_keeps_its_cores(platform, eventually):
    cores = len(os.sched_getaffinity(0))
    with hotlease.Executor(cores) as first:
        eventually(lambda: first._slots() == cores, "no core is left")
        longest = 0.0
        for _ in range(5):
            workers = set(first.map(tasks.sleep_and_tell_pid, [0.02] * 8))
            gaps, ended = [0.0], threading.Event()

            def work(gaps=gaps, ended=ended):
                last = time.monotonic()
                while not ended.is_set():
                    first.submit(abs, -1).result(60)
                    now = time.monotonic()
                    gaps.append(now - last)
                    last = now
                    time.sleep(0.05)

            worker = threading.Thread(target=work)
            worker.start()
            try:
                hotlease.Executor(options=ExecutorOptions(patience=1.5)).shutdown()
                is_refused = False
            except hotlease.Refused:
                is_refused = True
            finally:
                ended.set()
                worker.join()
            if is_refused and workers & set(first.map(tasks.sleep_and_tell_pid, [0.02] * 8)):
                return
            longest = max(gaps)
            # If the node was stopped for a while, the executor was idle.
            assert longest > 0.5, "no task took long, and the cores were given away"
        pytest.skip(f"a short task takes {longest:.1f} s here")


def test_a_program_that_waits_for_a_core_is_told_who_has_it(platform, eventually, capfd):
    cores = len(os.sched_getaffinity(0))
    with hotlease.Executor(cores, lends=False) as first:
        eventually(lambda: first._slots() == cores, "no core is left")
        with pytest.raises(hotlease.Refused, match="option `patience`"):
            hotlease.Executor(1, patience=4)
    said = capfd.readouterr().err
    assert said.count("waits up to 4 s for a worker") == 1 and "held now" in said


def test_an_executor_keeps_the_cores_that_its_own_requests_have_freed(platform, eventually):
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        pytest.skip("needs two cores")
    with hotlease.Executor(1) as first:
        assert first.submit(abs, -1).result(60) == 1
        # An idle executor gives its core to the second executor at once.
        time.sleep(1.5)
        with hotlease.Executor(cores) as second:
            eventually(lambda: second._slots() == cores, "the first one gives up its core")
            # Longer than the idle time after which an executor lends.
            time.sleep(3)
            assert second._slots() == cores, "no other program has asked for room since"


_OUTLIVES_ITS_PLATFORM = """
import os, time
import hotlease
with hotlease.Executor() as first:
    assert first.submit(abs, -1).result(60) == 1
    with hotlease.Executor() as second:
        assert second.submit(abs, -2).result(60) == 2
    end = time.monotonic() + 60
    while os.path.exists(os.environ["HOTLEASE_RUNTIME_DIR"] + "/up.pid"):
        assert time.monotonic() < end, "the platform runs on"
        time.sleep(0.05)
    print(first.submit(abs, -3).result(120))
"""


def test_an_executor_that_has_lent_its_cores_starts_a_platform_that_has_ended_meanwhile(run, tmp_path):
    directory = str(tmp_path / "run")
    done = run(_OUTLIVES_ITS_PLATFORM, HOTLEASE_RUNTIME_DIR=directory, HOTLEASE_IDLE_LIMIT="2s")
    subprocess.run(
        [_programs.find("hotlease"), "down"], env={**os.environ, "HOTLEASE_RUNTIME_DIR": directory}, capture_output=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr
    assert done.stderr.count("started the platform") == 2, done.stderr


_IS_STOPPED = """
import os, subprocess, time
import hotlease
from hotlease import _programs
with hotlease.Executor(1) as executor:
    running = executor.submit(time.sleep, 60)
    waiting = executor.submit(abs, -1)
    while not running.running():
        time.sleep(0.01)
    time.sleep(0.5)
    subprocess.run([_programs.find("hotlease"), "down"], capture_output=True, timeout=60, check=True)
    print(type(running.exception(120)).__name__)
    # Longer than the time after which a program starts a platform that is away.
    time.sleep(6)
    print(waiting.done())
    subprocess.run([_programs.find("hotlease"), "up", "--detach"], capture_output=True, timeout=60, check=True)
    print(waiting.result(120))
    subprocess.run([_programs.find("hotlease"), "down"], capture_output=True, timeout=60, check=True)
"""


def test_a_platform_that_was_stopped_is_not_started_by_a_program_whose_tasks_it_ended(run, tmp_path):
    done = run(_IS_STOPPED, HOTLEASE_RUNTIME_DIR=str(tmp_path / "run"), HOTLEASE_IDLE_LIMIT="60s")
    assert (done.stdout, done.returncode) == ("LeaseEnded\nFalse\n1\n", 0), (done.stdout, done.stderr)
    assert done.stderr.count("started the platform") == 1, done.stderr


@pytest.mark.parametrize("limit", ["5", "soon"])
def test_a_bad_idle_limit_is_named_with_its_variable(run, tmp_path, limit):
    program = "import hotlease\ntry: hotlease.Executor(1)\nexcept hotlease.NotRunning as error: print(error)"
    done = run(program, HOTLEASE_RUNTIME_DIR=str(tmp_path / "run"), HOTLEASE_IDLE_LIMIT=limit)
    assert f"the value of $HOTLEASE_IDLE_LIMIT, {limit!r}" in done.stdout, (done.stdout, done.stderr)


def test_tasks_wait_for_a_platform_that_is_restarted(tmp_path):
    directory = str(tmp_path / "run")
    environment = {**os.environ, "HOTLEASE_RUNTIME_DIR": directory}

    def command(*arguments):
        subprocess.run([_programs.find("hotlease"), *arguments], env=environment, capture_output=True, timeout=60, check=True)

    command("up", "--detach")
    try:
        # The program names the directory, so it starts no platform itself.
        with hotlease.Executor(options=ExecutorOptions(runtime_dir=directory)) as first:
            assert first.submit(abs, -1).result(60) == 1
            with hotlease.Executor(options=ExecutorOptions(runtime_dir=directory)) as second:
                assert second.submit(abs, -2).result(60) == 2
            command("down")
            waiting = first.submit(abs, -3)
            with pytest.raises(concurrent.futures.TimeoutError):
                # Longer than one attempt to get cores.
                waiting.result(4)
            command("up", "--detach")
            assert waiting.result(60) == 3
    finally:
        subprocess.run([_programs.find("hotlease"), "down"], env=environment, capture_output=True, timeout=60)
