"""Modules: workers import the modules that the program would import, and get by value what they cannot import."""

import os
import subprocess
import sys
import textwrap

import pytest


def run(arguments, folder, **environment):
    command = [sys.executable, "-W", "error", *map(str, arguments)]
    env = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


VERSION = """
import sys
sys.path[:0] = sys.argv[1:]
import mine, hotlease

def version():
    import mine
    return mine.version

with hotlease.Executor(1) as executor:
    print(mine.version, executor.submit(version).result(), executor.submit(getattr, mine, "version").result())
"""


@pytest.mark.parametrize("way", ["beside the program", "PYTHONPATH", "sys.path.insert"])
def test_workers_import_the_module_that_the_program_imports(platform, tmp_path, way):
    # An interpreter without the program's path finds the other version first: its folder is in PYTHONPATH, like hotlease's.
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        (folder / "mine.py").write_text(f"version = '{folder.name}'\n")
    behind = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(other)])
    program = (own if way == "beside the program" else tmp_path) / "main.py"
    program.write_text(VERSION)
    if way == "PYTHONPATH":
        behind = os.pathsep.join([str(own), behind])
    arguments = [program, own] if way == "sys.path.insert" else [program]
    assert run(arguments, tmp_path, PYTHONPATH=behind) == ["own own own"]


def test_modules_that_workers_cannot_import_are_sent_by_value(platform, tmp_path):
    script = """
        import importlib.util, pathlib, sys, types
        import cloudpickle, hotlease

        folder = pathlib.Path(sys.argv[1])
        for name in ("plugin", "edited"):
            (folder / f"{name}.py").write_text(
                "K = 4\\nclass C:\\n    def f(self): return K\\ndef g(n): return n * K\\ndef f(n): return g(n)\\n"
            )
        spec = importlib.util.spec_from_file_location("plugin", folder / "plugin.py")
        plugin = sys.modules["plugin"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(plugin)
        made = sys.modules["made"] = types.ModuleType("made")
        exec("def f(n): return n + 7", vars(made))

        def uses():
            return plugin.f(1), plugin.C().f(), made.f(1)

        with hotlease.Executor(1) as executor:
            sys.path.append(str(folder / "later"))  # after the executor was made
            import later, package.part
            print(executor.submit(plugin.f, 2).result(), executor.submit(made.f, 2).result(), executor.submit(uses).result())
            print(executor.submit(later.f, 2).result(), executor.submit(sorted, [3, 1], key=later.f).result() == [1, 3])
            print(executor.submit(package.part.g).result(), executor.submit(type, later.C()).result() is later.C)
            print(type(executor.submit(plugin.C).result()) is plugin.C, executor.submit(plugin.C.f, plugin.C()).result())
            sys.path.insert(0, str(folder))
            import edited
            cloudpickle.register_pickle_by_value(edited)
            edited.K = 5
            print(executor.submit(edited.f, 2).result(), type(executor.submit(edited.C).result()) is edited.C)
            edited.K = 6
            print(executor.submit(edited.f, 2).result(), executor.submit(edited.C.f, edited.C()).result())
        with hotlease.Executor(1) as executor:
            print(executor.submit(edited.f, 2).result())
    """
    later = tmp_path / "later"
    (later / "package").mkdir(parents=True)
    (later / "later.py").write_text("class C: pass\ndef f(n):\n    import package.other\n    return n + package.other.value\n")
    (later / "package" / "__init__.py").write_text("")
    (later / "package" / "part.py").write_text("from . import other\ndef g():\n    return other.value\n")
    (later / "package" / "other.py").write_text("value = 40\n")
    program = tmp_path / "program"
    program.mkdir()
    (program / "main.py").write_text(textwrap.dedent(script))
    assert run([program / "main.py", tmp_path], tmp_path) == [
        "8 9 (4, 4, 8)",
        "42 True",
        "40 True",
        "True 4",
        "10 True",
        "12 6",
        "12",
    ]
