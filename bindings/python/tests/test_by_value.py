"""Functions that workers cannot import: their data, and files around the program."""

import os
import subprocess
import sys
import textwrap


def run(folder, script):
    """Runs a program in a working directory that is not the program's folder; returns its output."""
    (folder / "program").mkdir()
    program = folder / "program" / "main.py"
    program.write_text(textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120, cwd=folder, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def test_a_function_sees_its_globals_and_closure_as_they_are_when_it_is_submitted(tmp_path):
    script = """
        import hotlease

        factor = 3

        def scaled(n):
            return n * factor

        def helper():
            return "old"

        def nested():
            return [helper() for _ in range(1)]

        def enclosing(executor):
            captured = 1
            inner = lambda: captured
            first = executor.submit(inner).result()
            captured = 2
            return first, executor.submit(inner).result()

        with hotlease.Executor(1) as executor:
            print(executor.submit(scaled, 1).result(), executor.submit(nested).result())
            factor = 5

            def helper():
                return "new"

            print(executor.submit(scaled, 1).result(), executor.submit(nested).result())
            print(enclosing(executor))
    """
    assert run(tmp_path, script) == ["3 ['old']", "5 ['new']", "(1, 2)"]


def test_files_where_the_client_stands_replace_no_module_of_its_workers(tmp_path):
    for name in ("pickle.py", "struct.py", "hotlease.py"):
        (tmp_path / name).write_text("raise RuntimeError('the wrong one')\n")
    script = """
        import hotlease

        with hotlease.Executor(1) as executor:
            print(executor.submit(abs, -1).result())
    """
    assert run(tmp_path, script) == ["1"]
