"""Remote memory: `hotlease.RemoteMemory` and `hotlease.RemoteArray`."""

import os
import pathlib
import pickle
import random
import re
import subprocess
import sys
import threading

import pytest

import hotlease
from hotlease import _programs

numpy = pytest.importorskip("numpy")


@pytest.mark.parametrize("transport", ["shm", "tcp;ofi_rxm"])
def test_bytes_are_what_was_written_last(platform, transport):
    with hotlease.RemoteMemory(300_000, transport=transport) as memory:
        assert memory.transport == transport
        assert len(memory) == 300_000
        expected = bytearray(300_000)
        choose = random.Random(1)
        for _ in range(100):
            first, last = sorted(choose.choices(range(300_001), k=2))
            if choose.random() < 0.5:
                data = choose.randbytes(last - first)
                memory[first:last] = data
                expected[first:last] = data
            else:
                assert memory[first:last] == expected[first:last]
        assert memory[:] == expected


def test_what_is_outside_is_refused(platform):
    with hotlease.RemoteMemory(10) as memory:
        for offset, size in ((10, 1), (0, 11), (2**63, 1)):
            with pytest.raises(hotlease.OptionError, match="past the end"):
                memory.read(offset, size)
            with pytest.raises(hotlease.OptionError, match="past the end"):
                memory.write(offset, bytes(size))
            with pytest.raises(hotlease.OptionError, match="past the end"):
                memory.begin_write(offset, bytes(size))
        with pytest.raises(OverflowError):
            memory.read(-1, 1)
        with pytest.raises(ValueError, match="5 bytes, and the object 3"):
            memory[0:5] = b"abc"
        with pytest.raises(ValueError, match="step 1"):
            memory[::2]
        with pytest.raises(TypeError, match="by slices"):
            memory[0]
        with pytest.raises(BufferError, match="cannot be written"):
            memory.read_into(0, b"12345")
        with pytest.raises(BufferError, match="contiguous"):
            memory.write(0, numpy.arange(4, dtype="u1")[::2])
        with pytest.raises(TypeError, match="belongs to this process"):
            pickle.dumps(memory)
        assert memory[:] == bytes(10)
    with pytest.raises(hotlease.OptionError):
        hotlease.RemoteMemory(0)
    with pytest.raises(hotlease.OptionError, match="nodes"):
        hotlease.RemoteMemory(1, nodes=0)


def test_closed_and_lost_memory_raises_memory_lost(platform):
    memory = hotlease.RemoteMemory(4096)
    memory.close()
    memory.close()
    with pytest.raises(hotlease.MemoryLost, match="closed"):
        memory.read(0, 1)
    memory = hotlease.RemoteMemory(4096, label="to-be-revoked")
    memory[0:1] = b"x"
    program = _programs.find("hotlease")
    listed = subprocess.run([program, "leases"], capture_output=True, text=True, check=True).stdout
    (row,) = [line for line in listed.splitlines() if "to-be-revoked" in line and "active" in line]
    subprocess.run([program, "leases", "--release", row.split()[0]], check=True, capture_output=True)
    with pytest.raises(hotlease.MemoryLost):
        for _ in range(10_000):
            memory.read(0, 1)
            threading.Event().wait(0.001)
    with pytest.raises(hotlease.MemoryLost):
        memory.write(0, b"y")


def test_copies_run_beside_the_program(platform):
    with hotlease.RemoteMemory(8 << 20) as memory:
        source = numpy.arange(1 << 20, dtype="f8")
        memory.begin_write(0, source).wait()
        target = numpy.zeros_like(source)
        copy = memory.begin_read_into(0, target)
        copy.wait()
        copy.wait()
        assert (target == source).all()
        # A copy that is not waited for keeps its object until it has ended.
        memory.begin_write(0, bytearray(b"\1") * (8 << 20))
        assert memory[:] == b"\1" * (8 << 20)


def test_a_forked_child_cannot_use_it(platform):
    with hotlease.RemoteMemory(4096) as memory:
        memory[0:4] = b"here"
        child = os.fork()
        if child == 0:
            try:
                memory.read(0, 4)
            except hotlease.OptionError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert memory[0:4] == b"here"


def test_an_array_has_the_rows_that_were_written(platform):
    with hotlease.RemoteArray((1000, 4), "i4", label="rows") as rows:
        here = numpy.zeros((1000, 4), "i4")
        rows[10:20] = numpy.arange(40).reshape(10, 4)
        here[10:20] = numpy.arange(40).reshape(10, 4)
        rows[-1] = [1, 2, 3, 4]
        here[-1] = [1, 2, 3, 4]
        rows[5:8] = 9
        here[5:8] = 9
        assert (rows[:] == here).all() and rows[:].dtype == here.dtype
        assert (rows[-1] == here[-1]).all() and rows[3:3].shape == (0, 4)
        assert len(rows) == 1000 and rows.nbytes == 16_000
        rows.prefetch(slice(0, 100))
        assert (rows[0:100] == here[0:100]).all()
        rows.prefetch(slice(0, 100))
        rows[50] = 77
        here[50] = 77
        assert (rows[0:100] == here[0:100]).all(), "a write after the prefetch is seen"
        with pytest.raises(IndexError):
            rows[1000]
        with pytest.raises(ValueError, match="step 1"):
            rows[::2]
        with pytest.raises(TypeError, match="one number or one slice"):
            rows["x"]
        with pytest.raises(TypeError):
            rows[0] = 1.5
        with pytest.raises(ValueError):
            rows[0:2] = numpy.zeros((3, 4), "i4")
    with pytest.raises(TypeError, match="objects"):
        hotlease.RemoteArray(3, object)
    with hotlease.RemoteArray(5) as one:
        one[2] = 1.5
        assert one[:].tolist() == [0, 0, 1.5, 0, 0] and one[2] == 1.5
    with hotlease.RemoteArray((0, 4)) as none:
        assert none[:].shape == (0, 4)


def test_the_program_of_the_page_runs(platform, tmp_path):
    page = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "memory.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert done.stdout == "b'hello'\nTrue\n120.0\n", done.stdout + done.stderr
