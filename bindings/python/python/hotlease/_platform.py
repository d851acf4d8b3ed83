"""The platform of this node, started when it is needed."""

from __future__ import annotations

import os
import sys

from hotlease import _core, _modules, _versions
from hotlease.errors import NotRunning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Optional, Union

# Exit status of `hotlease up` if another process has started the platform meanwhile.
_RUNS_ALREADY = 5
_SERVES_WITHIN = 40
# A platform that a program has started ends after this time without leases; "never": it does not end by itself.
_IDLE_LIMIT = os.environ.get("HOTLEASE_IDLE_LIMIT") or "10min"


# Variables that workers get from the program: they change how a program computes, and contain nothing personal.
_PASSED_ON = (
    "BLIS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONWARNINGS",
    "RAYON_NUM_THREADS",
    "TZ",
    "VECLIB_MAXIMUM_THREADS",
    "VIRTUAL_ENV",
)
_HASH_SEED = "20211"
# Environment variable that makes workers of an image keep the image's import path.
_OWN_PATH = "HOTLEASE_PYTHON_OWN_PATH"


# Suffix of an image's file in a store, after the hash.
_IMAGE_SUFFIX = ".squashfs"


def image(environment: Union[str, os.PathLike[str]]) -> str:
    """Returns the hash of a packed environment, given that hash or the path of its file."""
    if not isinstance(environment, (str, os.PathLike)):
        raise TypeError("environment is the hash of a packed environment; variables={...} are for environment variables")
    name = os.path.basename(os.fspath(environment)).removesuffix(_IMAGE_SUFFIX)
    if len(name) != 64 or set(name) - set("0123456789abcdef"):
        raise ValueError(f"{environment!r} names no environment: 64 hexadecimal digits do, as `hotlease env pack` prints them")
    return name


def imports(names: Sequence[str]) -> str:
    """Joins the names of modules, in the form that workers read."""
    if isinstance(names, str):
        raise TypeError("imports is a sequence of names of modules, not one name")
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"imports: {name!r} is not the name of a module")
    return " ".join(names)


def interpreter(variables: Mapping[str, str], image: Optional[str] = None) -> dict[str, Any]:
    """Describes the workers' interpreter: this program's, by its path, or an image's, by the image's hash."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ and _is_text(os.environ[name])}
    # Hashes must be equal in all workers: one worker groups strings by hash, for instance, and another worker looks
    # them up.
    if passed.get("PYTHONHASHSEED", "random") == "random":
        passed["PYTHONHASHSEED"] = _HASH_SEED
    directory, path = _modules.directory(), _modules.give_path()
    if image is not None:
        passed.pop("VIRTUAL_ENV", None)
        passed[_OWN_PATH] = "1"
        path = [folder for folder in path if _modules.is_own(folder)]
        return _described("bin/python", {**passed, **variables}, path, directory, image)
    # Folder in which a worker finds this package, before it gets the rest of the import path.
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.basename(here) not in ("site-packages", "dist-packages"):
        folders = [folder for folder in (here, os.environ.get("PYTHONPATH")) if folder and _is_text(folder)]
        passed["PYTHONPATH"] = os.pathsep.join(folders)
    return _described(sys.executable, {**passed, **variables}, path, directory, None)


def _is_text(value: str) -> bool:
    """Whether the value of a variable can be sent in a request: it must be UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _described(
    interpreter: str, variables: dict[str, str], path: list[str], directory: Optional[str], image: Optional[str]
) -> dict[str, Any]:
    return {
        "interpreter": interpreter,
        "image": image,
        "environment": variables,
        "path": path,
        "directory": directory or "/",
        "version": ".".join(map(str, sys.version_info[:3])),
        "hotlease": _core.__version__,
        "cloudpickle": _versions.installed("cloudpickle"),
    }


def may_start() -> bool:
    """Whether the program may start a platform: it names no other platform, and is not in a batch job with a platform."""
    return not os.environ.get("HOTLEASE_MANAGER") and _core._job_managers() is None


def start() -> None:
    """Starts the platform, as ``hotlease up --detach`` does, and says so on standard error.

    The platform ends by itself after ``$HOTLEASE_IDLE_LIMIT`` without leases.

    Raises
    ------
    NotRunning
        If the platform does not start.
    """
    # Imported here: most programs find the platform running.
    import subprocess

    from hotlease import _programs

    try:
        program = _programs.find("hotlease")
    except FileNotFoundError as error:
        raise NotRunning(f"hotlease is not running, and cannot be started: {error}", False) from None
    limit = [] if _IDLE_LIMIT == "never" else ["--idle-limit", _IDLE_LIMIT]
    try:
        done = subprocess.run(
            [program, "up", "--detach", *limit],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SERVES_WITHIN,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotRunning(f"hotlease is not running, and cannot be started: {error}", False) from error
    if done.returncode not in (0, _RUNS_ALREADY):
        why = done.stderr.strip()
        if "--idle-limit" in why:
            why += f"\nThat time is the value of $HOTLEASE_IDLE_LIMIT, {_IDLE_LIMIT!r}: a number and us, ms, s, min, h or d, or never"
        raise NotRunning(f"hotlease is not running, and cannot be started: {why}", False)
    if done.returncode == 0:
        ends = "runs until `hotlease down`"
        if limit:
            ends = f"ends after {_IDLE_LIMIT} without leases ($HOTLEASE_IDLE_LIMIT), or with `hotlease down`"
        tell(f"started the platform of this host, which {ends}")


def tell(text: str) -> None:
    """Writes a line about workers and platforms to standard error."""
    if sys.stderr is not None:
        sys.stderr.write(f"hotlease: {text}\n")
