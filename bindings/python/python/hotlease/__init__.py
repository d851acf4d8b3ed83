"""Function calls on leased cores, with microseconds of overhead."""

from hotlease._core import Error, __version__, cancelled, deadline

__all__ = ["Error", "__version__", "cancelled", "deadline"]
