"""`blake2b` without `hashlib`, whose import loads OpenSSL: some milliseconds of a program's first result."""

from __future__ import annotations

try:
    from _blake2 import blake2b  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    # Another implementation of Python.
    from hashlib import blake2b

__all__ = ["blake2b"]
