"""Small objects that calls take: hints (``Info``), handlers of errors (``Errhandler``), and attributes of communicators."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, Optional, Union

from hotlease.MPI._constants import KEYVAL_INVALID


class Info(MutableMapping[str, str]):
    """Hints for a call: texts by their names. hotlease ignores all hints."""

    def __init__(self, values: Optional[Mapping[str, str]] = None, *, is_null: bool = False) -> None:
        self._values = None if is_null else dict(values or {})

    @classmethod
    def Create(cls, items: Optional[Mapping[str, str]] = None) -> Info:
        """Returns new hints."""
        return cls(items)

    @classmethod
    def Create_env(cls, args: Optional[list[str]] = None) -> Info:
        """Returns a copy of ``INFO_ENV``."""
        return cls(INFO_ENV)

    def _known(self) -> dict[str, str]:
        if self._values is None:
            raise ValueError("MPI.INFO_NULL has no values: make one with MPI.Info.Create()")
        return self._values

    def Set(self, key: str, value: str) -> None:
        """Sets a value."""
        self[key] = value

    def Get(self, key: str) -> Optional[str]:
        """Returns the value of a name, or None."""
        return self._known().get(key)

    def Delete(self, key: str) -> None:
        """Removes a name."""
        del self[key]

    def Get_nkeys(self) -> int:
        """Returns the number of names."""
        return len(self)

    def Get_nthkey(self, n: int) -> str:
        """Returns a name by its number."""
        return list(self)[n]

    def Dup(self) -> Info:
        """Returns a copy."""
        return Info(self._known())

    copy = Dup

    def Free(self) -> None:
        """Forgets the values: this object becomes ``INFO_NULL``."""
        self._values = None

    def __getitem__(self, key: str) -> str:
        return self._known()[key]

    def __setitem__(self, key: str, value: str) -> None:
        self._known()[key] = str(value)

    def __delitem__(self, key: str) -> None:
        del self._known()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values or ())

    def __len__(self) -> int:
        return len(self._values or ())

    def __bool__(self) -> bool:
        return self._values is not None

    def __eq__(self, other: object) -> bool:
        return self is other or isinstance(other, Info) and not self and not other

    __hash__ = None  # type: ignore[assignment]


INFO_NULL = Info(is_null=True)
INFO_ENV = Info({"command": os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""})


class Errhandler:
    """Reaction of a communicator to an error. Errors are always raised as ``MPI.Exception``. With ``ERRORS_ARE_FATAL``, a
    program should not catch them: it then ends, and so do all processes that ``hotlease comm run`` has started with it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def Free(self) -> None:
        """Does nothing."""

    def __bool__(self) -> bool:
        return self._name != "ERRHANDLER_NULL"

    def __repr__(self) -> str:
        return f"MPI.{self._name}"

    def __reduce__(self) -> str:
        return self._name


ERRHANDLER_NULL = Errhandler("ERRHANDLER_NULL")
ERRORS_RETURN = Errhandler("ERRORS_RETURN")
ERRORS_ARE_FATAL = Errhandler("ERRORS_ARE_FATAL")
ERRORS_ABORT = Errhandler("ERRORS_ABORT")

Copy = Callable[[Any, int, Any], Any]
Delete = Callable[[Any, int, Any], Any]


class Keyval(NamedTuple):
    """Functions of an attribute: ``copy`` makes the duplicate's value, ``delete`` is called when the attribute is removed."""

    copy: Union[Copy, bool, None]
    delete: Optional[Delete]


_keyvals: dict[int, Keyval] = {}
_numbers = itertools.count(100)


def create_keyval(copy: Union[Copy, bool, None], delete: Optional[Delete]) -> int:
    number = next(_numbers)
    _keyvals[number] = Keyval(copy, delete)
    return number


def free_keyval(number: int) -> int:
    del _keyvals[number]
    return KEYVAL_INVALID


def keyval(number: int) -> Keyval:
    if number not in _keyvals:
        raise ValueError(f"no attribute has the key {number}: make one with Create_keyval")
    return _keyvals[number]


def copied(of: Any, attributes: Mapping[int, Any]) -> dict[int, Any]:
    """Returns the attributes that a duplicate of a communicator gets."""
    result = {}
    for number, value in attributes.items():
        copy = _keyvals[number].copy if number in _keyvals else None
        if callable(copy):
            given = copy(of, number, value)
            if given is not NotImplemented:
                result[number] = given
        elif copy:
            result[number] = value
    return result


def deleted(of: Any, number: int, value: Any) -> None:
    """Calls the function for the removal of an attribute, if there is one."""
    known = _keyvals.get(number)
    if known is not None and known.delete is not None:
        known.delete(of, number, value)
