"""State that tasks leave in a worker. The functions of `hotlease.state` save it, and restore it in the next executor with
the state's name."""

import os
import pickle
import subprocess
import sys
import tempfile

import hotlease
import pytest
from hotlease import Executor, ExecutorOptions, _programs, _state

MODULE = """
import hotlease
counts = {}

def add(word):
    counts[word] = counts.get(word, 0) + 1
    return counts[word]

def _save():
    import pickle
    return pickle.dumps(counts)

def _restore(saved):
    import pickle
    if counts:
        raise ValueError("restored twice")
    counts.update(pickle.loads(saved))

hotlease.state(save=_save, restore=_restore)
"""


@pytest.fixture(scope="module")
def kept():
    """A platform that keeps states, and options for its executors."""
    # A sandbox runs as another user, who can read only files that all users can read.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for name in ("run", "swap"):
            os.mkdir(f"{folder}/{name}", 0o700)
        with open(f"{folder}/counting.py", "w") as module:
            module.write(MODULE)
        sys.path.append(folder)
        environment = {**os.environ, "HOTLEASE_RUNTIME_DIR": f"{folder}/run"}

        def command(*words):
            done = subprocess.run([_programs.find("hotlease"), *words], capture_output=True, text=True, env=environment, timeout=60)
            assert done.returncode == 0, done.stderr
            return done.stdout

        command("up", "--detach", "--swap-directory", f"{folder}/swap")
        try:
            yield {"runtime_dir": f"{folder}/run", "imports": ["counting"]}, command
        finally:
            command("down")
            sys.path.remove(folder)


@pytest.mark.parametrize("sandbox", ["process", "namespace"])
def test_a_state_goes_from_one_executor_to_the_next_one_of_its_name(kept, sandbox):
    import counting

    options, command = kept
    for time in range(1, 4):
        try:
            executor = Executor(options=ExecutorOptions(state=f"words-{sandbox}", sandbox=sandbox, **options))
        except hotlease.errors.Error as error:
            if "sandbox" in str(error) and sandbox != "process":
                pytest.skip(str(error))
            raise
        with executor:
            assert executor._slots() == 1
            assert executor.submit(counting.add, "a").result() == time
        said = command("explain")
        assert ("restored" in said) == (time > 1) and f"state `words-{sandbox}`" in said, said


def test_a_state_that_cannot_be_is_refused_before_anything_runs(kept):
    options, _ = kept
    with pytest.raises(ValueError, match="max_workers must be 1"):
        Executor(2, options=ExecutorOptions(state="words", **options))
    for bad in ("../words", "a b", "x" * 65):
        with pytest.raises(hotlease.errors.Error, match="state must be a name"):
            Executor(options=ExecutorOptions(state=bad, **options))
    with pytest.raises(hotlease.errors.Error, match=r"hotlease\.state\(save="):
        Executor(options=ExecutorOptions(state="words", runtime_dir=options["runtime_dir"], imports=["json"]))


def test_functions_of_a_state_are_functions_and_what_they_save_is_bytes(monkeypatch):
    monkeypatch.setattr(_state, "_functions", None)
    with pytest.raises(RuntimeError, match="imports="):
        _state.check()
    for wrong in ({"save": 1, "restore": print}, {"save": print, "restore": None}):
        with pytest.raises(TypeError, match="must be a function"):
            hotlease.state(**wrong)
    given = []
    hotlease.state(save=lambda: b"", restore=given.append)
    assert bytes(_state.save()) == b""
    numpy = pytest.importorskip("numpy")
    square = numpy.arange(6.0).reshape(2, 3)
    hotlease.state(save=lambda: square, restore=given.append)
    assert bytes(_state.save()) == square.tobytes()
    hotlease.state(save=lambda: numpy.asfortranarray(square), restore=given.append)
    with pytest.raises(RuntimeError, match="save function of its state.*not contiguous"):
        _state.save()
    hotlease.state(save=lambda: numpy.zeros((0, 3)), restore=pickle.loads)
    assert bytes(_state.save()) == b""
    with pytest.raises(RuntimeError, match="restore function of its state, _pickle.loads, raised"):
        _state.restore(bytearray(b"nonsense"))
