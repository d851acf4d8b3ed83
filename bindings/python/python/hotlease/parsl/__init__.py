"""Parsl programs in leased workers.

`load` replaces ``parsl.load``: apps become tasks of hotlease's own dataflow kernel. To keep Parsl's kernel, use only the
executor: ``Config(executors=[hotlease.parsl.HotleaseExecutor()])``.
"""

try:
    import parsl as _parsl  # noqa: F401
except ImportError as error:
    raise ImportError("hotlease.parsl needs Parsl: pip install parsl") from error

from hotlease.parsl.executor import HotleaseExecutor
from hotlease.parsl.futures import AppFuture
from hotlease.parsl.kernel import Kernel, load

__all__ = ["AppFuture", "HotleaseExecutor", "Kernel", "load"]
