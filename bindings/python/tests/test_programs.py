"""Small programs, each of which is run by itself, as a user would run it. The comment at a program's end is its output."""

import os
import pathlib
import subprocess
import sys

import pytest

PROGRAMS = sorted(pathlib.Path(__file__).with_name("programs").glob("*.py"))
LIBRARIES = ("dask", "joblib", "numpy", "parsl")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_prints_what_it_says(platform, program, tmp_path):
    text = program.read_text()
    for library in LIBRARIES:
        if f"import {library}" in text:
            pytest.importorskip(library)
    expected = [line.removeprefix("# ") for line in text.partition("\n# Prints:\n")[2].splitlines()]
    assert expected, "a program says what it prints"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path, env=os.environ, timeout=120)
    assert (done.stdout.splitlines(), done.returncode) == (expected, 0), done.stdout + done.stderr
