"""Message passing between processes, under mpi4py's names: ``from hotlease import MPI`` instead of ``from mpi4py import MPI``.

``MPI.COMM_WORLD`` is joined at its first use, as environment variables say: ``hotlease comm run -n 4 python program.py``
sets them. Without these variables it has one rank. ``MPI.join`` joins any other communicator by name.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from typing import Any, NoReturn, Optional, Union

from hotlease import _core
from hotlease.MPI import _native
from hotlease.MPI._comm import COMM_NULL as COMM_NULL
from hotlease.MPI._comm import COMM_SELF as COMM_SELF
from hotlease.MPI._comm import COMM_WORLD as COMM_WORLD
from hotlease.MPI._comm import Comm as Comm
from hotlease.MPI._comm import Intracomm as Intracomm
from hotlease.MPI._comm import MESSAGE_NO_PROC as MESSAGE_NO_PROC
from hotlease.MPI._comm import MESSAGE_NULL as MESSAGE_NULL
from hotlease.MPI._comm import Message as Message
from hotlease.MPI._constants import *  # noqa: F403
from hotlease.MPI._constants import IN_PLACE as IN_PLACE
from hotlease.MPI._constants import THREAD_MULTIPLE, _typedict
from hotlease.MPI._errors import *  # noqa: F403
from hotlease.MPI._errors import Exception as Exception
from hotlease.MPI._errors import Missing as Missing
from hotlease.MPI._files import FILE_NULL as FILE_NULL
from hotlease.MPI._files import File as File
from hotlease.MPI._graphs import Distgraphcomm as Distgraphcomm
from hotlease.MPI._graphs import Graphcomm as Graphcomm
from hotlease.MPI._groups import GROUP_EMPTY as GROUP_EMPTY
from hotlease.MPI._groups import GROUP_NULL as GROUP_NULL
from hotlease.MPI._groups import Group as Group
from hotlease.MPI._handles import ERRHANDLER_NULL as ERRHANDLER_NULL
from hotlease.MPI._handles import ERRORS_ABORT as ERRORS_ABORT
from hotlease.MPI._handles import ERRORS_ARE_FATAL as ERRORS_ARE_FATAL
from hotlease.MPI._handles import ERRORS_RETURN as ERRORS_RETURN
from hotlease.MPI._handles import INFO_ENV as INFO_ENV
from hotlease.MPI._handles import INFO_NULL as INFO_NULL
from hotlease.MPI._handles import Errhandler as Errhandler
from hotlease.MPI._handles import Info as Info
from hotlease.MPI._native import Datatype as Datatype
from hotlease.MPI._native import Op as Op
from hotlease.MPI._native import Request as Request
from hotlease.MPI._native import Status as Status
from hotlease.MPI._native import memory as memory
from hotlease.MPI._neighbours import Topocomm as Topocomm
from hotlease.MPI._objects import Pickle as Pickle
from hotlease.MPI._objects import pickle as pickle
from hotlease.MPI._persistent import Prequest as Prequest
from hotlease.MPI._topology import Cartcomm as Cartcomm
from hotlease.MPI._topology import Compute_dims as Compute_dims
from hotlease.MPI._windows import WIN_NULL as WIN_NULL
from hotlease.MPI._windows import Win as Win

__TypeDict__ = _typedict
REQUEST_NULL = Request()
buffer = memory

# Names of mpi4py that hotlease lacks, and what to use instead.
_ELSEWHERE = {
    "INTERCOMM_NULL": "one communicator of all, and Comm.Split",
    "Intercomm": "one communicator of all, and Comm.Split",
    "Grequest": "concurrent.futures.Future",
    "Session": "MPI.join",
    "Open_port": "MPI.join under a name",
    "Publish_name": "MPI.join under a name",
    "Lookup_name": "MPI.join under a name",
}
# Beginnings of further names that hotlease lacks, and what to use instead.
_FAMILIES = {
    ("COMBINER_", "TYPECLASS_"): "Datatype.Create_subarray, Create_struct, Create_hindexed",
    ("COMM_TYPE_",): "COMM_TYPE_SHARED, or Comm.Split by any colour",
    ("MODE_",): "MODE_RDONLY, MODE_WRONLY, MODE_RDWR, with MODE_CREATE, MODE_EXCL, MODE_APPEND, MODE_DELETE_ON_CLOSE",
    ("ERR_",): "except MPI.Exception, and its kind",
}


def __getattr__(name: str) -> NoReturn:
    families = (use for begin, use in _FAMILIES.items() if name.startswith(begin))
    use = _ELSEWHERE.get(name) or next(families, None)
    if use is not None:
        raise Missing(f"hotlease has no MPI.{name}: use {use}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def join(
    name: str,
    size: int,
    *,
    rendezvous: Optional[str] = None,
    rank: Optional[int] = None,
    secret: Union[str, bytes, None] = None,
    timeout: Optional[float] = None,
    newcomer: bool = False,
    link: Optional[str] = None,
) -> Intracomm:
    """Joins a communicator by name, and waits until all members have joined.

    Parameters
    ----------
    name, size
        Name and size of the communicator, the same at all members.
    rendezvous
        Meeting point of members, as ``"host:port"``: the address of ``hotlease comm rendezvous``. Default:
        ``HOTLEASE_COMM_RENDEZVOUS``.
    rank
        Rank of this member. Default: any free rank.
    secret
        Secret that all members and the rendezvous share, 16 bytes or more. Default: ``HOTLEASE_COMM_SECRET``, or the
        content of the file that ``HOTLEASE_COMM_SECRET_FILE`` names.
    timeout
        Seconds to wait for all members. Default: 30.
    newcomer
        Whether to join an existing communicator, whose members call ``Comm.Grow``; ``size`` is its size after that.
    link
        Link between members, the same for all: ``"direct"``, ``"tcp"``, ``"ofi"``, ``"redis://host:6379"``,
        ``"s3://bucket"`` or ``"dynamodb://table"``. With ``"auto:"`` and several of these links, the model of
        ``hotlease comm plan`` chooses a link; with ``"auto"``, it chooses from ``HOTLEASE_COMM_LINKS``. ``Comm.link``
        names the chosen link. Default: ``HOTLEASE_COMM_LINK``, else direct.

    Raises
    ------
    MPI.Exception
        If not all members have joined in time (the message names the missing members); if the name is taken by a group of
        another size; if the secret differs; if the rendezvous does not answer; if there is no such link, or its store
        cannot be used.
    """
    if rendezvous is None:
        rendezvous = os.environ.get("HOTLEASE_COMM_RENDEZVOUS")
        if not rendezvous:
            raise ValueError("no rendezvous: give MPI.join one, as host:port, or set HOTLEASE_COMM_RENDEZVOUS")
    if isinstance(secret, str):
        secret = secret.encode()
    return Intracomm(_native.Handle.join(name, size, rendezvous, rank, secret, timeout, newcomer, link))


_is_finalized = False


def Init() -> None:
    """Joins ``COMM_WORLD`` now, instead of at its first use."""
    COMM_WORLD.Get_rank()


def Init_thread(required: int = THREAD_MULTIPLE) -> int:
    """Joins ``COMM_WORLD`` now; any thread may make any call."""
    Init()
    return THREAD_MULTIPLE


def Finalize() -> None:
    """Finishes all communicators: waits until other members have read what was sent. Also done at the end of a program."""
    global _is_finalized
    _is_finalized = True
    _native.end_all(False)


def Is_initialized() -> bool:
    """Returns true: communicators need no initialisation."""
    return True


def Is_finalized() -> bool:
    """Whether ``Finalize`` was called."""
    return _is_finalized


def Query_thread() -> int:
    """Returns the highest level: any thread may make any call."""
    return THREAD_MULTIPLE


def Is_thread_main() -> bool:
    """Returns true: any thread may make any call."""
    return True


def Alloc_mem(size: int, info: object = None) -> memory:
    """Returns memory of ``size`` bytes."""
    return memory.allocate(size)


def Free_mem(mem: memory) -> None:
    """Releases memory of ``Alloc_mem``."""
    mem.release()


def Get_address(location: Any) -> int:
    """Returns the address of an object's memory."""
    return memory(location).address


def Aint_add(base: int, disp: int) -> int:
    """Returns the address ``disp`` bytes behind ``base``."""
    return base + disp


def Aint_diff(addr1: int, addr2: int) -> int:
    """Returns the number of bytes from the second address to the first."""
    return addr1 - addr2


def Attach_buffer(buf: Any) -> None:
    """Does nothing: ``Bsend`` needs no buffer."""


def Detach_buffer() -> None:
    """Does nothing, and returns no buffer."""


def Pcontrol(level: int) -> None:
    """Does nothing."""


def Get_processor_name() -> str:
    """Returns the name of this host."""
    return socket.gethostname()


def Get_version() -> tuple[int, int]:
    """Returns the version of MPI that hotlease's subset belongs to."""
    return (3, 1)


def Get_library_version() -> str:
    """Returns the name and the version of the library."""
    return f"hotlease {_core.__version__}"


def get_vendor() -> tuple[str, tuple[int, ...]]:
    """Returns the name and the version of the library, in parts."""
    return ("hotlease", tuple(int(part) for part in _core.__version__.split(".")[:3]))


def Wtime() -> float:
    """Returns the seconds since some moment."""
    return time.perf_counter()


def Wtick() -> float:
    """Returns the resolution of ``Wtime``."""
    return time.get_clock_info("perf_counter").resolution


def Get_error_string(errorcode: int) -> str:
    """Returns the name of an error class."""
    from hotlease.MPI import _errors

    names = [name for name, value in vars(_errors).items() if value == errorcode and name.startswith(("ERR_", "SUCCESS"))]
    return f"MPI_{names[0]}" if names else f"error {errorcode}"


def Get_error_class(errorcode: int) -> int:
    """Returns the same number: error codes are error classes."""
    return errorcode


def _at_exit() -> None:
    # If a program ends with a traceback, other members wait for it, so they are told at once. In an interactive
    # interpreter, an old traceback does not mean that the program has failed.
    has_failed = getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")
    _native.end_all(has_failed)


atexit.register(_at_exit)
