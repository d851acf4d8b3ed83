"""Function calls on leased cores, with microseconds of overhead."""

from hotlease._core import Error, __version__

__all__ = ["Error", "__version__"]
