"""Showing of tasks' output: the threads that do it, the time at which they do it, and failures."""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import os
import re
import sys
import threading
import time

import pytest
import talking
import tasks

import hotlease


def lines(text):
    return text.splitlines()


class Stream:
    text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.fixture
def stream():
    """Returns a function that replaces standard output from its call on."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(contextlib.redirect_stdout(Stream()))


def test_output_goes_through_the_stream_of_python(executor, capfd, stream):
    stream = stream()
    executor.submit(talking.say, "two", "lines").result(60)
    assert stream.text == "[say worker 0] two\n[say worker 0] lines\n"
    assert capfd.readouterr() == ("", "")


def test_characters_that_the_output_cannot_encode_are_escaped(platform, run):
    program = "import hotlease, talking\nwith hotlease.Executor(1) as e: print(e.submit(talking.say, 'für', then=1).result())"
    done = run(program, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "[say worker 0] f\\xfcr\n1\n"), done.stderr


def test_output_is_shown_soon_although_the_program_does_not_wait(executor, capsys, eventually):
    futures = [executor.submit(talking.say, "unasked") for _ in range(3)]
    said = []

    def shown():
        said.append(capsys.readouterr().out)
        return "".join(said) == "[say worker 0] unasked\n" * 3

    eventually(shown, "three lines")
    assert all(future.done() for future in futures)


def test_workers_do_not_wait_for_python_s_lock(executor, capsys, tmp_path):
    path = tmp_path / "marks"
    path.touch()
    futures = [executor.submit(talking.say_and_mark, str(path)) for _ in range(3_000)]
    # A C call that keeps the GIL, with a long switch interval: no other thread can show anything meanwhile.
    c, usual = ctypes.PyDLL(None), sys.getswitchinterval()
    c.lseek.argtypes, c.lseek.restype = (ctypes.c_int, ctypes.c_int64, ctypes.c_int), ctypes.c_int64
    with open(path) as marks:
        sys.setswitchinterval(1000)
        try:
            for _ in range(300):
                c.usleep(100_000)
                ran = c.lseek(marks.fileno(), 0, os.SEEK_END)
                if ran == 3_000:
                    break
        finally:
            sys.setswitchinterval(usual)
    for future in futures:
        future.result(60)
    assert ran == 3_000
    assert len(lines(capsys.readouterr().out)) == 3_000


def test_everything_is_shown_when_the_executor_is_shut_down(platform, capsys):
    with hotlease.Executor(1) as executor:
        for n in range(500):
            executor.submit(talking.say, n)
    assert lines(capsys.readouterr().out) == [f"[say worker 0] {n}" for n in range(500)]


def test_everything_is_shown_when_the_program_ends(platform, run):
    program = "import hotlease, talking\ne = hotlease.Executor(1)\nfor n in range(500): e.submit(talking.say, n)\ndel e"
    done = run(program)
    assert (done.returncode, done.stderr) == (0, "")
    assert lines(done.stdout) == [f"[say worker 0] {n}" for n in range(500)]


def test_lines_and_records_of_a_program_that_has_said_nothing_of_logging(platform, run):
    program = (
        "import hotlease, talking\n"
        "with hotlease.Executor(1) as e:\n"
        "    e.submit(talking.log_levels, 'quiet').result()\n"
        "    print('between')\n"
        "    e.submit(talking.say, 'after').result()\n"
    )
    done = run(program)
    assert done.stdout == "between\n[say worker 0] after\n", done.stderr
    label = "[log_levels worker 0] "
    assert all(line.startswith(label) for line in lines(done.stderr)), done.stderr
    said = [line.removeprefix(label) for line in lines(done.stderr)]
    assert said[:3] == ["WARNING:quiet:100 %", "Level 35:quiet:between", "ERROR:quiet:it went wrong"]
    assert said[-1] == "KeyError: 'missing'", "with its traceback"


def test_a_callable_gets_lines_and_records(platform, capfd):
    seen = []
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(output=seen.append)) as executor:
        executor.submit(talking.say, "a line").result(60)
        executor.submit(talking.log_levels, "a.logger").result(60)
    line, *records = seen
    assert line == hotlease.Line("say", 0, "stdout", "a line") and str(line) == "[say worker 0] a line"
    assert [(record.name, record.function, record.worker) for record in records] == [("a.logger", "log_levels", 0)] * 3
    assert capfd.readouterr() == ("", "")


def test_an_output_that_is_not_callable_is_refused(platform):
    with pytest.raises(TypeError, match="output"):
        hotlease.Executor(1, options=hotlease.ExecutorOptions(output="yes"))


def test_a_callable_may_submit_tasks_and_wait_for_them(platform):
    seen = []

    def output(line):
        seen.append(line.text)
        if line.text != "asked back":
            executor.submit(talking.say, "asked back").result(60)

    with hotlease.Executor(1, options=hotlease.ExecutorOptions(output=output)) as executor:
        for n in range(50):
            executor.submit(talking.say, n)
        executor.submit(talking.say, "the last").result(60)
    assert [text for text in seen if text != "asked back"] == [*map(str, range(50)), "the last"]
    assert seen.count("asked back") == 51


class Stuck:
    """Receiver of lines that blocks at the first line until its gate is open."""

    def __init__(self):
        self.gate, self.inside, self.seen = threading.Event(), threading.Event(), []

    def __call__(self, line):
        self.inside.set()
        assert self.gate.wait(60)
        self.seen.append(line.text)


def test_a_callable_that_is_stuck_delays_no_other_task_for_long(platform):
    output = Stuck()
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(output=output)) as executor:
        executor.submit(talking.say, "stuck")
        assert output.inside.wait(60)
        begun = time.monotonic()
        for n in range(20):
            assert executor.submit(talking.say, n, then=n).result(60) == n
        assert time.monotonic() - begun < 10, "not once for each"
        output.gate.set()
    assert output.seen == ["stuck", *map(str, range(20))]


def test_output_that_waits_to_be_shown_is_bounded(platform):
    output = Stuck()
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(output=output)) as executor:
        executor.submit(talking.say, "the first")
        assert output.inside.wait(60)
        futures = [executor.submit(talking.say, f"{n:03}" + "y" * 60_000, then=n) for n in range(400)]
        assert [future.result(60) for future in futures] == list(range(400))
        output.gate.set()
    first, cut, *shown = output.seen
    assert first == "the first" and 250 < len(shown) < 300, "16 MiB"
    left_out = 400 - len(shown)
    # Lines are in the order in which tasks ended. It may differ from the order of numbers, because large results are fetched.
    numbers = {int(text[:3]) for text in shown}
    assert len(numbers) == len(shown) and numbers >= set(range(left_out + 100, 400)), "the last ones"
    # The omitted output is counted in pieces, each of which has a header.
    assert 0 < int(re.fullmatch(r"\.\.\. (\d+) bytes \.\.\.", cut)[1]) - left_out * 60_004 < left_out * 500


def test_an_output_that_raises_is_told_once_and_loses_no_result(platform, run):
    program = (
        "import sys, hotlease, talking\n"
        "sys.stdout.close()\n"
        "with hotlease.Executor(1) as e:\n"
        "    for n in range(20): assert e.submit(talking.say, n, then=n).result() == n\n"
        "    e.submit(talking.say_to_both, 1).result()\n"
    )
    done = run(program)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.count("ValueError: I/O operation on closed file") == 1, done.stderr
    assert "[say_to_both worker 0] err 0\n" in done.stderr, "the other stream is open"


def test_a_program_without_streams_has_its_results(platform, run):
    program = (
        "import sys, hotlease, talking\n"
        "sys.stdout = sys.stderr = None\n"
        "with hotlease.Executor(1) as e:\n"
        "    sys.exit(e.submit(talking.say, 'unheard', then=7).result())\n"
    )
    assert run(program).returncode == 7


def test_callbacks_see_it_shown_and_may_print(executor, stream):
    stream, missed = stream(), []

    def callback(future):
        if f"[say worker 0] {futures.index(future)}\n" not in stream.text:
            missed.append(futures.index(future))
        print("in the callback")

    futures = [executor.submit(talking.say, n) for n in range(50)]
    for future in futures:
        future.add_done_callback(callback)
    executor.shutdown()
    assert not missed
    said = [f"[say worker 0] {n}" for n in range(50)]
    assert sorted(lines(stream.text)) == sorted(["in the callback"] * 50 + said)


def test_output_is_shown_before_as_completed_yields_its_future(executor, capsys):
    futures = {executor.submit(talking.say, n): n for n in range(20)}
    said = ""
    for future in concurrent.futures.as_completed(futures):
        # The future may have ended before, so that no thread has waited for it.
        future.result(60)
        said += capsys.readouterr().out
        assert f"[say worker 0] {futures[future]}\n" in said


def test_output_is_shown_before_an_awaited_result(executor, capsys):
    async def go():
        for n in range(20):
            await executor.submit(talking.say, n)
            assert capsys.readouterr().out == f"[say worker 0] {n}\n"

    asyncio.run(go())


def test_threads_that_wait_see_their_own_shown(pair, stream):
    stream, missed = stream(), []

    def ask(thread):
        for n in range(100):
            pair.submit(talking.say, f"{thread}-{n}").result(60)
            if f"{thread}-{n}\n" not in stream.text:
                missed.append((thread, n))

    threads = [threading.Thread(target=ask, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not missed
    assert len(lines(stream.text)) == 400
