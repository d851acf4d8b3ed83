"""Rank of a gang: the code that runs in its worker."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NamedTuple, Optional

    from hotlease.MPI import Intracomm

    class Seat(NamedTuple):
        """Data that a rank gets with its arguments, and that is sent to no other process."""

        gang: str
        # The other fields describe the communicator to join for this call, if there is none from the previous call.
        name: str
        size: int
        rank: int
        rendezvous: str
        secret: bytes
        join_timeout: float


class Task:
    """A function in the form that ranks run. It is sent like the function itself, and has the function's name."""

    _hotlease_declared = (False, 0, None, False)
    __wrapped__: Callable[..., Any]

    def __init__(self, wrapped: Callable[..., Any]) -> None:
        functools.update_wrapper(self, wrapped)

    def __reduce__(self) -> tuple[Any, ...]:
        return Task, (self.__wrapped__,)

    def __call__(self, seat: Seat, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the function, with a communicator of all ranks as ``MPI.COMM_WORLD``."""
        global _world
        from hotlease import MPI

        world = _begun(seat)
        usual, MPI.COMM_WORLD, _world = MPI.COMM_WORLD, world, world
        try:
            result = self.__wrapped__(*args, **kwargs)
            try:
                # A rank that ends early waits here for the other ranks, without a time limit: messages for it are
                # received until then.
                world.Barrier()
                world.Free()
            except MPI.Exception as error:
                # The function has finished MPI itself, as MPI programs do with MPI.Finalize.
                if error.kind != "Finished":
                    raise
            return result
        except BaseException:
            # Tells the other ranks at once.
            world._handle.end(True)
            _give_up()
            raise
        finally:
            MPI.COMM_WORLD, _world = usual, None


# Communicator of the running call, if the call is a gang's.
_world: Optional[Intracomm] = None
# State of the previous call: its gang, the rank of this process, and the communicator that was duplicated.
_kept: Optional[tuple[str, int, Intracomm]] = None


def _begun(seat: Seat) -> Intracomm:
    """Returns a communicator for a call: a duplicate of the communicator that is kept. `Dup` returns only when all ranks
    have started, so that no rank ends before each rank has its worker. If a member was lost since the previous call, all
    ranks get an error here, and join anew.
    """
    global _kept
    from hotlease import MPI

    gang, name, size, rank, rendezvous, secret, join_timeout = seat
    if _kept is not None:
        if _kept[:2] == (gang, rank):
            try:
                return _kept[2].Dup()
            except MPI.Exception:
                pass
        _give_up()
    kept = MPI.join(name, size, rendezvous=rendezvous, rank=rank, secret=secret, timeout=join_timeout)
    _kept = gang, rank, kept
    try:
        return kept.Dup()
    except BaseException:
        _give_up()
        raise


def _give_up() -> None:
    global _kept
    if _kept is not None:
        (_, _, kept), _kept = _kept, None
        kept._handle.end(True)


def communicator() -> Intracomm:
    """Returns the communicator of the ranks that run this function on a gang: the function's ``MPI.COMM_WORLD``.

    Raises
    ------
    RuntimeError
        In a function that runs alone, and outside of functions.
    """
    if _world is None:
        raise RuntimeError(
            "no ranks run here, so there is no communicator: call the function on a gang (hotlease.Gang.run, hotlease.spmd); "
            "processes that were started together have MPI.COMM_WORLD"
        )
    return _world
