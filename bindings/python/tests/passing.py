"""Functions whose large results other tasks need, and probes for programs on several hosts. Workers import this
module."""

import os
import time

import numpy
import tasks

_MB = 1 << 20


def host(*_):
    return os.readlink("/proc/self/ns/net")


def passed():
    """Returns the number of bytes that this host's network interface has sent and received."""
    with open("/proc/self/net/dev") as interfaces:
        (words,) = (line.split()[1:] for line in interfaces if line.split()[0] == "eth0:")
    return int(words[0]) + int(words[8])


def made(megabytes, value, gate=None, path=None):
    """Makes an array; `path` gets a line for each run."""
    if gate:
        tasks.wait_for(gate)
    if path:
        with open(path, "a") as file:
            file.write(f"{host()} {os.getpid()}\n")
    return numpy.full(megabytes * _MB // 8, float(value))


def added(one, two):
    one += two
    return one


def added_on(one, two):
    return one + two, host()


def first_of(pair):
    return pair[0]


def increased(array):
    array += 1
    return array


def looked_at(array, *_):
    return float(array[0]), float(array[-1]), array.size, bool(array.flags.writeable)


def state():
    """Returns the open descriptors and resident bytes of this worker."""
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return os.getpid(), len(os.listdir("/proc/self/fd")), resident


def met(path, number):
    """Waits until two tasks run this function; returns the host."""
    tasks.mark(path)
    while os.path.getsize(path) < 2:
        pass
    return host()


def short():
    time.sleep(0.01)
    return os.getpid()
