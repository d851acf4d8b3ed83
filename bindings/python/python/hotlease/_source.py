"""Hashes of code, without the place where it stands."""

from __future__ import annotations

import hashlib
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hotlease._known import Source

_BYTES = 16
# Attributes of classes that say where they stand, or that Python makes of the others.
UNIMPORTANT = frozenset(
    "__dict__ __weakref__ __module__ __qualname__ __doc__ __firstlineno__ __static_attributes__ __abstractmethods__ _abc_impl "
    "__annotations_cache__ __annotate_func__ __dataclass_fields__ __dataclass_params__".split()
)


def source(object: Any) -> Source:
    """Returns module, qualified name and a hash of the code of a function or class."""
    hasher = hashlib.blake2b(digest_size=_BYTES)
    if isinstance(object, types.FunctionType):
        _add(hasher, object.__code__)
    else:
        for name, value in sorted(vars(object).items()):
            if name not in UNIMPORTANT:
                hasher.update(name.encode())
                for code in _codes(value):
                    _add(hasher, code)
    return str(object.__module__), object.__qualname__, hasher.digest()


def of_code(code: types.CodeType) -> bytes:
    """Hashes code."""
    hasher = hashlib.blake2b(digest_size=_BYTES)
    _add(hasher, code)
    return hasher.digest()


def _codes(value: Any) -> Iterator[types.CodeType]:
    """Yields the code of an attribute of a class."""
    if isinstance(value, property):
        parts = [value.fget, value.fset, value.fdel]
    else:
        parts = [value, getattr(value, "__func__", None), getattr(value, "func", None)]
    for part in parts:
        code = getattr(part, "__code__", None)
        if isinstance(code, types.CodeType):
            yield code


def _add(hasher: Any, code: types.CodeType) -> None:
    hasher.update(code.co_code)
    hasher.update(getattr(code, "co_exceptiontable", b""))
    shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    hasher.update(repr((shape, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add(hasher, constant)
        elif isinstance(constant, frozenset):
            hasher.update(repr(sorted(map(repr, constant))).encode())
        else:
            hasher.update(repr(constant).encode())
