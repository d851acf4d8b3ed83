"""Imports that an executor names, and workers that are forked from an interpreter with these imports."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time

import hotlease
import pytest
from hotlease import Executor, ExecutorOptions, _programs

_FORKED = "forked from a zygote"
# Expression for the private bytes of a process after it has used numpy. It is not a function, because a function's module
# would have to be imported.
_PRIVATE = """__import__("numpy").arange(10.0).sum() and 1024 * sum(
    int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Private")
)"""


def _facts():
    import random
    import sys

    import numpy

    return {
        "random": (random.random(), float(numpy.random.random()), os.urandom(8), hash(object())),
        "own": _files(),
        "modules": "numpy" in sys.modules,
        "sum": float(numpy.arange(10.0).sum()),
    }


def _files():
    # Lists only files: the interpreter may need folders there.
    folders = "/tmp", "/dev/shm"
    return tuple([name for name in os.listdir(folder) if os.path.isfile(f"{folder}/{name}")] for folder in folders)


def _executor(imports, **options):
    # On a busy host, the core of the previous executor may become free late.
    return Executor(1, options=ExecutorOptions(sandbox="namespace", imports=imports, **{"patience": 60, **options}))


def _skip_without_sandboxes():
    try:
        Executor(1, options=ExecutorOptions(sandbox="namespace")).shutdown()
    except hotlease.errors.Error as error:
        if "sandbox" in str(error):
            pytest.skip(str(error))
        raise


def _again(imports, until, seconds=30, **options):
    """Takes leases, one after another, until a lease starts as required; returns its start, and the facts that a function
    found in its worker."""
    before = time.monotonic()
    while True:
        with _executor(imports, **options) as executor:
            start = executor.cold_start()
            if until(start):
                private = executor.submit(eval, _PRIVATE).result()
                return start, {**executor.submit(_facts).result(), "private": private}
        assert time.monotonic() - before < seconds, start
        time.sleep(0.2)


def _is_forked(start):
    return _FORKED in start.why


@pytest.fixture(autouse=True)
def _sandboxes(platform):
    _skip_without_sandboxes()


def test_imports_are_there_before_the_first_task_and_one_that_cannot_be_is_named():
    pytest.importorskip("numpy")
    with _executor(["numpy"]) as executor:
        assert executor.submit(lambda: "numpy" in __import__("sys").modules).result()
    before = time.monotonic()
    with pytest.raises(hotlease.Refused, match="import no_such_module: ModuleNotFoundError") as refused:
        _executor(["no_such_module"], patience=120)
    # No other node could import it either, so the executor does not wait.
    assert time.monotonic() - before < 20 and not refused.value.may_pass
    for bad, error in (("numpy", TypeError), (["nu mpy"], ValueError), ([""], ValueError), ([7], ValueError)):
        with pytest.raises(error, match="imports"):
            _executor(bad)


def test_workers_of_a_later_lease_are_forked_and_as_good_as_started_ones():
    pytest.importorskip("numpy")
    found = [_again(["numpy"], _is_forked)[1] for _ in range(3)]
    for facts in found:
        assert facts["sum"] == 45.0 and facts["modules"]
        assert facts["own"] == ([], []), "another one's files"
        assert facts["private"] < 5_000_000, f"{facts['private']} bytes of its own"
    for which in range(3):
        assert len({facts["random"][which] for facts in found}) == len(found), "forks draw the same random numbers"


def test_a_worker_that_is_forked_while_another_runs_shares_nothing_with_it():
    pytest.importorskip("numpy")
    _again(["numpy"], _is_forked)
    with _executor(["numpy"]) as one, _executor(["numpy"]) as other:
        assert _is_forked(one.cold_start()) and _is_forked(other.cold_start())
        one.submit(_leave, "mine").result()
        assert other.submit(_look).result() == ([], [], None)
        assert one.submit(_look).result() == (["mine"], ["mine"], "mine")


def _leave(name):
    for folder in ("/tmp", "/dev/shm"):
        with open(f"{folder}/{name}", "w"):
            pass
    importlib.import_module("numpy").left = name


def _look():
    return *_files(), getattr(importlib.import_module("numpy"), "left", None)


@pytest.mark.parametrize(
    ("leaves", "text"),
    [
        ("1 thread", "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"),
        ("a child process", "import subprocess\nsubprocess.Popen(['sleep', '600'])"),
        ("1 open file (", "held = open(__file__)"),
        ("of shared memory (", "import mmap\nheld = mmap.mmap(-1, 4096)"),
        ("1 file in /dev/shm (left)", "open('/dev/shm/left', 'w').close()"),
    ],
)
def test_imports_that_a_fork_would_share_or_lack_are_refused_and_said(monkeypatch, leaves, text):
    # A sandbox runs as another user, who can read only files that all users can read.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with open(f"{folder}/leaving.py", "w") as module:
            module.write(text)
        monkeypatch.syspath_prepend(folder)
        start, facts = _again(["leaving"], lambda start: "no zygote: " in start.why)
    assert "no worker can be forked once its imports have left" in start.why
    assert leaves in start.why
    assert facts["sum"] == 45.0, "and workers start as ever"


def test_an_import_that_hangs_in_a_zygote_keeps_no_lease_waiting_and_is_said(monkeypatch):
    text = "if b'HOTLEASE_PYTHON_ZYGOTE' in open('/proc/self/environ', 'rb').read(): __import__('time').sleep(600)"
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with open(f"{folder}/hanging.py", "w") as module:
            module.write(text)
        monkeypatch.syspath_prepend(folder)
        for _ in range(2):
            with _executor(["hanging"]) as executor:
                assert executor.submit(eval, "6 * 7").result() == 42
                assert not _is_forked(executor.cold_start())
        # Zygotes take turns, and zygotes of earlier programs are first. The imports of this zygote are given up after 30 s.
        start, facts = _again(["hanging"], lambda start: "no zygote: " in start.why, seconds=300)
    assert "not ready after 30 s" in start.why
    assert facts["sum"] == 45.0, "and workers start as ever"


def test_an_import_that_hangs_in_a_zygote_keeps_no_other_program_s_workers_waiting(monkeypatch):
    pytest.importorskip("numpy")
    text = "if b'HOTLEASE_PYTHON_ZYGOTE' in open('/proc/self/environ', 'rb').read(): __import__('time').sleep(600)"
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with open(f"{folder}/hanging_beside.py", "w") as module:
            module.write(text)
        monkeypatch.syspath_prepend(folder)
        with _executor(["hanging_beside"]) as executor:
            assert executor.submit(eval, "6 * 7").result() == 42
        # The zygote hangs for 30 s from now on. Nevertheless the next program's zygote has its turn after 9 s.
        _again(["colorsys"], _is_forked, seconds=25)


def test_bench_of_cold_starts_has_rows_of_workers_forked_before_and_during_the_lease():
    pytest.importorskip("numpy")
    command = [_programs.find("hotlease"), "--json", "bench", "cold", "--programs", "packages", "--kinds", "namespace"]
    command += ["--rounds", "2", "--dropped", "0", "--python", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    skipped = [row for row in rows if "skipped" in row and row["params"].get("in") == "namespace"]
    if [row["skipped"] for row in skipped] == ["forked from a zygote that has done its imports"]:
        pytest.skip("this host is so busy that a worker always waited: none was forked for its lease")
    assert not skipped, skipped
    rows = {row["params"]["start"]: row for row in rows if row["params"].get("in") == "namespace" and "measured" in row}
    for start in "zygote", "fork":
        details = rows[start]["details"]
        # On a busy host, a round may start its worker in another way than its row says. The row then omits this round.
        assert rows[start]["samples"] in (1, 2) and details["why"] == "", rows[start]
        assert 0 < sum(details["phases_us"].values()) <= details["total_us"]
        assert details["private_bytes"] > 0
    waited, forked = (rows[start]["details"]["phases_us"] for start in ("zygote", "fork"))
    assert "sandbox" in forked and "sandbox" not in waited, "only one of them was started for its lease"
