"""Functions of the tests' tasks."""

import os
import pickle
import signal
import sys
import time

import hotlease

kept = []


def echo(*args, **kwargs):
    return (args, tuple(kwargs.items()))


def pid():
    return os.getpid()


def fails():
    raise KeyError("the key that is missing")


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("not this one")


def fails_unpicklably():
    raise Unpicklable("but it has a text")


def look(buffer):
    view = memoryview(buffer)
    told = (type(buffer).__name__, view.readonly, view.nbytes, sum(view[:: 1 << 12]))
    if not view.readonly:
        view[0] = 99
    return told


def keeps(buffer):
    kept.append(buffer)


def keeps_in_a_cycle(buffer):
    cycle = [buffer]
    cycle.append(cycle)


def large(length):
    return pickle.PickleBuffer(bytearray(b"x" * (length << 10)))


def generator():
    return (number for number in range(3))


def prints_and(how):
    print("some of the output\nthe last line")
    if how == "_exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    sys.exit(4)


def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    return "still here"


def forks():
    child = os.fork()
    if child == 0:
        return "the child"
    _, status = os.waitpid(child, 0)
    return "the parent", os.waitstatus_to_exitcode(status)


def cancelled_in_time():
    assert hotlease.deadline() > time.monotonic() and not hotlease.cancelled()
    # No pause: a function that does not return soon after the flag is set loses its worker.
    while not hotlease.cancelled():
        pass


def outside():
    return (hotlease.deadline(), hotlease.cancelled(), os.environ.get("HOTLEASE_PYTHON_EXPECTED"))


def prints(text):
    print(text)
    print("and more", end="", file=sys.stderr)
    return 3


def summed(buffer):
    return sum(memoryview(buffer)[:: 1 << 12])


def very_large(mebibytes):
    return pickle.PickleBuffer(bytearray(mebibytes << 20))
