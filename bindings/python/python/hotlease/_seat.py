"""A rank of a gang, in its worker."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NamedTuple

    class Seat(NamedTuple):
        """What a rank is told, with its arguments: no other process sees it."""

        name: str
        size: int
        rank: int
        rendezvous: str
        secret: bytes
        join_timeout: float


class Task:
    """A function as ranks run it. It is sent as the function would be, and has its name."""

    _hotlease_declared = (False, 0, None, False)
    __wrapped__: Callable[..., Any]

    def __init__(self, wrapped: Callable[..., Any]) -> None:
        functools.update_wrapper(self, wrapped)

    def __reduce__(self) -> tuple[Any, ...]:
        return Task, (self.__wrapped__,)

    def __call__(self, seat: Seat, /, *args: Any, **kwargs: Any) -> Any:
        """Runs it, with a communicator of all ranks as ``MPI.COMM_WORLD``."""
        from hotlease import MPI

        name, size, rank, rendezvous, secret, join_timeout = seat
        world = MPI.join(name, size, rendezvous=rendezvous, rank=rank, secret=secret, timeout=join_timeout)
        usual, MPI.COMM_WORLD = MPI.COMM_WORLD, world
        try:
            result = self.__wrapped__(*args, **kwargs)
            try:
                # Whoever is quick waits here for the others, however long they take, and not when it finishes.
                world.Barrier()
                world.Free()
            except MPI.Exception as error:
                # By the function itself, as programs of MPI end: MPI.Finalize.
                if error.kind != "Finished":
                    raise
            return result
        except BaseException:
            # The others are told at once.
            world._handle.end(True)
            raise
        finally:
            MPI.COMM_WORLD = usual
