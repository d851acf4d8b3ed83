"""Workers in sandboxes of kind namespace. On nodes that cannot make them, these tests are skipped with the reason."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile

import pytest

import hotlease
from hotlease import _shared_key

from conftest import end


@pytest.fixture
def sandboxed(platform):
    """An executor with one worker in a namespace."""
    if os.environ.get("HOTLEASE_TRANSPORT"):
        pytest.skip("a worker without a network is reached through shared memory only")
    executor = None
    try:
        executor = hotlease.Executor(1, options=hotlease.ExecutorOptions(sandbox="namespace"))
        executor.submit(int).result(60)
    except hotlease.Error as error:
        if "no sandbox of kind" not in str(error):
            raise
        pytest.skip(str(error))
    yield executor
    end(executor)


def _seen(file, runtime):
    files = [name for _, _, names in os.walk(runtime) for name in names]
    return os.getuid(), files, os.path.exists("/sys"), os.path.exists(file)


def test_tasks_run_and_see_a_root_of_their_own(sandboxed):
    # Of the home directory, only the path to this Python is visible.
    with tempfile.NamedTemporaryFile(dir=os.path.expanduser("~")) as own:
        runtime = os.environ["HOTLEASE_RUNTIME_DIR"]
        user, sockets, system, file = sandboxed.submit(_seen, own.name, runtime).result(60)
    assert user == 1000
    assert not system and not file
    assert os.listdir(runtime) and not sockets
    assert list(sandboxed.map(pow, range(5), [2] * 5)) == [0, 1, 4, 9, 16]


def test_a_task_that_dies_is_told_and_the_next_one_runs(sandboxed):
    with pytest.raises(hotlease.Error, match="signal 11"):
        sandboxed.submit(lambda: os.kill(os.getpid(), signal.SIGSEGV)).result(60)
    assert sandboxed.submit(pow, 2, 10).result(60) == 1024


def test_an_unknown_kind_is_refused(platform):
    with pytest.raises(hotlease.Error, match="sandbox"):
        hotlease.Executor(1, options=hotlease.ExecutorOptions(sandbox="jail")).submit(int).result(60)


def test_a_sandboxed_worker_gets_no_key_of_the_program(sandboxed):
    with multiprocessing.Manager() as manager:
        with pytest.raises(PermissionError, match="outside of a sandbox; this worker did not"):
            sandboxed.submit(len, manager.list()).result(60)


def test_only_a_process_that_sees_the_program_s_files_gets_its_key(tmp_path):
    script = "import sys\nfrom hotlease import _shared_key\nprint(_shared_key._asked(sys.argv[1]) == bytes.fromhex(sys.argv[2]))"
    asking = [sys.executable, "-c", script, _shared_key._served(), multiprocessing.current_process().authkey.hex()]
    assert subprocess.run(asking, capture_output=True, text=True, timeout=60).stdout == "True\n"
    apart = ["unshare", "--mount", "--map-root-user"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
        pytest.skip("no other namespaces here")
    done = subprocess.run([*apart, *asking], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "PermissionError" in done.stderr and "does not know it as one" in done.stderr
