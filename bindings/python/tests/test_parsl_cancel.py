"""Cancelling of Parsl's apps that are tasks of hotlease's own dataflow kernel. Parsl's kernel refuses to cancel apps."""

from concurrent.futures import CancelledError

import pytest

parsl = pytest.importorskip("parsl")

import hotlease.parsl  # noqa: E402
from parsl import File, python_app  # noqa: E402
from parsl.config import Config  # noqa: E402
from parsl.dataflow.errors import DependencyError  # noqa: E402


@python_app
def wait_for(path):
    import tasks

    return tasks.wait_for(path)


@python_app
def mark(needed, path, outputs=()):
    import tasks

    return tasks.mark(path)


@python_app
def same(value):
    return value


def test_an_unsent_app_can_be_cancelled_and_an_ended_one_cannot(platform, tmp_path):
    gate, marked = tmp_path / "gate", tmp_path / "marked"
    config = Config(executors=[hotlease.parsl.HotleaseExecutor(max_workers=1)], run_dir=str(tmp_path / "runs"), usage_tracking=0)
    with hotlease.parsl.load(config):
        first = wait_for(str(gate))
        second = mark(first, str(marked), outputs=[File(str(marked))])
        third = same(second)
        was_cancelled = second.cancel()
        # Opened before the assertions: the end of the kernel waits for running tasks, even if the test fails.
        gate.touch()
        assert was_cancelled and second.cancelled() and second.done()
        # The cancelled task never makes its output file.
        for future in (second, second.outputs[0]):
            with pytest.raises(CancelledError):
                future.result(300)
        with pytest.raises(DependencyError):
            third.result(300)
        assert first.result(300) and not first.cancel()
        assert (second.task_status(), third.task_status()) == ("failed", "dep_fail")
        assert same(1).result(300) == 1 and not marked.exists(), "it ran"
    parsl.clear()
