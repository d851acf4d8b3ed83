"""Results and exceptions from sandboxes, read so that none of their code runs in the program.

Python's unpickler makes the objects, after `_core._check_pickle` has refused pickles with anything that results do not
need. Check and unpickler look up names here: a result may contain the names in `names`, and the classes that the program
gives. Definitions of classes and functions that were sent by value are never loaded.
"""

from __future__ import annotations

import enum
import functools
import io
import pickle

from hotlease import _core, _known
from hotlease._guarded import collisions, names
from hotlease._guarded.text import defuse, make_printable, printable
from hotlease._outcomes import remote_exception, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from hotlease._guarded.names import Use
    from hotlease._known import Definition, Name, Source

# Number of characters of a name that an error shows.
_SHOWN_MAX = 200
# Largest number of errors that lead to an error.
_CAUSES_MAX = 20
# Largest number of parts in the name of a class or function.
_NAME_PARTS_MAX = 8


class NotAdmitted(pickle.UnpicklingError):
    """A result contains something that results from a sandbox may not contain."""


def checked(classes: Any) -> tuple[Any, ...]:
    """Returns the classes of ``ExecutorOptions(result_classes=...)``, checked."""
    if isinstance(classes, (str, type)) or callable(classes):
        raise TypeError("result_classes is a list of classes")
    given: tuple[Any, ...] = tuple(classes)
    for each in given:
        if isinstance(each, type) and issubclass(each, type):
            raise TypeError(f"result_classes: {each.__qualname__} is a metaclass, and a result could define a class with it")
        if not callable(each) or not isinstance(getattr(each, "__qualname__", None), str):
            raise TypeError(f"result_classes has classes, and functions by which these are pickled, not {each!r}")
    if len({_key(each) for each in given}) < len(set(given)):
        raise ValueError("result_classes: two different classes have the same module and name")
    return given


def read_result(data: bytes, buffers: list[Any], function: str, classes: tuple[Any, ...]) -> Any:
    """Reads a result."""
    try:
        return _reader(classes).load(data, buffers)
    except BaseException as error:
        _clean(error)
        raise unreadable(error, f"`{function}`") from error


def _clean(error: BaseException) -> None:
    """Removes control characters from the text of an error that quotes a pickle, and of the errors that caused it."""
    each: Optional[BaseException] = error
    for _ in range(_CAUSES_MAX):
        if each is None:
            return
        each.args = tuple(map(printable, each.args))
        each = each.__cause__ or each.__context__


def read_exception(traceback: str, pickled: Optional[bytes], text: str, classes: tuple[Any, ...]) -> BaseException:
    """Reads the exception that a task raised. An exception that is no `Exception`, such as `SystemExit`, becomes a `TaskError`:
    the program would end by it, with a status that the sandbox chooses. What Python shows of it has no control characters."""

    def load(data: bytes) -> Any:
        try:
            exception = _reader(classes).load(data)
        except BaseException as error:
            _clean(error)
            raise
        if isinstance(exception, BaseException):
            if not isinstance(exception, Exception):
                raise NotAdmitted(f"{type(exception).__name__} would end the program")
            if not make_printable(exception):
                raise NotAdmitted("it shows control characters, or too much")
        return exception

    return remote_exception(printable(traceback), pickled, printable(text), load)


@functools.lru_cache(maxsize=64)
def _reader(classes: tuple[Any, ...]) -> Reader:
    return Reader(classes)


class Reader:
    """Reads pickles from sandboxes. A pickle may contain plain data and objects of `classes`. Thread-safe.

    Raises
    ------
    NotAdmitted
        If a pickle contains anything else. In this case no part of the pickle had an effect.
    """

    def __init__(self, classes: tuple[Any, ...] = ()) -> None:
        self.classes = {_key(each): each for each in classes}
        self._enums = [each for each in classes if isinstance(each, type) and issubclass(each, enum.Enum)]

    def load(self, data: bytes, buffers: Any = ()) -> Any:
        """Returns the object of a pickle."""
        try:
            keys = _core._check_pickle(data, self._uses)
        except ValueError as error:
            raise NotAdmitted(f"it is no pickle as a worker writes it: {error}") from None
        before = self._members()
        kind: Any = _Unpickler if keys <= collisions.KEYS_MAX else _CountingUnpickler
        try:
            unpickler = kind(self, data, buffers)
            value = unpickler.load()
            fault = defuse(value) if unpickler.has_exceptions else None
            if fault is not None:
                raise NotAdmitted(fault)
            return value
        finally:
            # Members of enums are the program's own objects, not copies. All changed members are restored before one is
            # reported. Attributes are compared by identity, because comparing their values would run their code.
            changed = [kind for member, kind, state in before if _restore(member, kind, state)]
            if changed:
                raise NotAdmitted(f"it changes {changed[0].__qualname__}, which is the program's")

    def _members(self) -> list[tuple[Any, type, dict[str, Any]]]:
        # Both tables are needed: members whose values have no hash are only in the table by name.
        tables = [table for kind in self._enums for table in (kind._value2member_map_, kind._member_map_)]
        members = {id(member): member for table in tables for member in table.values()}
        return [(member, type(member), dict(vars(member))) for member in members.values()]

    def _uses(self, module: str, name: str) -> int:
        return self.find(module, name)[1]

    def find(self, module: str, name: str) -> Use:
        """Returns the object of a name, and its allowed uses."""
        own = self.classes.get((module, name))
        if own is not None:
            if isinstance(own, type) and issubclass(own, BaseException):
                return own, names.OF_EXCEPTION
            return own, names.VALUE | names.CALL if own in self._enums else names.OF_CLASS
        if (module, name) == ("hotlease._known", "get"):
            return _known.get, names.CALL | names.CLASS
        found = names.find(module, name)
        if found is None:
            raise _not_admitted(f"{module}.{name}")
        return found


class _Names:
    """Base of the unpicklers: looks up names in a reader."""

    def __init__(self, reader: Reader, data: bytes, buffers: Any) -> None:
        super().__init__(io.BytesIO(data), buffers=buffers)  # type: ignore[call-arg]
        self._reader = reader
        # Sources of the classes and functions whose definitions are in this pickle.
        self._sources: dict[Name, Source] = {}
        # Whether the pickle names classes of exceptions.
        self.has_exceptions = False

    def find_class(self, module: str, name: str) -> Any:
        """Returns the object of a name."""
        found, uses = self._reader.find(module, name)
        self.has_exceptions |= isinstance(found, type) and issubclass(found, BaseException)
        return self._own if uses & names.CLASS else found

    def _own(self, name: Name, definitions: tuple[Definition, ...], *_: Any) -> Any:
        """Returns the program's own class or function for a class or function that was sent by value."""
        for each in definitions:
            self._sources[_checked(each[0])] = None if each[4] is None else (*_checked(each[4][:2]), each[4][2])
        source = self._sources.get(_checked(name))
        found = None
        if name[0] == "class":
            found = _known._class(name[1])
        if found is not None:
            key = _key(found)
        else:
            key = source[:2] if source is not None else (name[1], name[-1])
        own = self._reader.classes.get(key)
        if own is not None and (own is found or (found is None and _is_same(own, source))):
            self.has_exceptions |= isinstance(own, type) and issubclass(own, BaseException)
            return own
        shown = "a class or function that its task defined" if found is None else ".".join(_key(found))
        raise _not_admitted(shown if source is None else ".".join(map(str, source[:2])))


class _Unpickler(_Names, pickle.Unpickler):
    pass


class _CountingUnpickler(_Names, collisions.Unpickler):
    pass


def _checked(name: Any) -> Any:
    """Checks the name of a class or function, and returns it: hashing any other tuple may take for ever, or overflow
    the stack."""
    if type(name) is not tuple or not 1 <= len(name) <= _NAME_PARTS_MAX or not all(type(part) is str for part in name):
        raise NotAdmitted("it has a class or function without a name")
    return name


def _restore(member: Any, kind: type, state: dict[str, Any]) -> bool:
    """Restores class and attributes of a member of an enum. Returns whether they had changed."""
    now = vars(member)
    is_same = type(member) is kind and now.keys() == state.keys() and all(now[name] is value for name, value in state.items())
    if not is_same:
        object.__setattr__(member, "__class__", kind)
        object.__setattr__(member, "__dict__", dict(state))
    return not is_same


def _is_same(own: Any, source: Source) -> bool:
    # For objects without a known identifier: functions, and classes in checkpoints of an earlier run of the program.
    from hotlease import _source

    return source is None or _source.source(own) == source


def _key(of: Any) -> tuple[str, str]:
    return str(of.__module__), str(of.__qualname__)


def _not_admitted(what: str) -> NotAdmitted:
    what = what if len(what) <= _SHOWN_MAX else f"{what[:_SHOWN_MAX]}..."
    hint = " (an array of Python objects, or of a class of its own)" if what.startswith("numpy.") else ""
    return NotAdmitted(
        f"it contains {what!r}{hint}. What comes out of a sandbox is plain data, arrays, exceptions of Python, and objects of "
        "classes that the program names: ExecutorOptions(result_classes=[...]). With trust_results=True it may be anything, "
        "and its code runs with all rights of this program"
    )
