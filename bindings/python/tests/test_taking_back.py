"""Tasks that were sent ahead to a worker are sent to an idle worker instead, and run once."""

import concurrent.futures
import os

import hotlease
import pytest
import tasks

# Seconds for tasks that take milliseconds. Tasks that are not taken back take longer: they wait until the long task ends.
SOON = 20


@pytest.fixture
def gate(pair, tmp_path):
    """A file whose creation ends the long tasks; created at the end of the test."""
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


@pytest.mark.parametrize("known", [0, 300])
def test_short_tasks_do_not_wait_behind_a_long_one_while_a_worker_is_idle(pair, gate, known):
    assert all(pair.map(tasks.wait_until, [None] * known))
    futures = [pair.submit(tasks.wait_until, str(gate) if at == 1 else None) for at in range(10)]
    long = futures.pop(1)
    late = concurrent.futures.wait(futures, SOON).not_done
    assert not late, f"{len(late)} of 9 wait behind the long one"
    assert not long.done()
    gate.touch()
    assert long.result(60)


def test_a_task_behind_a_long_one_of_another_function_is_taken_back_for_a_waiting_thread(pair, gate):
    assert list(pair.map(abs, range(300))) == list(range(300))
    long = pair.submit(tasks.wait_until, str(gate))
    # More tasks than workers, so that some tasks wait behind the long task.
    assert [future.result(SOON) for future in [pair.submit(abs, at) for at in range(8)]] == list(range(8))
    assert not long.done()


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_task_that_is_taken_back_runs_once_with_its_arguments(pair, tmp_path, size):
    folder = tmp_path / "ran"
    folder.mkdir()
    concurrent.futures.wait([pair.submit(tasks.note_run, str(folder), 0, 0, b"") for _ in range(300)], 60)
    for file in folder.iterdir():
        file.unlink()
    futures, data = {}, os.urandom(size)
    for number in range(1, 601):
        # One task in 20 takes longer than all tasks that are sent ahead together.
        pause = 0.003 if number % 20 == 0 else 0
        futures[number] = pair.submit(tasks.note_run, str(folder), number, pause, data)
    for number, future in futures.items():
        assert future.result(60) == (number, data)
    runs = {int(file.name): file.stat().st_size for file in folder.iterdir()}
    assert runs == dict.fromkeys(futures, 1)


def test_a_task_that_was_taken_back_counts_one_run(platform, eventually, tmp_path):
    options = hotlease.ExecutorOptions(timing=True)
    with hotlease.Executor(2, options=options) as executor:
        eventually(lambda: executor._slots() == 2, "both workers are there")
        assert all(executor.submit(tasks.wait_until, None).result(60) for _ in range(300))
        gate = tmp_path / "gate"
        futures = [executor.submit(tasks.wait_until, str(gate) if at == 1 else None) for at in range(10)]
        try:
            assert not concurrent.futures.wait(futures[:1] + futures[2:], SOON).not_done
        finally:
            gate.touch()
        assert [future.timing.runs for future in futures] == [1] * 10
