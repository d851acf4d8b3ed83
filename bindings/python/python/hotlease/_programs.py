"""Where the programs of the platform are: `hotlease` and `hotlease-worker`."""

import os
import shutil
import sys
from pathlib import Path

_PACKAGED = Path(__file__).resolve().parent / "bin"


def find(name: str) -> str:
    """The path of a program of the platform.

    Looked for in this order: the folder that ``HOTLEASE_PROGRAMS`` names, the package itself, ``PATH``.

    Parameters
    ----------
    name
        ``"hotlease"`` or ``"hotlease-worker"``.

    Raises
    ------
    FileNotFoundError
        If it is nowhere.
    """
    folders = [folder for folder in (os.environ.get("HOTLEASE_PROGRAMS"), str(_PACKAGED)) if folder]
    for folder in folders:
        candidate = os.path.join(folder, name)
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    # A console script of this package has the program's name, too: it would find itself for ever.
    itself = os.path.realpath(sys.argv[0]) if sys.argv and sys.argv[0] else None
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which(name, path=folder or os.curdir)
        if found and os.path.realpath(found) != itself and not _is_script(found):
            return found
    raise FileNotFoundError(
        f"the program {name} is neither in {' nor in '.join(folders)} nor in PATH; "
        "build it with `make build` and name its folder in HOTLEASE_PROGRAMS"
    )


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def main() -> None:
    """The ``hotlease`` command: becomes the program."""
    try:
        program = find("hotlease")
    except FileNotFoundError as error:
        sys.exit(f"hotlease: {error}")
    os.execv(program, ["hotlease", *sys.argv[1:]])
