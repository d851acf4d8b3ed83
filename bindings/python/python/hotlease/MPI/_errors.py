"""Errors of communicators."""

from __future__ import annotations

from typing import Optional

from hotlease._core import Error

SUCCESS = 0
ERR_BUFFER = 1
ERR_COUNT = 2
ERR_TYPE = 3
ERR_TAG = 4
ERR_COMM = 5
ERR_RANK = 6
ERR_REQUEST = 7
ERR_ROOT = 8
ERR_GROUP = 9
ERR_OP = 10
ERR_ARG = 13
ERR_UNKNOWN = 14
ERR_TRUNCATE = 15
ERR_OTHER = 16
ERR_INTERN = 17
ERR_TOPOLOGY = 11
ERR_DIMS = 12
ERR_IN_STATUS = 18
ERR_PENDING = 19
ERR_ACCESS = 20
ERR_AMODE = 21
ERR_BAD_FILE = 22
ERR_FILE_EXISTS = 25
ERR_FILE = 27
ERR_INFO = 28
ERR_INFO_KEY = 29
ERR_IO = 32
ERR_KEYVAL = 33
ERR_NO_SUCH_FILE = 37
ERR_READ_ONLY = 40
ERR_UNSUPPORTED_OPERATION = 44
ERR_WIN = 45
ERR_RMA_RANGE = 55
ERR_RMA_ATTACH = 56
ERR_RMA_FLAVOR = 58
ERR_LASTCODE = 1 << 20
ERR_PROC_FAILED = 75
ERR_REVOKED = 77

_CLASSES = {
    "Truncated": ERR_TRUNCATE,
    "Mismatch": ERR_COUNT,
    "CallMismatch": ERR_ARG,
    "Arguments": ERR_ARG,
    "Options": ERR_ARG,
    "NoSuchRank": ERR_RANK,
    "Root": ERR_ROOT,
    "Tag": ERR_TAG,
    "Group": ERR_GROUP,
    "Request": ERR_REQUEST,
    "Window": ERR_WIN,
    "NotAttached": ERR_RMA_RANGE,
    "Attachment": ERR_RMA_ATTACH,
    "Flavor": ERR_RMA_FLAVOR,
    "NoSuchFile": ERR_NO_SUCH_FILE,
    "FileExists": ERR_FILE_EXISTS,
    "Access": ERR_ACCESS,
    "Amode": ERR_AMODE,
    "BadFile": ERR_FILE,
    "UnsupportedOperation": ERR_UNSUPPORTED_OPERATION,
    "Io": ERR_IO,
    "Operator": ERR_OP,
    "OperatorPanicked": ERR_OP,
    "Finished": ERR_COMM,
    "Forked": ERR_COMM,
    "MemberLost": ERR_PROC_FAILED,
    "MemberLeft": ERR_PROC_FAILED,
    "Outcast": ERR_PROC_FAILED,
    "CollectiveFailed": ERR_REVOKED,
    "TooManyRequests": ERR_PENDING,
    "MemoryReclaimed": ERR_BUFFER,
}


class Missing(AttributeError):
    """A name of MPI that hotlease lacks; the message says what to use."""


class Exception(Error, RuntimeError):
    """An operation of a communicator failed. The message says what failed, at which rank, why, and what to do next.

    Attributes
    ----------
    kind
        Kind of the error, by its name in ``docs/errors.md``: ``"MemberLost"``, ``"Truncated"``, ...
    rank
        Rank of the member that failed or ended; ``None`` if no member failed or ended.
    cause
        Why the member failed, in words; ``None`` if no member failed.
    """

    def __init__(
        self, text: str = "", kind: str = "", rank: Optional[int] = None, cause: Optional[str] = None
    ) -> None:
        super().__init__(text, kind, rank, cause)
        self.kind = kind
        self.rank = rank
        self.cause = cause

    def __str__(self) -> str:
        return str(self.args[0])

    def Get_error_class(self) -> int:
        """Returns the error class of MPI that fits best, such as ``MPI.ERR_PROC_FAILED``."""
        return _CLASSES.get(self.kind, ERR_OTHER)

    def Get_error_code(self) -> int:
        """Returns the error class of MPI that fits best."""
        return self.Get_error_class()

    def Get_error_string(self) -> str:
        """Returns the message."""
        return str(self)

    @property
    def error_class(self) -> int:
        """The error class of MPI that fits best."""
        return self.Get_error_class()

    @property
    def error_code(self) -> int:
        """The error class of MPI that fits best."""
        return self.Get_error_class()

    @property
    def error_string(self) -> str:
        """The message."""
        return str(self)
