"""Functions that tests run on gangs. They are sent by reference: workers import this module."""

import os
import signal
import time

import hotlease
from hotlease import MPI, _seat


def ring():
    """Returns the rank before this rank, received in a message."""
    world = MPI.COMM_WORLD
    return world.sendrecv(world.rank, (world.rank + 1) % world.size, source=(world.rank - 1) % world.size)


def total(n, *, times=1):
    return MPI.COMM_WORLD.allreduce(n + MPI.COMM_WORLD.rank) * times


def where():
    return MPI.COMM_WORLD.rank, os.getpid(), os.readlink("/proc/self/ns/net")


def array_total(array):
    import numpy

    result = numpy.empty_like(array)
    MPI.COMM_WORLD.Allreduce(array, result)
    return result


def fail_at(rank, path):
    """Fails at one rank. The other ranks wait for it, and write the error that they get to a file."""
    try:
        # No rank fails before all ranks have joined: a rank that joined later would learn of the failure outside of this
        # function. A rank that still waits here when another rank fails learns of the failure here.
        MPI.COMM_WORLD.Barrier()
        if MPI.COMM_WORLD.rank == rank:
            raise ValueError(f"not on {rank}")
        MPI.COMM_WORLD.recv(source=rank)
    except MPI.Exception as error:
        with open(path, "w") as file:
            file.write(f"{error.kind} {error.rank}")
        raise


def fail_quietly_at(rank):
    """Fails at one rank. The other ranks never communicate."""
    if MPI.COMM_WORLD.rank == rank:
        raise ValueError(f"not on {rank}")
    time.sleep(600)


def die_at(rank):
    if MPI.COMM_WORLD.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    MPI.COMM_WORLD.Barrier()


def wait_without_end(path):
    """Waits without end, after all ranks have begun."""
    MPI.COMM_WORLD.Barrier()
    with open(path, "a"):
        pass
    MPI.COMM_WORLD.recv(source=MPI.COMM_WORLD.rank)


def leave_a_message():
    """Sends a message that no rank receives."""
    MPI.COMM_WORLD.send("stale", (MPI.COMM_WORLD.rank + 1) % MPI.COMM_WORLD.size)


def first_message():
    world = MPI.COMM_WORLD
    world.Barrier()
    world.send("fresh", (world.rank + 1) % world.size)
    return world.recv()


def finalize():
    """Calls `MPI.Finalize`, as MPI programs do."""
    rank = MPI.COMM_WORLD.rank
    MPI.Finalize()
    return rank


def say():
    print("here is", MPI.COMM_WORLD.rank)


def offered():
    """Returns whether the context's communicator is the world, and a result from it."""
    return hotlease.communicator() is MPI.COMM_WORLD, hotlease.communicator().allreduce(1)


def kept():
    """Returns the name of the communicator of which each call of this gang gets a duplicate."""
    return _seat._kept[2].name
