"""A worker in an emulated virtual machine. On nodes without QEMU, or without a kernel for it, these tests are skipped
with the reason."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import numpy
import pytest

import hotlease
from hotlease import _programs

# Seconds that a kernel may take to boot on a node that has other work.
_BOOT = 180


def _kernel():
    """Returns the kernel, as `tests/machines` does."""
    named = os.environ.get("HOTLEASE_TEST_KERNEL")
    boot = pathlib.Path(__file__).parents[3] / "target/kernel/boot"
    return named or next((str(path) for path in sorted(boot.glob("vmlinuz-*"))), None)


@pytest.fixture
def runtime():
    """A separate platform, whose agent makes emulated machines."""
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


def _skipped(error):
    if "no sandbox of kind" not in str(error):
        raise error
    pytest.skip(str(error))


def _until_one_is_saved(folder):
    """Waits until a machine is saved. Starts no other machines meanwhile, which would only compete for processors."""
    deadline = time.monotonic() + 2 * _BOOT
    while time.monotonic() < deadline:
        listed = subprocess.run(
            [_programs.find("hotlease"), "ps", "--json"], capture_output=True, text=True, check=True, timeout=60,
            env={**os.environ, "HOTLEASE_RUNTIME_DIR": folder},
        )
        if '"state":"zygote"' in listed.stdout:
            return
        time.sleep(0.2)
    raise AssertionError(f"no machine was saved: {listed.stdout}")


def test_machines_that_went_on_from_the_same_one_have_a_time_and_random_numbers_of_their_own(runtime):
    # A local function is sent by value: in an emulated machine, importing this module, and with it pytest, takes long.
    def draw():
        import os, random, time, uuid  # noqa: E401

        import numpy

        return random.random(), float(numpy.random.random()), os.urandom(8), uuid.uuid1().hex, time.time()

    drawn = []
    deadline = time.monotonic() + 2 * _BOOT
    while len(drawn) < 3 and time.monotonic() < deadline:
        try:
            options = hotlease.ExecutorOptions(sandbox="microvm", imports=["numpy", "uuid"], runtime_dir=runtime)
            with hotlease.Executor(1, options=options) as executor:
                each = executor.submit(draw).result(_BOOT)
                start = executor.cold_start()
        except hotlease.Error as error:
            _skipped(error)
        assert abs(each[-1] - time.time()) < 5, "its clock is the host's"
        # The first machine has booted. While spare machines that have booted wait, the next machine may be one of them.
        if "forked from a zygote" in start.why:
            drawn.append(each)
        else:
            _until_one_is_saved(runtime)
    assert len(drawn) == 3, f"no machine went on from a saved one: {start}"
    for values in zip(*drawn):
        assert len(set(values)) == 3, drawn


def test_tasks_run_in_a_machine(runtime, capsys):
    def around():
        import os, sys  # noqa: E401

        devices = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
        return os.getuid(), os.uname().release, devices, sys.version_info[:2]

    def fails():
        return {}["missing"]

    def opens(count, processes):
        import os

        (told, tell), (held, hold) = os.pipe(), os.pipe()
        for _ in range(processes):
            if os.fork() == 0:
                os.close(hold)
                try:
                    [os.open(os.__file__, os.O_RDONLY) for _ in range(count)]
                    os.write(tell, b"y")
                    os.read(held, 1)
                except OSError:
                    os.write(tell, b"n")
                finally:
                    os._exit(0)
        all_told = b"".join(os.read(told, 1) for _ in range(processes))
        os.close(hold)
        [os.wait() for _ in range(processes)]
        return all_told

    def says(text):
        print(text)
        return len(text)

    try:
        executor = hotlease.Executor(1, options=hotlease.ExecutorOptions(sandbox="microvm", runtime_dir=runtime))
        with executor:
            user, release, devices, version = executor.submit(around).result(_BOOT)
            assert user == 1000
            assert release != os.uname().release
            assert set(devices) <= {"lo"}
            assert version == sys.version_info[:2]
            with pytest.raises(KeyError, match="missing"):
                executor.submit(fails).result(_BOOT)
            # A process may have 1,024 open files; all processes together may have more.
            assert executor.submit(opens, 800, 2).result(_BOOT) == b"yy"
            numbers = numpy.arange(500_000.0)
            assert numpy.array_equal(executor.submit(numpy.negative, numbers).result(_BOOT), -numbers)
            assert executor.submit(says, "seen outside").result(_BOOT) == 12
            assert "[says worker 0] seen outside" in capsys.readouterr().out
    except hotlease.Error as error:
        _skipped(error)
