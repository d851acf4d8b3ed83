"""The package as users get it: a wheel made by `pip` and installed in an empty environment, and the quickstart there."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile

import pytest

import hotlease
from hotlease import _programs

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAMS = ("hotlease", "hotlease-lab", "hotlease-worker", "hotlease-nursery", "hotlease-machine")


def _run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, **options)
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def _has_c_library():
    return any(pathlib.Path(os.environ["HOTLEASE_PROGRAMS"]).glob("libhotlease.so.*"))


@pytest.fixture(scope="module")
def wheel():
    """Returns the wheel, made as by `pip install .`, but with the installed hatchling and the binaries that cargo has built."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hotlease-wheel-"))
    environment = {**os.environ, "HOTLEASE_BUILT": os.environ["HOTLEASE_PROGRAMS"]}
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    _run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, ROOT, env=environment)
    (wheel,) = folder.glob("*.whl")
    yield wheel
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def installed(wheel):
    """Runs a command of an environment that has only the package; the command gets only the given variables."""
    # Not pytest's folders: a socket's path has 108 bytes at most.
    home = pathlib.Path(tempfile.mkdtemp(prefix="hotlease-installed-"))
    environment = home / "venv"
    _run(sys.executable, "-m", "venv", "--without-pip", environment)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", environment / "bin/python"]
    _run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)

    def run(command, *arguments, **variables):
        variables = {"HOME": str(home), "PATH": "/nowhere", "HOTLEASE_RUNTIME_DIR": str(home / "run"), **variables}
        return _run(environment / "bin" / command, *arguments, env=variables, cwd=home).strip()

    (home / "run").mkdir(mode=0o700)
    run.home = home
    yield run
    if (home / "run/manager.sock").exists():  # a test alone may start no platform
        run("hotlease", "down")
    shutil.rmtree(home)


def test_a_wheel_has_types_a_command_and_programs_that_can_be_run(wheel):
    with zipfile.ZipFile(wheel) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        for name in ("hotlease/py.typed", "hotlease/_core.pyi"):
            assert name in entries
        for name in PROGRAMS:
            mode = entries[f"hotlease/bin/{name}"].external_attr >> 16
            assert mode & 0o111 == 0o111, f"{name} would be installed with mode {mode:o}"
        assert len([name for name in entries if name.startswith("hotlease/bin/")]) == len(PROGRAMS)
        for name in ("include/hotlease/function.h", "include/hotlease/fortran/hotlease.f90"):
            assert f"hotlease/{name}" in entries
        assert ("hotlease/lib/libhotlease.so.0" in entries) == _has_c_library()
        (commands,) = (name for name in entries if name.endswith("entry_points.txt"))
        assert b"hotlease=hotlease._programs:main" in archive.read(commands).replace(b" ", b"")
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert f"-{tag}-{tag}-" in wheel.name, "a wheel is for one version of Python: buffers are in no older stable ABI"


def test_nothing_in_a_wheel_is_linked_with_libpython(wheel, tmp_path):
    readelf = shutil.which("readelf") or pytest.skip("needs readelf")
    with zipfile.ZipFile(wheel) as archive:
        binaries = [name for name in archive.namelist() if name.endswith(".so") or "/bin/" in name]
        # The module, and the programs.
        assert len(binaries) == 1 + len(PROGRAMS)
        for name in binaries:
            needed = _run(readelf, "--dynamic", archive.extract(name, tmp_path))
            assert "NEEDED" in needed and "libpython" not in needed, name


def test_a_wheel_compiles_programs_in_c(installed, tmp_path):
    compiler = shutil.which("cc") or pytest.skip("needs a C compiler")
    if not _has_c_library():
        pytest.skip("needs the C library, which `make build` links")
    flags = installed("hotlease", "--cflags", "--libs").split()
    assert installed("hotlease", "--cflags") == flags[0] and flags[0].startswith(f"-I{installed.home}/venv/lib")
    program = tmp_path / "hello"
    _run(compiler, ROOT / "examples/00_hello/hello.c", "-o", program, *flags)
    done = subprocess.run([program, "/no/library.so"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "cannot read /no/library.so" in done.stderr


def test_flags_for_functions_need_no_c_library(tmp_path, monkeypatch):
    monkeypatch.setattr(_programs, "_HERE", str(tmp_path))
    with pytest.raises(SystemExit, match="editable installation"):
        _programs.flags(["--cflags"])
    (tmp_path / "include").mkdir()
    assert _programs.flags(["--cflags"]) == f"-I{tmp_path}/include"
    with pytest.raises(SystemExit, match="no C library"):
        _programs.flags(["--cflags", "--libs"])


def test_an_installed_command_runs_its_own_program_with_any_path(installed, tmp_path):
    other = tmp_path / "hotlease"
    other.write_text("#!/bin/sh\necho another version\n")
    other.chmod(0o755)
    version = f"hotlease {hotlease.__version__}"
    assert installed("hotlease", "--version") == version
    assert installed("hotlease", "--version", PATH=str(tmp_path)) == version
    found = "from hotlease._programs import find; print(find('hotlease'), find('hotlease-worker'), sep='\\n')"
    for path in installed("python", "-c", found, PATH=str(tmp_path)).splitlines():
        assert path.startswith(f"{installed.home}/venv/lib")
    # A folder that HOTLEASE_PROGRAMS names is searched first: developers who build the programs use it.
    assert installed("python", "-c", found, HOTLEASE_PROGRAMS=str(tmp_path)).splitlines()[0] == str(other)


def test_an_executor_runs_where_nothing_but_the_package_is(installed):
    program = (
        "import os, hotlease\n"
        "with hotlease.Executor(1) as executor:\n"
        "    print(*executor.map(pow, [2, 3], [10, 2]), executor.submit(os.getpid).result() != os.getpid())\n"
    )
    assert installed("python", "-c", program) == "1024 9 True"


def test_a_source_distribution_is_the_whole_workspace(tmp_path):
    build = "import sys; from hatchling.build import build_sdist; build_sdist(sys.argv[1])"
    _run(sys.executable, "-c", build, tmp_path, cwd=ROOT)
    (archive,) = tmp_path.glob("hotlease-*.tar.gz")
    with tarfile.open(archive) as sources:
        names = sources.getnames()
        assert not [name for name in names if "/target/" in name or "/bin/hotlease" in name or name.endswith(".so")]
        sources.extractall(tmp_path)
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    # Resolves every member of the workspace from the unpacked files, with the tested versions. The filter omits packages
    # that only other systems need, because they were never fetched.
    told = _run("rustc", "--version", "--verbose").splitlines()
    (host,) = [line.split()[1] for line in told if line.startswith("host:")]
    _run("cargo", "metadata", "--locked", "--offline", "--format-version=1", f"--filter-platform={host}", cwd=unpacked)
    for name in ("pyproject.toml", "Cargo.lock", ".cargo/config.toml", "bindings/python/packaging/compiled.py"):
        assert (unpacked / name).is_file(), name


def _modules_of(statement, folder):
    """Returns the modules that a statement imports, after checking that it has no other effect."""
    script = (
        "import os, sys, threading\n"
        "def seen(): return set(os.listdir('/proc/self/fd')), os.listdir('/proc/self/task'), os.listdir('.')\n"
        "before, known = seen(), set(sys.modules)\n"
        f"{statement}\n"
        "assert seen() == before, (seen(), before)\n"
        "print(*sorted(set(sys.modules) - known))"
    )
    # `-S` prevents imports by an environment's own files at the start.
    environment = {"PYTHONPATH": str(pathlib.Path(hotlease.__file__).parents[1]), "PYTHONDONTWRITEBYTECODE": "1"}
    return set(_run(sys.executable, "-S", "-c", script, cwd=folder, env=environment).split())


def test_importing_is_cheap_and_does_nothing_that_can_be_seen(tmp_path):
    # Counted, not timed.
    assert _modules_of("import hotlease", tmp_path) == {"hotlease", "hotlease._core"}
    whole = _modules_of("from hotlease import *", tmp_path)
    # Each of these modules takes longer to import than this whole package.
    heavy = {"asyncio", "cloudpickle", "email", "multiprocessing", "numpy", "pathlib", "shutil", "socket", "subprocess"}
    heavy |= {"concurrent.futures", "hashlib", "logging", "pickle"}
    assert "hotlease._executor" in whole and not heavy & whole


def test_an_executor_and_its_first_task_import_no_more_than_they_need(tmp_path):
    # Counted, not timed. `typing`, `hashlib` or `concurrent.futures` would take as long as everything else.
    needed = _modules_of("import collections, importlib.machinery, threading, warnings, weakref", tmp_path)
    ours = {"", "._bases", "._core", "._executor", "._hook", "._modules", "._open", "._platform", "._versions", ".errors"}
    executor = _modules_of("from hotlease import Executor", tmp_path)
    assert executor - needed - {"__future__"} == {f"hotlease{name}" for name in ours}
    # Imported while the lease is taken.
    needed |= _modules_of("import pickle", tmp_path)
    more = {"._called", "._mapped", "._outcomes", "._pickles", "._remote"}
    first = _modules_of("from hotlease import Executor, _called", tmp_path)
    assert first - needed - {"__future__"} == {f"hotlease{name}" for name in ours | more}


def test_names_are_found_when_asked_for_and_others_are_not():
    assert set(hotlease.__all__) <= set(dir(hotlease))
    for name in hotlease.__all__:
        assert getattr(hotlease, name) is not None, name
    with pytest.raises(AttributeError, match="has no attribute 'Exekutor'"):
        hotlease.Exekutor


def test_the_quickstart_does_what_it_says(installed):
    page = (ROOT / "docs/python.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```(?:\n+<!-- prints\n(.*?)-->)?", page, re.M | re.S)
    programs = [(code, prints) for language, code, prints in blocks if language == "python"]
    # Writes the C source of the page, and compiles it as the page says.
    for (_, source, _), (_, command, _) in zip(blocks, blocks[1:]):
        if command.startswith("cc "):
            command = command.replace("$(hotlease --cflags)", installed("hotlease", "--cflags")).split()
            (installed.home / command[-1]).write_text(source)
            _run(*command, cwd=installed.home)
    assert len(programs) >= 4 and any("pip install ." in code for language, code, _ in blocks if language == "sh")
    # Packages that the page installs beside hotlease are in this environment.
    beside = sysconfig.get_path("purelib")
    for number, (code, prints) in enumerate(programs):
        file = installed.home / f"block_{number}.py"
        file.write_text(code)
        printed = installed("python", file, PYTHONPATH=beside)
        assert prints and printed == prints.strip(), f"block {number} of docs/python.md printed {printed!r}"


def test_the_readme_s_program_is_the_example_and_does_what_it_says(installed):
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    file = ROOT / "examples/07_molecules/molecules.py"
    assert code == file.read_text(), f"README.md shows another program than {file.relative_to(ROOT)}"
    (installed.home / "examples").symlink_to(ROOT / "examples")
    printed = installed("python", file, PYTHONPATH=sysconfig.get_path("purelib")).splitlines()
    assert len(printed) == 5 and printed[4].endswith("fifth 5 of 5 by repetition: efficiency 3.21 %"), printed
