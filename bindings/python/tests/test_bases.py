"""`concurrent.futures` is not imported before the program imports it. hotlease's classes are derived from its classes
nevertheless."""

import importlib.util
import sys

import pytest

from hotlease._hook import Hook

DERIVED = """
import concurrent.futures as theirs
assert issubclass(hotlease.Executor, theirs.Executor) and issubclass(hotlease.Future, theirs.Future)
assert issubclass(hotlease.WorkerDied, theirs.BrokenExecutor) and issubclass(hotlease.WorkerDied, hotlease.TaskError)
assert issubclass(hotlease.ExecutorBroken, theirs.BrokenExecutor)
kinds = {*hotlease.Executor.__mro__, *hotlease.Future.__mro__, *hotlease.WorkerDied.__mro__}
assert "hotlease._bases" not in {kind.__module__ for kind in kinds}
assert "Future[int]" in repr(hotlease.Future[int])
assert not [finder for finder in sys.meta_path if type(finder).__module__ == "hotlease._hook"]
print("derived")
"""


def passes(done):
    assert (done.returncode, done.stdout) == (0, "derived\n"), done.stderr


@pytest.mark.parametrize(
    "function, unwanted",
    [
        ("abs", {"concurrent.futures", "hashlib", "logging", "typing"}),
        # A function of the program is sent by value: cloudpickle does that, and imports the other modules.
        ("own", {"concurrent.futures", "hashlib"}),
    ],
)
def test_a_program_whose_tasks_succeed_never_imports_concurrent_futures(platform, run, function, unwanted):
    program = (
        "import sys; began = set(sys.modules)\n"
        "import hotlease\n"
        f"{'def own(x): return abs(x)' if function == 'own' else ''}\n"
        "with hotlease.Executor(1) as executor:\n"
        f"    assert list(executor.map({function}, [-1, 2])) == [1, 2] and executor.submit({function}, -3).result(60) == 3\n"
        f"print(*sorted({unwanted!r} & set(sys.modules) - began))\n"
    )
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def test_an_executor_looks_at_no_attribute_of_what_stands_in_the_program(platform, run):
    program = (
        "import hotlease\n"
        "class Touchy:\n"
        "    def __getattribute__(self, name): raise RuntimeError(name)\n"
        "touchy = Touchy()\n"
        "def own(x): return abs(x)\n"
        "with hotlease.Executor(1) as executor: print(executor.submit(abs, -3).result(60))\n"
    )
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


@pytest.mark.parametrize("first", ["import concurrent.futures", "import hotlease._bases", "from hotlease import Executor, WorkerDied"])
def test_our_classes_are_derived_from_its_own_whenever_it_is_imported(run, first):
    passes(run(f"import sys, hotlease\n{first}\nfrom concurrent.futures import wait\n{DERIVED}"))


def test_base_classes_exist_although_another_thread_was_importing_their_module(run):
    # As if the other thread had found the module before the hook was installed.
    missed = "from hotlease import _bases\nsys.meta_path.pop(0)\nimport concurrent.futures\n"
    passes(run(f"import sys, hotlease\n{missed}{DERIVED}"))
    made = "from hotlease import Executor\nsys.meta_path.pop(0)\nimport concurrent.futures\nhotlease._bases.settle()\n"
    passes(run(f"import sys, hotlease\n{made}{DERIVED}"))


def test_executors_and_futures_that_are_there_already_are_its_own_then(platform, run):
    passes(
        run(
            "import sys, hotlease\n"
            "class Mine(hotlease.Executor): pass\n"
            "executor = Mine(1)\n"
            "futures = [executor.submit(abs, -n) for n in range(3)]\n"
            "import concurrent.futures as theirs\n"
            "assert isinstance(executor, theirs.Executor) and all(isinstance(future, theirs.Future) for future in futures)\n"
            "assert theirs.wait(futures, 60).done == set(futures)\n"
            "with executor: assert sorted(future.result() for future in theirs.as_completed(futures)) == [0, 1, 2]\n"
            "try: executor.submit(abs, 1)\n"
            "except RuntimeError as error: print('derived' if 'after shutdown' in str(error) else error)\n"
            + DERIVED.replace("print", "str")
        )
    )


def test_base_classes_work_before_a_program_imports_their_module(platform, run):
    passes(
        run(
            "import os, sys, hotlease, tasks\n"
            "first, second = (os.path.abspath(name) for name in ('first', 'second'))\n"
            "with hotlease.Executor(1) as executor:\n"
            "    executor.submit(tasks.wait_for, first)\n"
            "    later = [executor.submit(abs, 0) for _ in range(2000)]\n"
            "    needs = executor.submit(abs, later[-1])\n"
            "    assert later[-1].cancel()\n"
            "    tasks.mark(first)\n"
            "    try: needs.result(60)\n"
            "    except hotlease.DependencyError as error: assert 'was cancelled' in str(error)\n"
            "    try: later[-1].result()\n"
            "    except BaseException as error: raised = type(error)\n"
            "    waiting = executor.submit(tasks.wait_for, second)\n"
            "    try: waiting.result(0.01)\n"
            "    except BaseException as error: late = type(error)\n"
            "    tasks.mark(second)\n"
            "    async def go(): return await executor.submit(abs, -3)\n"
            "    import asyncio; assert asyncio.run(go()) == 3\n"
            "import concurrent.futures as theirs\n"
            "assert raised is theirs.CancelledError and late is theirs.TimeoutError\n" + DERIVED
        )
    )


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Returns the name of a module, and a function that writes the module."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"hooked_{tmp_path.name}".replace("-", "_")
    yield name, lambda text: (tmp_path / f"{name}.py").write_text(text)
    sys.modules.pop(name, None)
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder) is not Hook]


def test_a_hook_is_called_once_with_the_whole_module_before_its_importer_goes_on(module):
    name, write = module
    write("number = 7\n")
    seen = []
    Hook(name, lambda module: seen.append(module.number))
    found = importlib.util.find_spec(name)
    assert seen == [] and found.loader.get_source(name) == "number = 7\n", "to find it is not to import it"
    there = __import__(name)
    assert seen == [7]
    assert type(there.__spec__.loader).__module__ != "hotlease._hook" and there.__loader__ is there.__spec__.loader
    del sys.modules[name]
    __import__(name)
    assert seen == [7] and Hook not in map(type, sys.meta_path)


def test_a_hook_waits_for_an_import_that_does_not_fail(module):
    name, write = module
    write("import sys; tried = getattr(sys, '_tried', 0); sys._tried = tried + 1; 1 / tried\n")
    seen = []
    Hook(name, lambda module: seen.append(module.tried))
    with pytest.raises(ZeroDivisionError):
        __import__(name)
    assert seen == []
    __import__(name)
    assert seen == [1]
    del sys._tried


def test_a_hook_leaves_a_module_that_is_not_there_to_be_missed(module):
    name, _ = module
    Hook(name, print)
    with pytest.raises(ModuleNotFoundError, match=name):
        __import__(name)
