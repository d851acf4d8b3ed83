"""Fixtures of all tests: a separate platform, executors, and helpers."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

import pytest

_RUNTIME = tempfile.mkdtemp(prefix="hotlease-python-test-")
os.environ["HOTLEASE_RUNTIME_DIR"] = _RUNTIME
for _name in ("HOTLEASE_MANAGER", "HOTLEASE_IDENTITY"):
    os.environ.pop(_name, None)
# A program that a shell starts in the background ignores these signals, and so do all programs that it starts.
for _signal in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, signal.SIG_DFL)

import hotlease  # noqa: E402
from hotlease import _kept, _open, _programs  # noqa: E402

# Executors that do not end. They are kept alive, because the program would wait for a dropped executor.
_stuck = []


@pytest.fixture(scope="session")
def platform():
    """Returns the runtime directory of the platform. The first Executor starts the platform; it is ended after all tests."""
    yield _RUNTIME
    subprocess.run([_programs.find("hotlease"), "down"], capture_output=True, timeout=60)


def pytest_unconfigure(config):
    # Also in the process that only distributes tests to others, which starts no platform.
    shutil.rmtree(_RUNTIME, ignore_errors=True)


@pytest.fixture
def executor(platform):
    """An executor with one worker."""
    executor = hotlease.Executor(1)
    yield executor
    end(executor)


@pytest.fixture
def pair(platform, eventually):
    """An executor with two workers, if the node has the cores."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    executor = hotlease.Executor(2)
    try:
        # The second worker may have belonged to another executor a moment ago.
        eventually(lambda: executor._slots() == 2, "both workers are there")
        yield executor
    finally:
        end(executor)


def end(executor, seconds=15):
    """Shuts an executor down. If it does not end in time, because of a lost or waiting task, fails the test and waits no
    longer."""
    ending = threading.Thread(target=executor.shutdown, daemon=True)
    ending.start()
    ending.join(seconds)
    if ending.is_alive():
        _stuck.append(executor)
        _open.executors.discard(executor)
        pytest.fail(f"{executor!r} does not end within {seconds} s")


def pytest_unconfigure(config):
    if _stuck:
        config.get_terminal_writer().flush()
        # Skips the interpreter's own end, which would wait for the threads of these executors.
        os._exit(1)


@pytest.fixture(scope="module")
def kept(platform):
    """The program's default executor; its workers are free for other tests afterwards."""
    yield _kept.executor
    mine = _kept.executor()
    _kept.forget(mine)
    mine.shutdown()


@pytest.fixture
def eventually():
    """Waits until a condition holds, for as long as a loaded host may need."""

    def wait(holds, what, seconds=30):
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"not within {seconds} s: {what}"
            time.sleep(0.01)

    return wait


@pytest.fixture
def run(tmp_path):
    """Runs a program in a separate folder; it can import the modules of this folder."""

    def run(program, **environment):
        path = tmp_path / "program.py"
        path.write_text(program)
        found = os.pathsep.join(filter(None, [os.path.dirname(__file__), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": found, **environment}
        return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=120)

    return run


@pytest.fixture
def output(platform, tmp_path):
    """Runs a program; returns the lines that it prints."""

    def output(script, folder=tmp_path, **environment):
        program = folder / "main.py"
        program.write_text(textwrap.dedent(script))
        command = [sys.executable, "-W", "error", str(program)]
        env = {**os.environ, **environment}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return output
