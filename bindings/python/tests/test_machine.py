"""A worker in a virtual machine, an emulated one. Where the machine has no QEMU, or no kernel for it, this says so and is skipped."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import uuid

import numpy
import pytest

import hotlease
from hotlease import _programs

# A kernel may take as long on a machine that has other work.
_BOOT = 180


def _kernel():
    """As in `tests/machines`."""
    named = os.environ.get("HOTLEASE_TEST_KERNEL")
    boot = pathlib.Path(__file__).parents[3] / "target/kernel/boot"
    return named or next((str(path) for path in sorted(boot.glob("vmlinuz-*"))), None)


@pytest.fixture
def runtime():
    """A platform of its own, whose agent makes emulated machines."""
    if os.environ.get("HOTLEASE_TRANSPORT"):
        pytest.skip("a worker without a network is reached through shared memory only")
    folder = tempfile.mkdtemp(prefix="hotlease-machine-")
    environment = {**os.environ, "HOTLEASE_RUNTIME_DIR": folder}
    program = _programs.find("hotlease")
    kernel = _kernel()
    named = ["--sandbox-kernel", kernel] if kernel else []
    subprocess.run([program, "up", "--detach", "--sandbox-emulated", *named], env=environment, check=True, timeout=60)
    yield folder
    subprocess.run([program, "down"], env=environment, capture_output=True, timeout=60)
    shutil.rmtree(folder, ignore_errors=True)


def _around():
    devices = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
    return os.getuid(), os.uname().release, devices, sys.version_info[:2]


def _fails():
    return {}["missing"]


def _says(text):
    print(text)
    return len(text)


def _drawn():
    import random

    return random.random(), float(numpy.random.random()), os.urandom(8), uuid.uuid1().hex, time.time()


def _skipped(error):
    if "no sandbox of kind" not in str(error):
        raise error
    pytest.skip(str(error))


def test_machines_that_went_on_from_the_same_one_have_a_time_and_random_numbers_of_their_own(runtime):
    drawn, start = [], None
    deadline = time.monotonic() + 2 * _BOOT
    while len(drawn) < 3 and time.monotonic() < deadline:
        try:
            with hotlease.Executor(1, sandbox="microvm", imports=["numpy", "uuid"], runtime_dir=runtime) as executor:
                each = executor.submit(_drawn).result(_BOOT)
                # Where the interpreter waits the first time it may be a machine's own, or none yet.
                start = executor.cold_start()
                if "forked from a zygote" in start.why:
                    drawn.append(each)
                    assert abs(each[-1] - time.time()) < 5, "its clock is the host's"
        except hotlease.Error as error:
            _skipped(error)
    assert len(drawn) == 3, f"no machine went on from a saved one: {start}"
    for values in zip(*drawn):
        assert len(set(values)) == 3, drawn


def test_tasks_run_in_a_machine(runtime, capsys):
    try:
        executor = hotlease.Executor(1, sandbox="microvm", runtime_dir=runtime)
        with executor:
            user, release, devices, version = executor.submit(_around).result(_BOOT)
            assert user == 1000
            assert release != os.uname().release
            assert set(devices) <= {"lo"}
            assert version == sys.version_info[:2]
            with pytest.raises(KeyError, match="missing"):
                executor.submit(_fails).result(_BOOT)
            numbers = numpy.arange(500_000.0)
            assert numpy.array_equal(executor.submit(numpy.negative, numbers).result(_BOOT), -numbers)
            assert executor.submit(_says, "seen outside").result(_BOOT) == 12
            assert "[_says worker 0] seen outside" in capsys.readouterr().out
    except hotlease.Error as error:
        _skipped(error)
