"""The platform of this machine, started when it is needed."""

from __future__ import annotations

import os
import sys

from hotlease import _core, _versions
from hotlease.errors import NotRunning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# An exit status of `hotlease up`: somebody else was faster.
_RUNS_ALREADY = 5
_SERVES_WITHIN = 40


# What changes how a program computes, but says nothing of anybody.
_PASSED_ON = (
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONWARNINGS",
    "TZ",
    "VIRTUAL_ENV",
)
_HASH_SEED = "20211"


def interpreter(environment: Mapping[str, str]) -> dict[str, Any]:
    """What workers have to be like: this interpreter, here."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # What one worker sorts by hash, another one has to find: groups by strings, for instance.
    if passed.get("PYTHONHASHSEED", "random") == "random":
        passed["PYTHONHASHSEED"] = _HASH_SEED
    # Where a worker finds this package, before it has the rest of the path.
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.basename(here) not in ("site-packages", "dist-packages"):
        passed["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    return {
        "interpreter": sys.executable,
        "environment": {**passed, **environment},
        "path": [os.path.abspath(folder) for folder in sys.path],
        "directory": os.getcwd(),
        "version": ".".join(map(str, sys.version_info[:3])),
        "hotlease": _core.__version__,
        "cloudpickle": _versions.installed("cloudpickle"),
    }


def may_start() -> bool:
    """Whether no other platform was asked for."""
    return not os.environ.get("HOTLEASE_MANAGER")


def start() -> None:
    """Starts it, as ``hotlease up --detach`` does; it stays until ``hotlease down``.

    Raises
    ------
    NotRunning
        If it does not start.
    """
    # Most programs find it running.
    import subprocess

    from hotlease import _programs

    try:
        program = _programs.find("hotlease")
    except FileNotFoundError as error:
        raise NotRunning(f"hotlease is not running, and cannot be started: {error}", False) from None
    try:
        done = subprocess.run(
            [program, "up", "--detach"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SERVES_WITHIN,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotRunning(f"hotlease is not running, and cannot be started: {error}", False) from error
    if done.returncode not in (0, _RUNS_ALREADY):
        raise NotRunning(f"hotlease is not running, and cannot be started: {done.stderr.strip()}", False)
