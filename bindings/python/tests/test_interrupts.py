"""Ctrl-C in a program with an executor."""

import os
import signal
import subprocess
import sys
import time

import pytest

# Seconds that a task takes, and the far fewer seconds within which the program must end.
_TASK_S, _LIMIT_S = 600, 60

_BEGIN = f"""
import time
import hotlease

def sleep(file):
    open(file, "w").close()
    time.sleep({_TASK_S})
"""
_PROGRAMS = {
    "in a with block": """
with hotlease.Executor(1) as executor:
    list(executor.map(sleep, FILES))
""",
    "at the end of a with block": """
with hotlease.Executor(1) as executor:
    executor.map(sleep, FILES)
""",
    "without a with block": """
executor = hotlease.Executor(1)
list(executor.map(sleep, FILES))
""",
    "at the end of the program": """
executor = hotlease.Executor(1)
futures = [executor.submit(sleep, file) for file in FILES]
""",
}


@pytest.mark.parametrize("where", _PROGRAMS)
def test_ctrl_c_ends_the_executor_at_once(platform, tmp_path, eventually, where):
    first, second = tmp_path / "first", tmp_path / "second"
    files = [str(first), str(second)]
    command = [sys.executable, "-c", _BEGIN + _PROGRAMS[where].replace("FILES", repr(files))]
    program = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        eventually(first.exists, "the task runs")
        if where == "at the end of the program":
            # Until the program waits at the end of the interpreter.
            time.sleep(0.5)
        os.killpg(program.pid, signal.SIGINT)
        _, said = program.communicate(timeout=_LIMIT_S)
    finally:
        program.kill()
    assert where == "at the end of the program" or "KeyboardInterrupt" in said
    assert not second.exists(), "the waiting task was cancelled"


def test_a_traceback_names_file_and_line_of_code_that_goes_by_value(output):
    lines = output(
        """
        import hotlease

        def fails():
            raise ValueError("as it should")  # this line

        with hotlease.Executor(1) as executor:
            error = executor.submit(fails).exception()
        text = str(error.__cause__)
        assert f'File "{__file__}", line 5, in fails' in text, text
        assert 'raise ValueError("as it should")  # this line' in text, text
        print("named")
        """
    )
    assert lines == ["named"]


def test_a_number_in_quotes_is_no_address():
    import hotlease

    with pytest.raises(TypeError, match=r"write Executor\(8\)"):
        hotlease.Executor("8")
