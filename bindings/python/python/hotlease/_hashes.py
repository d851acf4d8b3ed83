"""`blake2b` without `hashlib`, whose import loads OpenSSL and would delay a program's first result by some milliseconds."""

from __future__ import annotations

try:
    from _blake2 import blake2b  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    # Not every implementation of Python has `_blake2`.
    from hashlib import blake2b

__all__ = ["blake2b"]
