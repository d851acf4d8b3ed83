"""Output of tasks reaches the program with a label, and before the tasks' results."""

import os
import re

import pytest
import talking
import tasks

import hotlease


def lines(text):
    return text.splitlines()


def test_a_line_is_shown_with_its_label_before_the_result_returns(executor, capsys):
    for number in range(200):
        executor.submit(talking.say, f"hello {number}").result(60)
        assert capsys.readouterr() == (f"[say worker 0] hello {number}\n", "")
    assert executor.submit(talking.say, "of a task that was long done", then=5).result(60) == 5


def test_both_streams_are_what_they_are_in_the_program(executor, capsys):
    executor.submit(talking.say_to_both, 50).result(60)
    out, err = capsys.readouterr()
    assert lines(out) == [f"[say_to_both worker 0] out {n}" for n in range(50)]
    assert lines(err) == [f"[say_to_both worker 0] err {n}" for n in range(50)]


def test_streams_come_in_the_order_in_which_they_were_written(platform):
    seen = []
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(output=seen.append)) as executor:
        executor.submit(talking.say_to_both, 3).result(60)
    assert [line.text for line in seen] == ["out 0", "err 0", "out 1", "err 1", "out 2", "err 2"]
    assert [line.stream for line in seen] == ["stdout", "stderr"] * 3


def test_a_line_without_its_end_ends_with_its_task(executor, capsys):
    executor.submit(talking.say, "one", "two", end=" ").result(60)
    executor.submit(talking.flush_in_a_line).result(60)
    executor.submit(talking.say, "three").result(60)
    assert capsys.readouterr().out == "[say worker 0] one two \n[flush_in_a_line worker 0] 012\n[say worker 0] three\n"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("für 🎉\n", "für 🎉"),
        ("alone \udc80\n", r"alone \udc80"),
        ("\n", ""),
        ("10 %\r50 %\r100 %\n", "100 %"),
        ("a line of another system\r\n", "a line of another system"),
        ("\x00 and \x1b[1m\n", "\x00 and \x1b[1m"),
    ],
)
def test_text_of_all_kinds(executor, capsys, written, shown):
    executor.submit(talking.say_what_is, written).result(60)
    assert capsys.readouterr().out == f"[say_what_is worker 0] {shown}\n"


def test_bytes_beneath_the_text(executor, capsys):
    for data in (b"plain\n", bytearray(b"copied\n"), memoryview(b"a view\n").tobytes(), b"no \xff text\n"):
        assert executor.submit(talking.say_bytes, data).result(60) == len(data)
    said = [line.partition("] ")[2] for line in lines(capsys.readouterr().out)]
    assert said == ["plain", "copied", "a view", "no \N{REPLACEMENT CHARACTER} text"]


def test_the_streams_of_a_worker_are_files_as_ever(executor):
    assert executor.submit(talking.stream_facts).result(60) == (1, "utf-8", False, True, True, "<stdout>")


@pytest.mark.parametrize("talk", ["lines", "at once"])
def test_ten_megabytes_are_cut_to_their_beginning_and_end(executor, capsys, talk):
    if talk == "lines":
        executor.submit(talking.say_much, 100_000).result(60)
        whole = 100_000 * 100
    else:
        executor.submit(talking.say_at_once, 10_000_000).result(60)
        whole = 10_000_001
    out = capsys.readouterr().out
    label = r"\[\w+ worker 0\] "
    cut = re.search(rf"^{label}\.\.\. (\d+) bytes \.\.\.$", out, re.M)
    shown = len(re.sub(rf"^{label}", "", out.replace(cut[0] + "\n", ""), flags=re.M))
    assert 60_000 < shown < 68_000
    # Cutting a line adds one line end.
    assert abs(shown + int(cut[1]) - whole) <= 1
    if talk == "lines":
        assert "] 00000000 xx" in out and "] 00099999 xx" in out and "] 00050000" not in out


def test_threads_of_a_task_write_whole_lines(executor, capsys):
    executor.submit(talking.say_in_threads, 8, 60).result(60)
    said = lines(capsys.readouterr().out)
    label = "[say_in_threads worker 0] "
    assert sorted(said) == sorted(f"{label}thread {thread} line {line}" for thread in range(8) for line in range(60))


def test_output_before_an_exception_is_shown(executor, capsys):
    with pytest.raises(ValueError, match="after it"):
        executor.submit(talking.say_and_fail, "before it").result(60)
    assert capsys.readouterr().out == "[say_and_fail worker 0] before it\n"
    assert isinstance(executor.submit(talking.say_and_fail, "again").exception(60), ValueError)
    assert capsys.readouterr().out == "[say_and_fail worker 0] again\n"


@pytest.mark.parametrize("timing", [False, True])
@pytest.mark.parametrize("said", [10, 3_000, 7_950, 8_100, 30_000])
@pytest.mark.parametrize("size", [0, 5_000, 8_000, 8_090, 50_000, 3_000_000])
def test_results_of_all_sizes_come_with_what_was_printed_beside_them(platform, capsys, timing, said, size):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(timing=timing)) as executor:
        future = executor.submit(talking.say_and_return_bytes, "y" * said, size)
        assert future.result(60) == b"x" * size
        assert capsys.readouterr().out == f"[say_and_return_bytes worker 0] {'y' * said}\n"
        if timing:
            assert future.timing.running > 0
        if size == 0:
            with pytest.raises(ValueError, match="after it"):
                executor.submit(talking.say_and_fail, "z" * said).result(60)
            assert capsys.readouterr().out == f"[say_and_fail worker 0] {'z' * said}\n"


def test_output_does_not_change_large_arrays(executor, capsys):
    np = pytest.importorskip("numpy")
    futures = [executor.submit(talking.say_and_return_array, str(n), 200_000 + n) for n in range(20)]
    for n, future in enumerate(futures):
        array = future.result(60)
        assert np.array_equal(array, np.arange(200_000.0 + n))
        array[0] = 1
    assert lines(capsys.readouterr().out) == [f"[say_and_return_array worker 0] {n}" for n in range(20)]


@pytest.mark.parametrize("said", [10, 20_000])
def test_output_does_not_change_an_array_written_in_place(executor, capsys, said):
    np = pytest.importorskip("numpy")
    for n in range(5):
        array = executor.submit(talking.say_and_change, np.full(100_000, float(n)), "y" * said).result(60)
        assert array[0] == array[-1] == n + 1 and array.shape == (100_000,)
        assert capsys.readouterr().out == f"[say_and_change worker 0] {'y' * said}\n"


def test_the_label_names_the_function_that_the_program_knows(executor, capsys):
    def local(text):
        print(text)

    class Speaker:
        def __call__(self, text):
            print(text)

        def speak(self, text):
            print(text)

    assert list(executor.map(talking.square, range(4), chunksize=2)) == [0, 1, 4, 9]
    executor.submit(local, "of a function").result(60)
    executor.submit(lambda: print("of a lambda")).result(60)
    executor.submit(Speaker(), "of an object").result(60)
    executor.submit(Speaker().speak, "of a method").result(60)
    assert lines(capsys.readouterr().out) == [
        *(f"[square worker 0] square of {n}" for n in range(4)),
        "[local worker 0] of a function",
        "[<lambda> worker 0] of a lambda",
        "[Speaker worker 0] of an object",
        "[Speaker.speak worker 0] of a method",
    ]


def test_several_workers_have_several_numbers(pair, capsys):
    list(pair.map(talking.square, range(200)))
    said = capsys.readouterr().out
    assert set(re.findall(r"^\[square (worker \d)\] square of \d+$", said, re.M)) <= {"worker 0", "worker 1"}
    assert sorted(map(int, re.findall(r"(\d+)$", said, re.M))) == list(range(200))


def test_a_chain_of_tasks_passes_on_values_only(executor, capsys):
    future = executor.submit(talking.say_and_return, "first", 1)
    for n in range(20):
        future = executor.submit(talking.say_and_return, f"then {n}", future, 1)
    both = executor.submit(talking.say_and_return, "y" * 20_000, future, future)
    assert both.result(60) == 42
    label = "[say_and_return worker 0] "
    assert lines(capsys.readouterr().out) == [f"{label}{text}" for text in ("first", *(f"then {n}" for n in range(20)), "y" * 20_000)]


def test_retries_show_each_run(executor, capsys):
    again = executor.options(retries=2)
    with pytest.raises(ValueError):
        again.submit(talking.say_and_fail, "a run").result(60)
    assert capsys.readouterr().out == "[say_and_fail worker 0] a run\n" * 3


def test_output_is_not_part_of_a_remembered_result(platform, capsys, tmp_path):
    path = tmp_path / "checkpoint"
    for _ in range(2):
        with hotlease.Executor(1, options=hotlease.ExecutorOptions(memo=True, checkpoint=path)) as executor:
            for _ in range(2):
                assert executor.submit(talking.say_twice, "not repeated").result(60) == "not repeatednot repeated"
    assert capsys.readouterr().out == "[say_twice worker 0] not repeated\n", "printed by the one run that there was"
    data = path.read_bytes()
    assert data.count(b"not repeated") == 2, "the result, and nothing of the line"


def test_output_that_the_program_does_not_want_stays_in_the_worker(platform, capfd):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(output=False)) as executor:
        assert executor.submit(talking.say, "unseen", then=3).result(60) == 3
        executor.submit(talking.log_levels, "unseen").result(60)
        with pytest.raises(hotlease.WorkerDied) as raised:
            executor.submit(talking.say_log_and_die, "the last line").result(60)
    assert capfd.readouterr() == ("", "")
    assert "the last line\nwords" in raised.value.output


@pytest.mark.parametrize("said", [1, 300])
def test_an_initializer_s_is_shown_too(platform, capsys, said):
    with hotlease.Executor(1, initializer=talking.say_much, initargs=(said,)) as executor:
        assert executor.submit(tasks.add, 1, 2).result(60) == 3
    expected = [f"[say_much worker 0] {line:08} {'x' * 90}" for line in range(said)]
    assert lines(capsys.readouterr().out) == expected


@pytest.mark.parametrize(("says", "raises"), [(1, 1), (300, 1), (1, 30_000)])
def test_an_initializer_that_says_or_raises_much_breaks_the_executor(platform, capsys, says, raises):
    with hotlease.Executor(1, initializer=talking.say_much_and_fail, initargs=(says, raises)) as executor:
        with pytest.raises(hotlease.ExecutorBroken, match="zz$"):
            executor.submit(tasks.sleep, 0).result(60)
            executor.submit(tasks.add, 1, 2).result(60)
    assert len(lines(capsys.readouterr().out)) == says


def test_a_worker_that_dies_has_told_its_last_words_to_its_error_alone(executor, capsys):
    with pytest.raises(hotlease.WorkerDied) as raised:
        executor.submit(talking.say_log_and_die, "the last line").result(60)
    assert "the last line\nWARNING:last:words" in raised.value.output
    executor.submit(talking.say, "the next worker").result(60)
    assert capsys.readouterr().out == "[say worker 0] the next worker\n"


def test_a_forked_child_s_is_not_the_task_s(executor, capsys):
    executor.submit(talking.fork_and_say).result(60)
    assert capsys.readouterr().out == "[fork_and_say worker 0] the parent\n"


def test_a_worker_whose_output_was_closed_goes_on(executor, capsys):
    executor.submit(talking.close_output).result(60)
    with pytest.raises(ValueError, match="closed file"):
        executor.submit(talking.say, "unheard").result(60)
    assert executor.submit(tasks.add, 1, 2).result(60) == 3


def test_a_task_that_prints_nothing_sends_nothing(executor, capfd):
    assert executor.submit(tasks.add, 1, 2).result(60) == 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kernel", ["hotlease", "parsl"])
def test_parsl_s_apps_are_named_by_their_functions_and_their_files_are_theirs(platform, run, kernel):
    pytest.importorskip("parsl")
    load = {
        "hotlease": "hotlease.parsl.load(max_workers=1)",
        "parsl": "parsl.load(parsl.Config(executors=[hotlease.parsl.HotleaseExecutor(max_workers=1)]))",
    }
    program = (
        "import parsl, hotlease.parsl\n"
        "@parsl.python_app\n"
        "def speak(text): print(text)\n"
        "@parsl.bash_app\n"
        "def shout(stdout=None): return 'echo to the file'\n"
        f"with {load[kernel]}:\n"
        "    speak('from an app').result()\n"
        "    shout(stdout='out.txt').result()\n"
        "    print(open('out.txt').read(), end='')\n"
    )
    done = run(program)
    assert lines(done.stdout) == ["[speak worker 0] from an app", "to the file"], done.stderr
