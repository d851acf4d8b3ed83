"""Leases that name a packed environment. On nodes that cannot pack or mount an environment, these tests are skipped with
the reason."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import venv

import pytest

import hotlease
from hotlease import _programs

from conftest import end

MODULE = "only_in_the_environment"


class Node:
    """A manager and an agent with a separate store and cache."""

    def __init__(self, folder):
        self.runtime, self.store, self.cache = folder / "run", folder / "store", folder / "cache"
        self.runtime.mkdir(mode=0o700)
        self.manager = self.start("manager", "--in-memory")
        self.agent = self.start_agent()

    def start(self, *command):
        environment = {**os.environ, "HOTLEASE_RUNTIME_DIR": str(self.runtime)}
        program = [_programs.find("hotlease"), *command, "--json"]
        started = subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True)
        assert json.loads(started.stdout.readline())["pid"] == started.pid
        return started

    def start_agent(self):
        options = ["--environments", self.store, "--environment-cache", self.cache]
        return self.start("agent", "--in-memory", "--pool", "0", *options)

    def executor(self, environment, **options):
        options = hotlease.ExecutorOptions(runtime_dir=self.runtime, **options)
        return hotlease.Executor(1, environment=environment, options=options)

    def mounts(self):
        table = pathlib.Path("/proc/self/mountinfo").read_text()
        return [line for line in table.splitlines() if f"{self.cache}/mounts/" in line]

    def end(self):
        for process in (self.agent, self.manager):
            process.send_signal(signal.SIGINT)
            process.wait(60)
            process.stdout.close()


def _pack(tree, store):
    packing = [_programs.find("hotlease"), "env", "pack", tree, "--to", store]
    done = subprocess.run(packing, capture_output=True, text=True, timeout=120)
    if "mksquashfs" in done.stderr and "install the package" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _venv(tree):
    venv.EnvBuilder(symlinks=True).create(tree)
    [site] = tree.glob("lib/python*/site-packages")
    return site


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    node = Node(tmp_path_factory.mktemp("node"))
    yield node
    node.end()
    assert not node.mounts()


@pytest.fixture(scope="module")
def packed(tmp_path_factory, node):
    """Returns the hash of an environment, and its original folder. The environment has this program's packages, and a
    module that exists nowhere else."""
    import cloudpickle

    tree = tmp_path_factory.mktemp("made") / "analysis"
    site = _venv(tree)
    for package in (hotlease, cloudpickle):
        folder = pathlib.Path(package.__file__).parent
        shutil.copytree(folder, site / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    (site / f"{MODULE}.py").write_text("VALUE = 42\n")
    # The original folder is removed, so workers can import only from the image.
    packed = _pack(tree, node.store)
    shutil.rmtree(tree)
    try:
        end(node.executor(packed))
    except hotlease.Error as error:
        if "cannot be mounted here" not in str(error):
            raise
        pytest.skip(str(error))
    return packed, tree


def _look(executor):
    """Returns a worker's view: the module's value and file, the interpreter's prefix, and the prefix that programs see."""

    # A local function, which is sent by value: workers cannot import this file, because they have no pytest.
    def look(module):
        imported = __import__(module)
        return imported.VALUE, imported.__file__, sys.prefix, os.environ["VIRTUAL_ENV"]

    return executor.submit(look, MODULE).result(60)


@pytest.mark.parametrize("sandbox", ["process", "namespace"])
def test_workers_run_from_the_environment_that_a_lease_names(node, packed, eventually, sandbox):
    if sandbox == "namespace" and os.environ.get("HOTLEASE_TRANSPORT"):
        pytest.skip("a worker without a network is reached through shared memory only")
    name, tree = packed
    try:
        executor = node.executor(node.store / f"{name}.squashfs", sandbox=sandbox)
    except hotlease.Error as error:
        if "no sandbox of kind" not in str(error):
            raise
        pytest.skip(str(error))
    value, file, prefix, named = _look(executor)
    # The place is the original path, which need not exist on any host; in kind process, it is the node's mount.
    place = str(tree) if sandbox == "namespace" else f"{node.cache}/mounts/{name}"
    assert value == 42 and file.startswith(place + "/lib") and prefix == named == place
    assert not tree.exists() and len(node.mounts()) == 1
    assert executor.submit(lambda: 6 * 7).result(60) == 42
    end(executor)
    eventually(lambda: not node.mounts(), "it is unmounted")


def test_leases_share_a_mount(node, packed, eventually):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    first, second = node.executor(packed[0]), node.executor(packed[0])
    for executor in (first, second):
        assert _look(executor)[0] == 42
    assert len(node.mounts()) == 1
    end(first)
    assert _look(second)[0] == 42 and len(node.mounts()) == 1
    end(second)
    eventually(lambda: not node.mounts(), "it is unmounted")


def test_an_unusable_environment_is_refused_with_a_remedy(node, packed, tmp_path):
    with pytest.raises(hotlease.Error, match="hotlease env pack"):
        node.executor("00ff" * 16)
    other = "ab" * 32
    node.store.joinpath(f"{other}.squashfs").write_bytes(b"something else")
    with pytest.raises(hotlease.Error, match="is damaged.*pack it again"):
        node.executor(other)
    bare = tmp_path / "bare"
    _venv(bare)
    with pytest.raises(hotlease.Error, match="has no package hotlease"):
        node.executor(_pack(bare, node.store), patience=0)
    data = tmp_path / "data"
    data.mkdir()
    with pytest.raises(hotlease.Error, match="has no bin/python"):
        node.executor(_pack(data, node.store))
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        node.executor("analysis")
    with pytest.raises(TypeError, match="variables="):
        node.executor({"A": "1"})


def test_a_killed_agent_leaves_no_mount_behind_the_next_one(node, packed, eventually):
    executor = node.executor(packed[0], idempotent=True)
    assert _look(executor)[0] == 42
    node.agent.send_signal(signal.SIGKILL)
    node.agent.wait(60)
    node.agent.stdout.close()
    end(executor)
    node.agent = node.start_agent()
    eventually(lambda: not node.mounts(), "it is unmounted")
    again = node.executor(packed[0])
    assert _look(again)[0] == 42
    end(again)
    eventually(lambda: not node.mounts(), "it is unmounted again")
