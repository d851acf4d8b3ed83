"""First results: spare interpreters wait for the next program of the same kind."""

import json
import os
import subprocess
import sys

import pytest

import hotlease
from hotlease import _programs

PROGRAM = """
import os, random
import hotlease

PRELOADED = "'cloudpickle' in __import__('sys').modules"
with hotlease.Executor(1) as executor:
    for task in (executor.submit(os.getpid), executor.submit(random.random), executor.submit(eval, PRELOADED)):
        print(task.result())
"""


def _run(folder, **variables):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    pid, number, preloaded = done.stdout.split()
    return int(pid), float(number), preloaded == "True"


def _spares():
    listed = subprocess.run([_programs.find("hotlease"), "ps", "--json"], capture_output=True, text=True, timeout=60, check=True)
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    return {row["pid"] for row in rows if row["state"] == "spare"}


@pytest.fixture
def ran(platform, tmp_path, eventually):
    """Returns the output of a program's worker, and the program's folder. From then on the agent has spares for the program."""
    said = _run(tmp_path)
    eventually(_spares, "a spare interpreter")
    return said, tmp_path


def test_a_program_that_runs_again_gets_an_interpreter_that_waits(ran, eventually):
    (pid, number, preloaded), folder = ran
    assert not preloaded, "a worker that a lease waits for imports what it needs, and no more"
    seen = set()
    again = None

    def is_spare():
        nonlocal again
        seen.update(_spares())
        again = _run(folder)
        return again[0] in seen

    # The spares that wait now may be for programs of other tests, and `ps` does not say for which program a spare is.
    eventually(is_spare, "a worker that was one of the spares", seconds=60)
    assert again[0] != pid and again[1] != number, "it has run something before"
    pytest.importorskip("cloudpickle")
    assert again[2], "a spare has imported what functions of __main__ need"


def test_spares_serve_no_other_program(ran, tmp_path_factory):
    _, folder = ran
    spares = _spares()
    assert _run(folder, TZ="UTC")[0] not in spares, "with another environment"
    spares = _spares()
    assert _run(tmp_path_factory.mktemp("elsewhere"))[0] not in spares, "in another folder"


def test_a_lease_is_given_back_where_what_is_imported_beside_it_fails(platform, run):
    program = """
import subprocess, sys, time
import hotlease
from hotlease import _programs

def held():
    command = [_programs.find("hotlease"), "leases", "--json"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in listed if '"label":"unimported"' in line and '"state":"active"' in line]

sys.modules["hotlease._called"] = None
try:
    hotlease.Executor(1, options=hotlease.ExecutorOptions(label="unimported"))
except ImportError as error:
    assert "_called" in str(error), error
else:
    sys.exit("it was imported")
end = time.monotonic() + 30
while held():
    assert time.monotonic() < end, held()
    time.sleep(0.01)
del sys.modules["hotlease._called"]
with hotlease.Executor(1, options=hotlease.ExecutorOptions(label="unimported")) as executor:
    assert executor.submit(abs, -1).result() == 1 and held(), "looks for something else"
"""
    done = run(program)
    assert done.returncode == 0, done.stderr


def test_there_are_no_more_spares_than_cores(ran):
    assert len(_spares()) <= len(os.sched_getaffinity(0))


def test_an_executor_says_where_its_start_went_and_why_it_was_not_warm(platform, tmp_path):
    # No other program has this variable, so no spare can exist for this program.
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(variables={"HOTLEASE_TEST_START": str(tmp_path)})) as executor:
        start = executor.cold_start()
        assert executor.submit(int).result(60) == 0
    assert (start.warm, start.cold) == (0, 1) and start.why.startswith("the first lease"), start
    assert start.image is None and start.boot is None, start
    steps = (start.grant, start.sandbox, start.interpreter, start.imports, start.connect)
    assert all(step is not None and step > 0 for step in steps), start
    assert sum(steps) <= start.total, start
