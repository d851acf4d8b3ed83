"""Blocks of Parsl's providers, whose nodes run a HotleaseExecutor's workers."""

import contextlib
import os
import threading
from concurrent.futures import Future

import pytest
import slurm_site

parsl = pytest.importorskip("parsl")

import hotlease.parsl  # noqa: E402
from parsl import python_app  # noqa: E402
from parsl.config import Config  # noqa: E402
from parsl.executors.errors import BadStateException, InvalidResourceSpecification  # noqa: E402
from parsl.providers import LocalProvider, SlurmProvider  # noqa: E402

_LIMIT = 100


@python_app
def add(a, b=0, parsl_resource_specification={}):  # noqa: B006
    return a + b


@python_app
def pid():
    import os

    return os.getpid()


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """Loads a configuration with one executor, which uses `provider`."""
    monkeypatch.setenv("HOTLEASE_CLUSTERS_DIR", str(tmp_path / "clusters"))

    @contextlib.contextmanager
    def loaded(provider, load=parsl.load, **options):
        options = {"workers_per_node": 1, "address": "127.0.0.1", **options}
        executor = hotlease.parsl.HotleaseExecutor(provider=provider, **options)
        periods = {"strategy_period": 0.1, "max_idletime": 0.5}
        with load(Config(executors=[executor], run_dir=str(tmp_path / "runs"), usage_tracking=0, **periods)):
            yield executor
        assert list((tmp_path / "clusters").iterdir()) == [], "the manager has ended"

    return loaded


def _active(executor):
    return [block for block, status in executor.status_facade.items() if not status.terminal]


@pytest.mark.parametrize("load", [parsl.load, hotlease.parsl.load])
def test_blocks_come_for_tasks_go_when_idle_and_come_again(loaded, load, eventually):
    with loaded(LocalProvider(init_blocks=0, min_blocks=0, max_blocks=1), load) as executor:
        assert _active(executor) == []
        assert pid().result(_LIMIT) != os.getpid()
        total = add(0)
        for n in range(20):
            total = add(total, b=n)
        assert total.result(_LIMIT) == sum(range(20))
        eventually(lambda: executor.status_facade and not _active(executor), "the idle block is scaled in", _LIMIT)
        assert add(1, 2).result(_LIMIT) == 3
        assert len(executor.status_facade) > 1 and not executor.bad_state_is_set


def test_resources_are_those_of_a_worker_or_refused_by_name(loaded):
    with loaded(LocalProvider(), memory=64 << 20) as executor:
        assert add(1, parsl_resource_specification={"cores": 1, "memory": 64, "gpus": 0}).result(_LIMIT) == 1
        for asked, words in (
            ({"cores": 2}, "cores is 2, and a worker has 1"),
            ({"memory": 65}, "memory is 65, and a worker has 64"),
            ({"gpus": 1}, "gpus is 1, and a worker has 0"),
            ({"disk": 1}, "disk is not known"),
            ({"cores": "all"}, "cores is 'all', and no number"),
        ):
            with pytest.raises(InvalidResourceSpecification, match=words):
                add(1, parsl_resource_specification=asked).result(_LIMIT)
        assert executor.workers_per_node == 1


def test_tasks_fail_if_all_first_blocks_do(loaded):
    with loaded(LocalProvider(worker_init="exit 3")) as executor:
        with pytest.raises(BadStateException, match="EXIT CODE: 3"):
            add(1).result(_LIMIT)
        assert executor.bad_state_is_set


def test_a_provider_and_a_manager_are_refused_together():
    with pytest.raises(TypeError, match="manager of their own"):
        hotlease.parsl.HotleaseExecutor(provider=LocalProvider(), manager="https://127.0.0.1:1")


class Left:
    """An executor without workers."""

    def _pending(self):
        return 0

    def shutdown(self, wait):
        pass


@pytest.fixture
def without_manager(tmp_path, monkeypatch):
    """Makes `Blocks` start no manager."""

    class Manager:
        folder, program, authority, client, address = tmp_path, "hotlease", "ca", "client", "https://127.0.0.1:1"

        def __init__(self, host):
            pass

        def close(self):
            pass

    monkeypatch.setattr(hotlease.parsl.blocks, "OwnManager", Manager)


def test_a_task_that_meets_the_end_of_its_block_waits_for_the_next(without_manager):
    blocks = hotlease.parsl.blocks.Blocks(lambda *_: Left(), pytest.fail, 1, 0, None)
    sent_to = []

    def submit(executor):
        sent_to.append(executor)
        if len(sent_to) == 1:
            assert blocks.end(lambda: ["0"]) == ["0"]
            raise RuntimeError("cannot schedule new futures after shutdown")
        result = Future()
        result.set_result("sent again")
        return result

    task = Future()
    blocks.send(task, submit)
    assert task.result(_LIMIT) == "sent again" and sent_to[0] is not sent_to[1]
    blocks.close(wait=True)


def test_the_end_cancels_tasks_without_a_block_and_no_others(without_manager, eventually):
    blocks = hotlease.parsl.blocks.Blocks(lambda *_: Left(), pytest.fail, 1, 0, None)
    running, sent, waiting = Future(), Future(), Future()
    blocks.send(running, lambda _executor: sent)
    eventually(lambda: blocks.executor is not None, "a block has started", _LIMIT)

    def end():
        blocks.send(waiting, pytest.fail)
        closing.start()
        eventually(blocks._closing.is_set, "the end begins", _LIMIT)
        return []

    closing = threading.Thread(target=blocks.close, args=[False])
    blocks.end(end)
    closing.join(_LIMIT)
    assert waiting.cancelled() and not running.done()
    sent.set_result("ended")
    assert running.result(_LIMIT) == "ended"


def test_blocks_of_slurm_run_apps(loaded, tmp_path_factory, monkeypatch):
    with slurm_site.running(tmp_path_factory.mktemp("slurm"), nodes=1) as site:
        for name, value in site.variables.items():
            monkeypatch.setenv(name, value)
        provider = SlurmProvider(init_blocks=1, max_blocks=1, cores_per_node=1, walltime="00:05:00", exclusive=False)
        with loaded(provider):
            assert add(1, 2).result(_LIMIT) == 3
            assert list(site.jobs().values()) == ["RUNNING"]
        assert site.jobs() == {}
