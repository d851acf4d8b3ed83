"""Functions of shared libraries, called on arrays through the same executor as Python functions."""

import concurrent.futures
import os
import pathlib
import pickle
import shutil
import subprocess
import sys

import pytest
import tasks

import hotlease
from hotlease import _kept

numpy = pytest.importorskip("numpy")

HERE = pathlib.Path(__file__).resolve().parent
INCLUDE = HERE.parents[2] / "include"


def _compiled(folder, source, name, *options):
    library = folder / f"lib{name}.so"
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-I", INCLUDE, *options, "-o", library, source]
    subprocess.run(command, check=True, timeout=120)
    return str(library)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return _compiled(tmp_path_factory.mktemp("native"), HERE / "native.c", "native")


def test_an_array_goes_in_and_an_array_of_its_kind_comes_out(executor, library):
    twice = hotlease.native(library, "twice")
    for array in (numpy.arange(5.0), numpy.arange(6.0).reshape(2, 3), numpy.array(3.5), numpy.arange(0.0)):
        result = executor.submit(twice, array).result(60)
        assert type(result) is numpy.ndarray and result.dtype == array.dtype
        assert result.shape == array.shape and (result == 2 * array).all(), array
    result[...] = 1  # the caller's own


def test_fortran_s_order_of_an_array_is_kept(executor, library):
    array = numpy.asfortranarray(numpy.arange(12.0).reshape(3, 4))
    result = executor.submit(hotlease.native(library, "twice"), array).result(60)
    assert result.flags.f_contiguous and (result == 2 * array).all()


@pytest.mark.parametrize("dtype", ["i1", "u2", "f4", "c16", "?", ">i4", "S3", [("x", "f8"), ("O", "i4")], "V5"], ids=str)
def test_items_of_every_dtype_come_back_as_they_went(executor, library, dtype):
    array = numpy.frombuffer(bytes(range(1, 241)), numpy.uint8)
    array = array[: 240 // numpy.dtype(dtype).itemsize * numpy.dtype(dtype).itemsize].view(dtype)
    if dtype == "?":
        array = numpy.array([True, False, True])
    result = executor.submit(hotlease.native(library, "echo"), array).result(60)
    assert result.dtype == array.dtype and result.tobytes() == array.tobytes()


def test_the_output_can_be_declared(executor, library):
    array = numpy.arange(6.0).reshape(2, 3)
    total = hotlease.native(library, "sum", output=1, dtype="float64")
    assert executor.submit(total, array).result(60) == [15.0]
    scalar = hotlease.native(library, "sum", output=(), dtype=float)
    assert executor.submit(scalar, array).result(60) == 15.0
    grown = hotlease.native(library, "grow", output=lambda given: (len(given), 16), dtype="u1")
    assert executor.submit(grown, b"abc").result(60).shape == (3, 16)
    other = hotlease.native(library, "echo", dtype="uint32")
    assert executor.submit(other, numpy.array([[1, 2], [3, 4]], "float32")).result(60).dtype == numpy.uint32


def test_a_function_may_give_fewer_items_than_there_is_room_for(executor, library):
    positive = hotlease.native(library, "positive")
    array = numpy.array([1.0, -2.0, 3.0])
    assert executor.submit(positive, array).result(60).tolist() == [1.0, 3.0]
    large = numpy.arange(-500_000.0, 500_000.0)
    assert executor.submit(positive, large).result(60).shape == (499_999,)


def test_bytes_give_a_memoryview(executor, library):
    echo = hotlease.native(library, "echo")
    for given in (b"", b"abc", bytearray(5), memoryview(b"xyz"), bytes(1 << 20)):
        result = executor.submit(echo, given).result(60)
        assert isinstance(result, memoryview) and result == given
    assert executor.submit(echo).result(60) == b"", "without an argument it reads nothing"


def test_a_megabyte_of_echo_and_a_hundred_of_twice_are_not_copied_out_of_where_they_were_written(executor, library):
    echo = hotlease.native(library, "echo")
    array = numpy.random.default_rng(1).integers(0, 255, 1 << 20, numpy.uint8)
    for _ in range(20):
        assert (executor.submit(echo, array).result(60) == array).all()
    large = numpy.arange(13_000_000.0)
    result = executor.submit(hotlease.native(library, "twice_large"), large).result(60)
    assert result.nbytes == 104_000_000 and (result == 2 * large).all()
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if start <= result.ctypes.data < end:
            assert "memfd:" in line, f"a copy in other memory: {line}"


def test_an_array_in_shared_memory_is_read_there_and_stays_as_it_is(executor, library):
    twice = hotlease.native(library, "twice")
    given = executor.empty(200_000)
    for number in range(3):
        given[:] = number
        first, second = executor.submit(twice, given), executor.submit(twice, given)
        assert set(first.result(60)) == set(second.result(60)) == {2.0 * number}
        assert set(given) == {float(number)}, "it is only read"


def test_nothing_is_pickled_on_the_way(executor, library, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("something was pickled")

    echo = hotlease.native(library, "echo")
    executor.submit(echo, b"warm").result(60)
    monkeypatch.setattr(pickle, "dumps", fail)
    # A memoryview also cannot be pickled.
    assert executor.submit(echo, memoryview(bytearray(range(200)))).result(60)[199] == 199


def test_input_and_output_begin_at_multiples_of_64_and_there_is_room_for_a_message(executor, library):
    look = hotlease.native(library, "surroundings", output=6, dtype="u8")
    for size in (1, 100, 10_000, 1_000_000):
        seen = executor.submit(look, numpy.zeros(size)).result(60).tolist()
        assert seen == [0, 0, 0, 512, 0, 0], (size, seen)


def test_map_and_the_function_s_own_executor(executor, library, monkeypatch):
    twice = hotlease.native(library, "twice", executor=executor)
    arrays = [numpy.full(n, float(n)) for n in (1, 10, 100_000)]
    for result, array in zip(twice.map(arrays), arrays):
        assert (result == 2 * array).all()
    assert twice.submit(arrays[0]).result(60) == [2.0]
    assert twice.options(priority=1).submit(arrays[0]).result(60) == [2.0]
    assert [each[0] for each in executor.map(twice, arrays, chunksize=2)] == [2.0, 20.0, 200_000.0]
    monkeypatch.setattr(_kept, "executor", lambda: executor)
    assert hotlease.native(library, "twice").submit(arrays[0]).result(60) == [2.0]


def test_futures_are_arguments_in_both_directions(executor, library):
    twice, echo = hotlease.native(library, "twice"), hotlease.native(library, "echo")
    first = executor.submit(twice, numpy.ones(3))
    assert executor.submit(twice, first).result(60).tolist() == [4.0] * 3
    for count in (10, 400_000):
        made = executor.submit(tasks.ones, count)
        chained = executor.submit(twice, executor.submit(twice, executor.submit(twice, made)))
        assert (chained.result(60) == 8.0).all() and chained.result().shape == (count,)
        assert executor.submit(tasks.summed, executor.submit(twice, made)).result(60) == 2 * count
    assert executor.submit(echo, executor.submit(tasks.concat, b"ab", b"cd")).result(60) == b"abcd"
    elsewhere = concurrent.futures.Future()
    waits = executor.submit(twice, elsewhere)
    elsewhere.set_result(numpy.arange(4.0).reshape(2, 2))
    assert waits.result(60).tolist() == [[0.0, 2.0], [4.0, 6.0]]


def test_a_future_whose_result_is_no_memory_fails_the_function_that_needs_it(executor, library):
    echo = hotlease.native(library, "echo")
    with pytest.raises(TypeError, match="memory it can read.*not list"):
        executor.submit(echo, executor.submit(list, "ab")).result(60)
    with pytest.raises(hotlease.DependencyError, match="echo was not run"):
        executor.submit(echo, executor.submit(int, "twelve")).result(60)
    asked = hotlease.native(library, "echo", output=len)
    with pytest.raises(TypeError, match="declare its size"):
        executor.submit(asked, executor.submit(tasks.concat, b"a", b"b")).result(60)


def test_a_function_s_error_comes_with_its_number_and_message(executor, library):
    fail = hotlease.native(library, "fail")
    with pytest.raises(hotlease.FunctionFailed, match="`fail` returned error 42: no luck today") as raised:
        executor.submit(fail, b"").result(60)
    assert (raised.value.code, raised.value.message, raised.value.ran) == (42, "no luck today", True)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.code, again.message, str(again)) == (42, "no luck today", str(raised.value))
    with pytest.raises(hotlease.FunctionFailed):
        fail(b"")


def test_a_result_that_is_larger_than_declared_is_told_with_its_size(executor, library):
    grow = hotlease.native(library, "grow")
    for size in (100, 1_000_000):
        with pytest.raises(hotlease.OutputTooLarge, match=f"{16 * size} bytes") as raised:
            executor.submit(grow, bytes(size)).result(60)
        assert (raised.value.needed, raised.value.ran) == (16 * size, True)
    # The result would fit into the memory for error messages.
    with pytest.raises(hotlease.OutputTooLarge):
        executor.submit(grow, bytes(10)).result(60)
    with pytest.raises(hotlease.TaskError, match=r"gave 8 bytes.*\(2, 3\)"):
        executor.submit(hotlease.native(library, "sum"), numpy.ones((2, 3))).result(60)
    with pytest.raises(hotlease.TaskError, match="no whole number"):
        executor.submit(hotlease.native(library, "echo", output=9, dtype="f8"), b"123").result(60)


@pytest.mark.parametrize(
    "given, says",
    [
        (numpy.arange(10.0)[::2], "ascontiguousarray"),
        (numpy.ones((3, 4))[:, :2], "ascontiguousarray"),
        (memoryview(bytes(10))[::2], "in one piece"),
        (numpy.array([object()]), "array of objects"),
        (numpy.zeros(2, [("x", "f8"), ("y", "O")]), "array of objects"),
        ([1.0, 2.0], "not list"),
        (3.5, "not float"),
        ("text", "not str"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_an_argument_that_is_not_contiguous_raises_a_type_error_with_a_remedy(executor, library, given, says):
    echo = hotlease.native(library, "echo")
    with pytest.raises(TypeError, match=says):
        executor.submit(echo, given).result(60)
    with pytest.raises(TypeError, match=says):
        echo.local(given)
    assert executor.submit(echo, b"ab").result(60) == b"ab"


def test_arguments_beyond_the_one_are_refused(executor, library):
    echo = hotlease.native(library, "echo")
    for args, named in (((b"a", b"b"), {}), ((), {"value": b"a"})):
        with pytest.raises(TypeError, match="one argument, by its position"):
            executor.submit(echo, *args, **named).result(60)


def test_a_library_that_is_none_is_told_where_it_is_named(library, tmp_path):
    missing = str(tmp_path / "libmissing.so")
    with pytest.raises(FileNotFoundError) as raised:
        hotlease.native(missing, "twice")
    assert raised.value.filename == missing
    text = tmp_path / "text.so"
    text.write_text("no library")
    with pytest.raises(hotlease.OptionError, match="not a function library.*shared"):
        hotlease.native(text, "twice")
    with pytest.raises(hotlease.OptionError, match="has no function `twise`.*`twice`"):
        hotlease.native(library, "twise")
    huge = tmp_path / "huge.so"
    huge.touch()
    os.truncate(huge, (512 << 20) + 1)
    with pytest.raises(hotlease.OptionError, match="over the limit of 536870912"):
        hotlease.native(huge, "twice")


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"output": -1}, "a number, or a tuple of numbers, not -1"),
        ({"output": "x"}, "a number, or a tuple of numbers"),
        ({"output": (2, 3)}, "needs a dtype"),
        ({"dtype": object}, "cannot make objects"),
        ({"dtype": "S"}, "has no size"),
        ({"dtype": "nonsense"}, "nonsense"),
    ],
    ids=str,
)
def test_a_declaration_that_makes_no_sense_is_told_where_it_stands(library, wrong, says):
    with pytest.raises(TypeError, match=says):
        hotlease.native(library, "twice", **wrong)


def test_a_result_that_no_memory_holds_fails_its_own_task(executor, library):
    echo = hotlease.native(library, "echo", output=1 << 60)
    with pytest.raises((hotlease.TaskError, MemoryError)):
        executor.submit(echo, b"a").result(60)
    with pytest.raises(MemoryError):
        hotlease.native(library, "echo", output=(1 << 63) - 600).local(b"a")
    assert executor.submit(hotlease.native(library, "echo"), b"ab").result(60) == b"ab"


def test_a_library_that_a_worker_cannot_load_is_told_with_the_loader_s_words(executor, tmp_path):
    source = tmp_path / "broken.c"
    source.write_text("unsigned absent(void);\nunsigned f(const void* in, unsigned size, void* out) { return absent(); }\n")
    broken = hotlease.native(_compiled(tmp_path, source, "broken"), "f")
    for _ in range(2):
        with pytest.raises(hotlease.TaskError, match="undefined symbol: absent.*did not run") as raised:
            executor.submit(broken, b"").result(60)
        assert raised.value.ran is False
    with pytest.raises(hotlease.TaskError, match="undefined symbol: absent"):
        broken(b"")


def test_functions_of_one_library_are_in_one_copy_of_it(executor, library):
    count, count_too = (hotlease.native(library, name, output=1, dtype="i8") for name in ("count", "count_too"))
    before = int(executor.submit(count, b"").result(60)[0])
    assert executor.submit(count_too, b"").result(60) == [before + 1]
    assert executor.submit(count, b"").result(60) == [before + 2]


def test_a_library_is_read_when_the_function_is_made(executor, tmp_path):
    source = tmp_path / "number.c"
    numbers = []
    for number in (1, 2):
        source.write_text(f"unsigned f(const void* in, unsigned size, void* out) {{ *(char*)out = {number}; return 1; }}\n")
        numbers.append(hotlease.native(_compiled(tmp_path, source, "number"), "f", output=1))
    shutil.rmtree(tmp_path)
    assert [executor.submit(number, b"").result(60)[0] for number in numbers] == [1, 2]


def test_executors_have_the_same_function_at_once(executor, library):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    twice = hotlease.native(library, "twice")
    with hotlease.Executor(1) as other:
        futures = [each.submit(twice, numpy.full(50_000, float(n))) for n in range(40) for each in (executor, other)]
        assert [future.result(60)[-1] for future in futures] == [2.0 * n for n in range(40) for _ in range(2)]


def test_native_and_other_tasks_share_a_worker(executor, library):
    pid = hotlease.native(library, "pid", output=1, dtype="i8")
    assert executor.submit(pid, b"").result(60) == [executor.submit(os.getpid).result(60)]


def test_unread_results_leave_the_process_descriptors(executor, library):
    before = len(os.listdir("/proc/self/fd"))
    twice = hotlease.native(library, "twice")
    futures = [executor.submit(twice, numpy.full(140_000, float(n))) for n in range(300)]
    futures[-1].result(120)
    assert len(os.listdir("/proc/self/fd")) - before < 300
    assert all((future.result(60) == 2.0 * n).all() for n, future in enumerate(futures))


def test_a_crash_ends_the_worker_and_is_told(executor, library):
    with pytest.raises(hotlease.WorkerDied) as raised:
        executor.submit(hotlease.native(library, "crash"), numpy.ones(100_000)).result(60)
    assert raised.value.exit_code == -11 and "last words" in raised.value.output, raised.value
    assert executor.submit(hotlease.native(library, "twice"), numpy.ones(2)).result(60).tolist() == [2.0, 2.0]
    assert executor.submit(tasks.add, 1, 1).result(60) == 2


def test_writing_past_the_declared_output_ends_the_worker_and_is_told_as_that(executor, library):
    # The function writes 8 MB, but the output has a capacity of a megabyte.
    twice = hotlease.native(library, "twice", output=1_000_000)
    with pytest.raises(hotlease.WorkerDied, match="output"):
        executor.submit(twice, numpy.ones(1_000_000)).result(60)
    assert executor.submit(hotlease.native(library, "twice"), numpy.ones(1)).result(60) == [2.0]


def test_tasks_queued_behind_a_crash_are_sent_to_the_next_worker_with_their_library(executor, library):
    echo, twice = hotlease.native(library, "echo"), hotlease.native(library, "twice")
    list(executor.map(echo, [b"short"] * 300, timeout=60))
    big = numpy.ones(200_000)
    for _ in range(3):
        dying = executor.submit(hotlease.native(library, "crash"), big)
        others = [executor.submit(twice, big) for _ in range(20)] + [executor.submit(echo, b"x") for _ in range(20)]
        with pytest.raises((hotlease.WorkerDied, hotlease.OutcomeUnknown)):
            dying.result(60)
        assert all((future.result(60) == 2.0).all() for future in others[:20])
        assert all(future.result(60) == b"x" for future in others[20:])


def test_only_functions_that_their_library_calls_idempotent_run_again_after_a_crash(executor, library, tmp_path):
    marks = []
    for idempotent in (None, False):
        path = tmp_path / str(idempotent)
        function = hotlease.native(library, "mark_and_crash", idempotent=idempotent)
        with pytest.raises((hotlease.WorkerDied, hotlease.OutcomeUnknown)):
            executor.submit(function, os.fsencode(path)).result(60)
        marks.append(path.stat().st_size)
    assert marks == [2, 1], "two workers die of a task that may run again, and no more"


def test_retries_run_a_function_again_that_returned_an_error(executor, library):
    third = hotlease.native(library, "third_time", output=1, dtype="i8", retries=2)
    assert executor.submit(third, b"").result(60)[0] % 3 == 0
    with pytest.raises(hotlease.FunctionFailed, match="not yet"):
        executor.options(retries=1).submit(third, b"").result(60)


def test_memo_knows_a_function_by_its_library_its_name_and_its_argument(executor, library):
    count, count_too = (hotlease.native(library, name, output=1, dtype="i8", memo=True) for name in ("count", "count_too"))
    first = executor.submit(count, b"a").result(60)[0]
    assert executor.submit(count, b"a").result(60) == [first], "computed once"
    assert executor.submit(count, b"b").result(60) == [first + 1]
    assert executor.submit(count_too, b"a").result(60) == [first + 2]


def test_a_deadline_is_known_to_the_function_and_kills_one_that_does_not_heed_it(platform, library):
    with hotlease.Executor(1, timeout=0.5) as executor:
        look = hotlease.native(library, "surroundings", output=6, dtype="u8")
        assert executor.submit(look, b"").result(60)[5] == 1
        worker = executor.submit(os.getpid).result(60)
        for _ in range(3):
            worker = executor.submit(os.getpid).result(60)
            with pytest.raises((hotlease.DeadlineExceeded, hotlease.WorkerDied)) as raised:
                executor.submit(hotlease.native(library, "obedient"), b"").result(60)
            # On a busy host, the function may not run in the 50 ms after which its worker is ended.
            if executor.submit(os.getpid).result(60) == worker:
                break
        assert raised.type is hotlease.DeadlineExceeded
        assert executor.submit(os.getpid).result(60) == worker, "it returned in time"
        with pytest.raises((hotlease.DeadlineExceeded, hotlease.WorkerDied)):
            executor.submit(hotlease.native(library, "stubborn"), b"").result(60)
        assert executor.submit(os.getpid).result(60) != worker


def test_only_the_parent_of_a_fork_answers(executor, library):
    forks = hotlease.native(library, "forks", output=1, dtype="i8")
    assert executor.submit(forks, b"").result(60) == [100], "the child ended with status 0"


def test_a_function_runs_here_too(library):
    twice, look = hotlease.native(library, "twice"), hotlease.native(library, "surroundings", output=6, dtype="u8")
    array = numpy.arange(200_000.0)
    assert (twice(array) == 2 * array).all() and (twice.local(array) == 2 * array).all()
    assert look(array).tolist()[1:] == [0, 0, 512, 0, 0]
    assert hotlease.native(library, "echo")(b"ab") == b"ab"
    child = os.fork()
    if child == 0:
        os._exit(0 if twice(array)[1] == 2.0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert all(result[5] == 10.0 for result in threads.map(twice, [array] * 40))


def test_a_function_is_an_argument_and_part_of_others_like_any_value(executor, library):
    twice = hotlease.native(library, "twice")
    assert executor.submit(lambda array: twice(twice(array)), numpy.ones(3)).result(60).tolist() == [4.0] * 3
    again = pickle.loads(pickle.dumps(twice))
    assert executor.submit(again, numpy.ones(1)).result(60) == [2.0]
    assert "twice" in repr(again) and again.__name__ == "twice"


def test_the_time_that_it_took_is_that_of_the_function(platform, library):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(timing=True)) as executor:
        future = executor.submit(hotlease.native(library, "twice_large"), numpy.ones(1_000_000))
        assert future.result(60)[0] == 2.0
        assert 0 < future.timing.running < 10 and future.timing.ending == "returned"
        failed = executor.submit(hotlease.native(library, "fail"), b"")
        assert failed.exception(60) is not None and failed.timing.ending == "raised"


def test_builds_of_a_library_have_their_own_unique_variables_in_workers_and_in_the_program(executor, tmp_path):
    # Static variables of inline functions in C++, for example, are such unique variables.
    source = HERE.parents[2] / "tests/fixtures/unique.c"
    builds = [_compiled(tmp_path, source, f"unique{version}", f"-DVERSION={version}") for version in (1, 2)]
    versions = [hotlease.native(build, "version", output=1, dtype="i4") for build in builds]
    assert [executor.submit(version, numpy.zeros(1)).result(60)[0] for version in versions + versions] == [1, 2, 11, 12]
    assert [version(numpy.zeros(1))[0] for version in versions + versions] == [1, 2, 11, 12]


def test_the_same_is_true_where_numpy_is_not(library, tmp_path):
    script = (
        "import sys; sys.modules['numpy'] = None\n"
        "import hotlease\n"
        f"echo = hotlease.native({library!r}, 'echo')\n"
        "assert bytes(echo(b'here')) == b'here'\n"
        "try:\n"
        f"    hotlease.native({library!r}, 'echo', dtype='f8')\n"
        "except ImportError:\n"
        "    print('asked for')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.stdout == "asked for\n", done.stderr


def test_more_libraries_than_a_process_may_load_are_refused_with_the_limit(tmp_path):
    # The libraries differ only by one byte behind their end, which no loader reads.
    source = tmp_path / "small.c"
    source.write_text("unsigned f(const void* in, unsigned size, void* out) { return 0; }\n")
    small = pathlib.Path(_compiled(tmp_path, source, "small"))
    script = (
        "import hotlease, pathlib, sys\n"
        f"data = pathlib.Path({str(small)!r}).read_bytes()\n"
        f"other = pathlib.Path({str(tmp_path / 'other.so')!r})\n"
        "loaded = 0\n"
        "try:\n"
        "    for number in range(300):\n"
        "        other.write_bytes(data + number.to_bytes(2, 'little'))\n"
        "        hotlease.native(other, 'f')(b'')\n"
        "        loaded += 1\n"
        "except hotlease.TaskError as error:\n"
        "    print(loaded, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.stdout.startswith("256 ") and "256" in done.stdout and "another Executor" in done.stdout, done.stdout + done.stderr
