"""Paths of the platform's programs, `hotlease` and `hotlease-worker`, and of the C library that a wheel contains."""

import os
import sys

# Folder of the package, and folder of the programs in a wheel. The environment's `bin` is not used: it may be anywhere, and
# may contain another version.
_HERE = os.path.dirname(os.path.realpath(__file__))
_PACKAGED = os.path.join(_HERE, "bin")


def find(name: str) -> str:
    """Returns the path of a program of the platform.

    Looks in this order: the folder that ``HOTLEASE_PROGRAMS`` names, the package itself, ``PATH``.

    Parameters
    ----------
    name
        ``"hotlease"`` or ``"hotlease-worker"``.

    Raises
    ------
    FileNotFoundError
        If the program is in none of these folders.
    """
    folders = [folder for folder in (os.environ.get("HOTLEASE_PROGRAMS"), _PACKAGED) if folder]
    for folder in folders:
        candidate = os.path.join(folder, name)
        if _is_program(candidate):
            return candidate
    # A console script of this package has the program's name, too: it would find and start itself for ever.
    itself = os.path.realpath(sys.argv[0]) if sys.argv and sys.argv[0] else None
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        candidate = os.path.join(folder or os.curdir, name)
        if _is_program(candidate) and os.path.realpath(candidate) != itself and not _is_script(candidate):
            return candidate
    raise FileNotFoundError(
        f"the program {name} is neither in {' nor in '.join(folders)} nor in PATH; "
        "build it with `make build` and name its folder in HOTLEASE_PROGRAMS"
    )


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def flags(names: list[str]) -> str:
    """Returns the options by which a compiler (``--cflags``) finds the package's headers, and a linker (``--libs``) its
    C library. Functions need the headers only.
    """
    include, libraries = os.path.join(_HERE, "include"), os.path.join(_HERE, "lib")
    found = sorted(os.listdir(libraries)) if os.path.isdir(libraries) else []
    if not os.path.isdir(include):
        sys.exit("hotlease: an editable installation has no headers: use `-I include` in the checkout")
    if "--libs" in names and not found:
        sys.exit(
            "hotlease: this installation has no C library, because `pip install` compiled it from source; "
            "take a wheel of `make wheels`, or `make install` and pkg-config"
        )
    known = {"--cflags": f"-I{include}", "--libs": f"-L{libraries} -l:{found[0] if found else ''} -Wl,-rpath,{libraries}"}
    return " ".join(known[name] for name in names)


def main() -> None:
    """Runs the ``hotlease`` command: replaces this process by the program. Answers ``--cflags`` and ``--libs`` itself."""
    if len(sys.argv) > 1 and set(sys.argv[1:]) <= {"--cflags", "--libs"}:
        print(flags(sys.argv[1:]))
        return
    try:
        program = find("hotlease")
    except FileNotFoundError as error:
        sys.exit(f"hotlease: {error}")
    os.execv(program, ["hotlease", *sys.argv[1:]])
