"""Compiled parts of the package: the extension module, and the programs that it contains.

A build hook of hatchling, which makes all other parts. cargo builds all of it at once, for the interpreter that runs
this. ``HOTLEASE_BUILT`` names a folder with the finished results of cargo, like ``target/release``; if the C library is among
them (``make build``), the wheel has it too. The headers, which are all that functions need, are in each wheel.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# All programs but one have the names of the packages that they are compiled from.
PROGRAMS = {
    "hotlease": "hotlease-cli",
    **{name: name for name in ("hotlease-lab", "hotlease-worker", "hotlease-nursery", "hotlease-machine")},
}
SOURCES = "bindings/python/python/hotlease"


class CompiledHook(BuildHookInterface):
    """Adds the results of cargo to a wheel."""

    def initialize(self, version, build_data):
        root = pathlib.Path(self.root)
        built = os.environ.get("HOTLEASE_BUILT")
        built = pathlib.Path(built) if built else build(root)
        # A wheel is for one version of Python: no stable ABI of Python 3.10 has buffers.
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        files = {f"bin/{name}": built / name for name in PROGRAMS}
        files["_core" + sysconfig.get_config_var("EXT_SUFFIX")] = built / "lib_core.so"
        if version != "editable":
            library = built / f"libhotlease.so.{self.metadata.version}"
            if library.exists():
                # The library is named by its SONAME; a wheel has no symbolic links.
                files[f"lib/libhotlease.so.{self.metadata.version.split('.')[0]}"] = library
            build_data["force_include"].update({
                str(root / "include/hotlease"): "hotlease/include/hotlease",
                str(root / "bindings/fortran"): "hotlease/include/hotlease/fortran",
            })
        if version == "editable":
            # The package is used from the checkout, where git ignores these files.
            place = root / SOURCES
        else:
            self._folder = tempfile.TemporaryDirectory(prefix="hotlease-wheel-")
            place = pathlib.Path(self._folder.name)
        for name, source in files.items():
            put(source, place / name)
            if version != "editable":
                build_data["force_include"][str(place / name)] = f"hotlease/{name}"

    def finalize(self, version, build_data, artifact_path):
        if folder := getattr(self, "_folder", None):
            folder.cleanup()


def build(root):
    """Has cargo build the extension module and the programs; returns their folder."""
    if not shutil.which("cargo"):
        sys.exit("hotlease is compiled from source: that needs Rust 1.88 or later and a C compiler (https://rustup.rs)")
    packages = [f"--package={package}" for package in [*PROGRAMS.values(), "hotlease-python"]]
    command = ["cargo", "build", "--release", "--locked", *packages]
    # Not the interpreter of the environment that pip makes for this build: its path is new each time, so cargo would
    # compile everything again.
    interpreter = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    print("Running", *command, "for", interpreter, file=sys.stderr, flush=True)
    # Standard output belongs to the build frontend.
    done = subprocess.run(command, cwd=root, stdout=sys.stderr, env={**os.environ, "PYO3_PYTHON": interpreter})
    if done.returncode:
        sys.exit("hotlease could not be compiled; cargo says why above")
    return root / os.environ.get("CARGO_TARGET_DIR", "target") / "release"


def put(source, place):
    """Installs a file without its symbols, which are half of its size."""
    place.parent.mkdir(exist_ok=True)
    # Written beside the destination and renamed: the old program may be running.
    fresh = place.with_name(f".{place.name}.new")
    shutil.copy(source, fresh)
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-unneeded", fresh], check=True)
    os.replace(fresh, place)
