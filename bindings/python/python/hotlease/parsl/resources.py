"""Parsl's resource specifications: a task has all resources of its worker, and cannot ask for more."""

from __future__ import annotations

from typing import Any, Optional

from parsl.executors.errors import InvalidResourceSpecification

# Bytes in the unit in which Parsl, like Work Queue, gives memory.
_MEMORY_UNIT = 2**20


def check(specification: dict[str, Any], memory: Optional[int], gpus: Optional[int]) -> None:
    """Checks that a worker has what a task asks for: `memory` bytes (`None`: the worker's share of the node) and `gpus` GPUs.

    Raises
    ------
    parsl.executors.errors.InvalidResourceSpecification
        If a key is not known, or a worker has less than the task asks for; the exception names these keys.
    """
    has: dict[str, Optional[float]] = {"cores": 1, "gpus": gpus or 0, "memory": None if memory is None else memory / _MEMORY_UNIT}
    wrong = {}
    for key, asked in specification.items():
        if key not in has:
            wrong[key] = f"{key} is not known; the known ones are cores, memory (MiB) and gpus"
        elif isinstance(asked, bool) or not isinstance(asked, (int, float)) or asked < 0:
            wrong[key] = f"{key} is {asked!r}, and no number"
        elif (limit := has[key]) is None:
            wrong[key] = f"{key} is {asked}, and what a worker has is not known: give memory= (bytes) to HotleaseExecutor"
        elif asked > limit:
            advice = "submit tasks of one core, or use hotlease.Gang" if key == "cores" else f"give {key}= to HotleaseExecutor"
            wrong[key] = f"{key} is {asked}, and a worker has {limit:g}: {advice}"
    if wrong:
        raise InvalidResourceSpecification(set(wrong), "; ".join(wrong.values()))
