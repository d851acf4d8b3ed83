"""Imports that a lease names, which are done before its first task, and zygotes: interpreters that have done these imports,
and from which workers are forked."""

from __future__ import annotations

import importlib
import os
import sys

from hotlease import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Optional

_NAMED_MAX = 3


def imported(names: Iterable[str]) -> Optional[str]:
    """Imports modules while the process may use one core only, as a worker does: some libraries start a thread for each
    core, and no environment variable prevents that. Returns the error, or None."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        for name in names:
            try:
                importlib.import_module(name)
            except BaseException as error:  # noqa: BLE001
                return f"import {name}: {type(error).__name__}: {error}"
    finally:
        os.sched_setaffinity(0, before)
    return None


def begun() -> tuple[_core.Zygote, dict[str, str], set[str]]:
    """Becomes a zygote, before any code of the tenant is imported; returns the arguments of `serve`."""
    zygote = _core.Zygote()
    return zygote, _descriptors(), _shared()


def serve(zygote: _core.Zygote, descriptors: dict[str, str], shared: set[str], imports_ns: int) -> None:
    """Forks a worker at each request. Returns in each worker, as if the worker had been started and had done all imports."""
    left = _left(descriptors, shared)
    if left:
        zygote.refuse(f"no worker can be forked once its imports have left {left}")
    affinity = os.sched_getaffinity(0)
    zygote.serve(imports_ns)
    os.sched_setaffinity(0, affinity)
    _renew()


def _left(descriptors: dict[str, str], shared: set[str]) -> Optional[str]:
    """Returns something that a forked worker would share with other processes, or would lack; None if there is nothing."""
    from hotlease._names import counted

    threads = len(os.listdir("/proc/self/task")) - 1
    if threads:
        return counted(threads, "thread")
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return "a child process"
    except ChildProcessError:
        pass
    opened = {number: path for number, path in _descriptors().items() if descriptors.get(number) != path}
    if opened:
        return f"{counted(len(opened), 'open file')} ({_named(opened.values())})"
    mapped = _shared() - shared
    if mapped:
        return f"{counted(len(mapped), 'mapping')} of shared memory ({_named(mapped)})"
    files = os.listdir("/dev/shm")
    if files:
        return f"{counted(len(files), 'file')} in /dev/shm ({_named(files)})"
    return None


def _named(names: Iterable[str]) -> str:
    each = sorted(set(names))
    return ", ".join(each[:_NAMED_MAX]) + (", ..." if len(each) > _NAMED_MAX else "")


def _descriptors() -> dict[str, str]:
    """Returns the open descriptors and their targets, by number."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            # The descriptor that lists the folder: it is closed now.
            pass
    return found


def _shared() -> set[str]:
    """Returns the names of memory mappings that other processes may change."""
    with open("/proc/self/maps") as maps:
        rows = (line.split(maxsplit=5) for line in maps)
        return {row[5].strip() if len(row) > 5 else "unnamed" for row in rows if row[1][1] == "w" and row[1][3] == "s"}


def _renew() -> None:
    """Renews state that forks of one process must not share. Python reseeds its own random generator at a fork, and
    OpenSSL's generator mixes in the process id."""
    legacy = sys.modules.get("numpy.random")
    if legacy is not None:
        legacy.seed()
    identifiers = sys.modules.get("uuid")
    if identifiers is not None:
        vars(identifiers).update(_node=None, _last_timestamp=None)
