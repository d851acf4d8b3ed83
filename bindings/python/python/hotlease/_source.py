"""Hashes of code that do not depend on where the code is defined."""

from __future__ import annotations

import types

from hotlease._hashes import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hotlease._known import Source

_BYTES = 16
# Attributes that say where a class is defined, or that Python derives from other attributes.
UNIMPORTANT = frozenset(
    "__dict__ __weakref__ __module__ __qualname__ __doc__ __firstlineno__ __static_attributes__ __abstractmethods__ _abc_impl "
    "__annotations_cache__ __annotate_func__ __dataclass_fields__ __dataclass_params__".split()
)


def source(object: Any) -> Source:
    """Returns module, qualified name and a hash of the code of a function or class."""
    its = of_code(object.__code__) if isinstance(object, types.FunctionType) else of_class(object)
    return str(object.__module__), object.__qualname__, its


def of_class(kind: Any) -> bytes:
    """Hashes the code of a class."""
    parts = []
    for name, value in sorted(vars(kind).items()):
        if name not in UNIMPORTANT:
            parts += [name.encode(), *map(of_code, _codes(value))]
    return _hash(parts)


def of_code(code: types.CodeType) -> bytes:
    """Hashes code."""
    shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    parts = [code.co_code, getattr(code, "co_exceptiontable", b""), repr((shape, *names)).encode()]
    return _hash([*parts, *map(_of_constant, code.co_consts)])


def _of_constant(constant: Any) -> bytes:
    if isinstance(constant, types.CodeType):
        return of_code(constant)
    if isinstance(constant, frozenset):
        return repr(sorted(map(repr, constant))).encode()
    return repr(constant).encode()


def _hash(parts: list[bytes]) -> bytes:
    """Hashes parts, each with its length, so that the constants 1 and 23 differ from 12 and 3."""
    hasher = blake2b(digest_size=_BYTES)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def _codes(value: Any) -> Iterator[types.CodeType]:
    """Yields the code objects of an attribute of a class."""
    if isinstance(value, property):
        parts = [value.fget, value.fset, value.fdel]
    else:
        parts = [value, getattr(value, "__func__", None), getattr(value, "func", None)]
    for part in parts:
        code = getattr(part, "__code__", None)
        if isinstance(code, types.CodeType):
            yield code
