"""asyncio, numpy, `hotlease.function`, imports, and types."""

import asyncio
import os
import pathlib
import subprocess
import sys

import pytest
import tasks

import hotlease

np = pytest.importorskip("numpy")


@hotlease.function
def triple(n: int) -> int:
    """Returns three times as much."""
    return 3 * n


def test_futures_can_be_awaited(executor):
    async def go():
        one = await executor.submit(tasks.add, 1, 2)
        several = await asyncio.gather(*(asyncio.wrap_future(executor.submit(abs, -n)) for n in range(100)))
        looped = await asyncio.get_running_loop().run_in_executor(executor, tasks.add, 4, 5)
        with pytest.raises(ValueError):
            await executor.submit(tasks.fail, "awaited")
        return one, several, looped

    assert asyncio.run(go()) == (3, list(range(100)), 9)


def test_an_awaited_task_that_raises_stop_iteration_ends(executor):
    async def go():
        with pytest.raises(RuntimeError) as raised:
            await asyncio.wait_for(executor.submit(tasks.first, []), 20)
        assert isinstance(raised.value.__cause__, StopIteration)
        with pytest.raises(RuntimeError):
            await asyncio.gather(executor.submit(tasks.first, []))
        return await executor.submit(tasks.first, [3])

    assert asyncio.run(go()) == 3
    with pytest.raises(StopIteration):
        executor.submit(tasks.first, []).result(60)


def test_a_task_whose_awaiting_is_cancelled_is_cancelled(executor, tmp_path):
    gate = tmp_path / "gate"

    async def go():
        running = executor.submit(tasks.wait_for, str(gate))
        waiting = [executor.submit(tasks.add, n, 1) for n in range(2000)]
        awaited = asyncio.ensure_future(waiting[-1])
        await asyncio.sleep(0)
        awaited.cancel()
        with pytest.raises(asyncio.CancelledError):
            await awaited
        gate.touch()
        await running
        return waiting[-1].cancelled()

    assert asyncio.run(go())


@pytest.mark.parametrize("count", [10, 5_000, 1_000_000])
def test_arrays_come_back_equal_and_writable(executor, count):
    array = np.arange(count, dtype="f8")
    result = executor.submit(np.multiply, array, 2).result(60)
    assert np.array_equal(result, 2 * array)
    result[0] = 7
    assert result[0] == 7


def test_arrays_that_are_not_contiguous_or_hold_objects_go_too(executor):
    array = np.arange(20_000).reshape(100, 200)[::2, ::3]
    assert np.array_equal(executor.submit(tasks.add, array, 1).result(60), array + 1)
    objects = np.array([1, "a", None], dtype=object)
    assert list(executor.submit(np.flip, objects).result(60)) == [None, "a", 1]


def test_memory_of_results_is_not_used_again_while_they_live(executor):
    arrays = [executor.submit(np.full, 50_000, n).result(60) for n in range(20)]
    assert [int(array.sum()) for array in arrays] == [50_000 * n for n in range(20)]


def test_a_declared_function_runs_here_and_there(kept):
    assert triple(2) == triple.local(2) == 6
    assert triple.submit(3).result(60) == 9
    assert list(triple.map(range(5))) == [0, 3, 6, 9, 12]
    assert triple.__doc__ == "Returns three times as much." and triple.__name__ == "triple"


def test_the_public_module_is_typed(tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(
        "import hotlease\n"
        "options: hotlease.ExecutorOptions = hotlease.ExecutorOptions(memory=1 << 30, output=print, mounts=['/data'])\n"
        "with hotlease.Executor(2, options=options) as executor:\n"
        "    number: int = executor.submit(len, 'abc').result()\n"
        "    hotlease.Executor(2, ttl=5, memo=True)\n"
        "    hotlease.Gang(2, ttl='5')  # type: ignore[arg-type]\n"
        "    hotlease.Executor(2, tll=5)  # type: ignore[call-arg]\n"
        "@hotlease.function\n"
        "def double(n: int) -> int: return 2 * n\n"
        "future: hotlease.Future[int] = double.submit(4)\n"
        "scale: hotlease.NativeFunction = hotlease.native('libscale.so', 'scale', output=lambda given: len(given), dtype='f8')\n"
        "result = scale.submit(b'bytes').result()\n"
        "results = list(scale.map([b'bytes']))\n"
        "totals: list[int] = hotlease.spmd(double.local, ranks=2)(3)\n"
        "with hotlease.Gang(2) as gang: lengths: list[int] = gang.submit(len, 'abc').result()\n"
        "with hotlease.RemoteMemory(1 << 20, nodes=2) as memory: memory[0:5] = memory.read(5, 5)\n"
        "rows: hotlease.RemoteArray = hotlease.RemoteArray((10, 3), 'f4', label='rows')\n"
        "from hotlease import MPI\n"
        "comm: MPI.Intracomm = MPI.COMM_WORLD\n"
        "request: MPI.Request = comm.Isend([bytearray(8), MPI.DOUBLE], dest=(comm.rank + 1) % comm.Get_size())\n"
        "comm.Allreduce(MPI.IN_PLACE, bytearray(8), op=MPI.MAX)\n"
        "half: MPI.Comm = comm.Split(comm.rank % 2)\n"
    )
    package = pathlib.Path(hotlease.__file__).parent
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--exclude", r"_slot\.py$", str(program), str(package)]
    env = {**os.environ, "MYPYPATH": str(package.parent)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
