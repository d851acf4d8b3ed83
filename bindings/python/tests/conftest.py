"""A platform of the tests' own, and what they all need."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import pytest

_RUNTIME = tempfile.mkdtemp(prefix="hotlease-python-test-")
os.environ["HOTLEASE_RUNTIME_DIR"] = _RUNTIME
for _name in ("HOTLEASE_MANAGER", "HOTLEASE_IDENTITY"):
    os.environ.pop(_name, None)

import hotlease  # noqa: E402
from hotlease import _executor, _kept, _programs  # noqa: E402

# Executors that do not end. Kept, as the program would wait for one that was dropped.
_stuck = []


@pytest.fixture(scope="session")
def platform():
    """Where the platform's sockets are. The first Executor starts it; it is taken down at the end."""
    yield _RUNTIME
    subprocess.run([_programs.find("hotlease"), "down"], capture_output=True, timeout=60)
    shutil.rmtree(_RUNTIME, ignore_errors=True)


@pytest.fixture
def executor(platform):
    """With one worker."""
    executor = hotlease.Executor(1)
    yield executor
    end(executor)


@pytest.fixture
def pair(platform, eventually):
    """With two workers, where the machine has them."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    executor = hotlease.Executor(2)
    try:
        # The second one may have been another executor's a moment ago.
        eventually(lambda: executor._slots() == 2, "both workers are there")
        yield executor
    finally:
        end(executor)


def end(executor, seconds=15):
    """Shuts down. What never ends, because of a lost task or one that still waits, fails and is waited for no longer."""
    ending = threading.Thread(target=executor.shutdown, daemon=True)
    ending.start()
    ending.join(seconds)
    if ending.is_alive():
        _stuck.append(executor)
        _executor._executors.discard(executor)
        pytest.fail(f"{executor!r} does not end within {seconds} s")


def pytest_unconfigure(config):
    if _stuck:
        config.get_terminal_writer().flush()
        # Not through the interpreter's end, at which threads are ended that wait for such an executor.
        os._exit(1)


@pytest.fixture(scope="module")
def kept(platform):
    """The executor that the program keeps; the workers are free for others' tests afterwards."""
    yield _kept.executor
    mine = _kept.executor()
    _kept.forget(mine)
    mine.shutdown()


@pytest.fixture
def eventually():
    """Waits until something holds, for as long as a loaded machine may need."""

    def wait(holds, what, seconds=30):
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"not within {seconds} s: {what}"
            time.sleep(0.01)

    return wait


@pytest.fixture
def run(tmp_path):
    """Runs a program that finds these modules, in a folder of its own."""

    def run(program, **environment):
        path = tmp_path / "program.py"
        path.write_text(program)
        found = os.pathsep.join(filter(None, [os.path.dirname(__file__), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": found, **environment}
        return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=120)

    return run
