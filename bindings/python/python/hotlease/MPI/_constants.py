"""Datatypes, operators and numbers, under MPI's names."""

from __future__ import annotations

import operator
from typing import Any

from hotlease.MPI._native import Datatype, Op

UNDEFINED = -32766
ANY_SOURCE = -1
ANY_TAG = -1
PROC_NULL = -2
ROOT = -3
KEYVAL_INVALID = -1
TAG_UB, HOST, IO, WTIME_IS_GLOBAL, UNIVERSE_SIZE, APPNUM, LASTUSEDCODE = range(7)
IDENT, CONGRUENT, SIMILAR, UNEQUAL = range(4)
COMM_TYPE_SHARED = 1
CART, GRAPH, DIST_GRAPH = 1, 2, 3
ORDER_C, ORDER_FORTRAN = 0, 1
DISTRIBUTE_BLOCK, DISTRIBUTE_CYCLIC, DISTRIBUTE_NONE = range(3)
DISTRIBUTE_DFLT_DARG = -1
UNWEIGHTED, WEIGHTS_EMPTY = 2, 3
MODE_CREATE, MODE_RDONLY, MODE_WRONLY, MODE_RDWR, MODE_DELETE_ON_CLOSE = 1, 2, 4, 8, 16
MODE_UNIQUE_OPEN, MODE_EXCL, MODE_APPEND, MODE_SEQUENTIAL = 32, 64, 128, 256
LOCK_EXCLUSIVE, LOCK_SHARED = 1, 2
MODE_NOCHECK, MODE_NOSTORE, MODE_NOPUT, MODE_NOPRECEDE, MODE_NOSUCCEED = 1024, 2048, 4096, 8192, 16384
WIN_BASE, WIN_SIZE, WIN_DISP_UNIT, WIN_CREATE_FLAVOR, WIN_MODEL = range(7, 12)
WIN_FLAVOR_CREATE, WIN_FLAVOR_ALLOCATE, WIN_FLAVOR_DYNAMIC, WIN_FLAVOR_SHARED = range(1, 5)
WIN_SEPARATE, WIN_UNIFIED = 1, 2
SEEK_SET, SEEK_CUR, SEEK_END = 0, 1, 2
DISPLACEMENT_CURRENT = -54278278
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
MAX_PROCESSOR_NAME = 256
MAX_ERROR_STRING = 1024
MAX_OBJECT_NAME = 128
MAX_LIBRARY_VERSION_STRING = 64
MAX_INFO_KEY, MAX_INFO_VAL = 255, 1024
MAX_PORT_NAME = 256
MAX_DATAREP_STRING = 128
BSEND_OVERHEAD = 0
# hotlease implements a subset of MPI 3.1.
VERSION, SUBVERSION = 3, 1


class InPlaceType:
    """Type of ``IN_PLACE``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MPI.IN_PLACE"

    def __reduce__(self) -> str:
        return "IN_PLACE"


IN_PLACE = InPlaceType()
"""Given instead of a buffer: this rank's data is in the buffer that gets the result."""


class BottomType:
    """Type of ``BOTTOM``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MPI.BOTTOM"

    def __reduce__(self) -> str:
        return "BOTTOM"


BOTTOM = BottomType()
"""Address 0. No call accepts it as a buffer, because offsets of a datatype are relative to a buffer."""

DATATYPE_NULL = Datatype("MPI_DATATYPE_NULL", "V")

BYTE = Datatype("MPI_BYTE", "V")
CHAR = Datatype("MPI_CHAR", "S")
WCHAR = Datatype("MPI_WCHAR", "w")
SIGNED_CHAR = Datatype("MPI_SIGNED_CHAR", "b")
SHORT = Datatype("MPI_SHORT", "h")
INT = Datatype("MPI_INT", "i")
LONG = Datatype("MPI_LONG", "l")
LONG_LONG = Datatype("MPI_LONG_LONG", "q")
UNSIGNED_CHAR = Datatype("MPI_UNSIGNED_CHAR", "B")
UNSIGNED_SHORT = Datatype("MPI_UNSIGNED_SHORT", "H")
UNSIGNED = Datatype("MPI_UNSIGNED", "I")
UNSIGNED_LONG = Datatype("MPI_UNSIGNED_LONG", "L")
UNSIGNED_LONG_LONG = Datatype("MPI_UNSIGNED_LONG_LONG", "Q")
FLOAT = Datatype("MPI_FLOAT", "f")
DOUBLE = Datatype("MPI_DOUBLE", "d")
LONG_DOUBLE = Datatype("MPI_LONG_DOUBLE", "g")
C_BOOL = Datatype("MPI_C_BOOL", "?")
C_FLOAT_COMPLEX = Datatype("MPI_C_FLOAT_COMPLEX", "F")
C_DOUBLE_COMPLEX = Datatype("MPI_C_DOUBLE_COMPLEX", "D")
C_LONG_DOUBLE_COMPLEX = Datatype("MPI_C_LONG_DOUBLE_COMPLEX", "G")
INT8_T = Datatype("MPI_INT8_T", "b")
INT16_T = Datatype("MPI_INT16_T", "h")
INT32_T = Datatype("MPI_INT32_T", "i")
INT64_T = Datatype("MPI_INT64_T", "l")
UINT8_T = Datatype("MPI_UINT8_T", "B")
UINT16_T = Datatype("MPI_UINT16_T", "H")
UINT32_T = Datatype("MPI_UINT32_T", "I")
UINT64_T = Datatype("MPI_UINT64_T", "L")
AINT = Datatype("MPI_AINT", "l")
OFFSET = Datatype("MPI_OFFSET", "l")
COUNT = Datatype("MPI_COUNT", "l")
# Pairs of a value and its index, for MINLOC and MAXLOC, in the layout of C.
TWOINT = Datatype("MPI_2INT", "ii")
LONG_INT = Datatype("MPI_LONG_INT", "li")
FLOAT_INT = Datatype("MPI_FLOAT_INT", "fi")
DOUBLE_INT = Datatype("MPI_DOUBLE_INT", "di")
SHORT_INT = Datatype("MPI_SHORT_INT", "hi")
LONG_DOUBLE_INT = Datatype("MPI_LONG_DOUBLE_INT", "gi")

INT_INT = TWOINT
C_COMPLEX = COMPLEX = COMPLEX8 = F_COMPLEX = C_FLOAT_COMPLEX
DOUBLE_COMPLEX = COMPLEX16 = F_DOUBLE_COMPLEX = C_DOUBLE_COMPLEX
BOOL = CXX_BOOL = C_BOOL
UNSIGNED_INT = UNSIGNED
SIGNED_SHORT, SIGNED_INT, SIGNED_LONG, SIGNED_LONG_LONG = SHORT, INT, LONG, LONG_LONG
SINT8_T, SINT16_T, SINT32_T, SINT64_T = INT8_T, INT16_T, INT32_T, INT64_T
INTEGER = INTEGER4 = F_INT = INT
INTEGER1, INTEGER2, INTEGER8 = INT8_T, INT16_T, INT64_T
REAL = REAL4 = F_FLOAT = FLOAT
DOUBLE_PRECISION = REAL8 = F_DOUBLE = DOUBLE
CHARACTER = CHAR
PACKED = BYTE

_typedict = {
    "?": C_BOOL, "b": SIGNED_CHAR, "h": SHORT, "i": INT, "l": LONG, "q": LONG_LONG,
    "B": UNSIGNED_CHAR, "H": UNSIGNED_SHORT, "I": UNSIGNED, "L": UNSIGNED_LONG, "Q": UNSIGNED_LONG_LONG,
    "f": FLOAT, "d": DOUBLE, "g": LONG_DOUBLE,
    "F": C_FLOAT_COMPLEX, "D": C_DOUBLE_COMPLEX, "G": C_LONG_DOUBLE_COMPLEX, "S": CHAR, "c": CHAR,
}  # fmt: skip
"""Datatypes by numpy's characters (``array.dtype.char``)."""


def _greater(x: Any, y: Any) -> Any:
    return y if y > x else x


def _lesser(x: Any, y: Any) -> Any:
    return y if y < x else x


def _at_greatest(x: Any, y: Any) -> Any:
    (value, place), (other, other_place) = x, y
    if value == other:
        return (value, min(place, other_place))
    return x if value > other else y


def _at_least(x: Any, y: Any) -> Any:
    (value, place), (other, other_place) = x, y
    if value == other:
        return (value, min(place, other_place))
    return x if value < other else y


OP_NULL = Op("MPI_OP_NULL", lambda x, y: NotImplemented)
SUM = Op("MPI_SUM", operator.add)
PROD = Op("MPI_PROD", operator.mul)
MAX = Op("MPI_MAX", _greater)
MIN = Op("MPI_MIN", _lesser)
LAND = Op("MPI_LAND", lambda x, y: bool(x) and bool(y))
BAND = Op("MPI_BAND", operator.and_)
LOR = Op("MPI_LOR", lambda x, y: bool(x) or bool(y))
BOR = Op("MPI_BOR", operator.or_)
LXOR = Op("MPI_LXOR", lambda x, y: bool(x) != bool(y))
BXOR = Op("MPI_BXOR", operator.xor)
MAXLOC = Op("MPI_MAXLOC", _at_greatest)
MINLOC = Op("MPI_MINLOC", _at_least)
REPLACE = Op("MPI_REPLACE", lambda x, y: y)
NO_OP = Op("MPI_NO_OP", lambda x, y: x)
