"""Proxies of a manager of multiprocessing work in tasks: in arguments, in the program's globals, and inside other proxies."""

import multiprocessing
import os

import hotlease


def put(queue, value):
    queue.put(value)
    return os.getpid()


def put_into_global(value):
    shared.put(value)


def first_of(table):
    # The manager's server sends this proxy, without any key.
    return table["list"][0]


def read(*paths):
    return b"".join(open(path, "rb").read() for path in paths)


def begin(names):
    names.append("began")


if __name__ == "__main__":
    with multiprocessing.Manager() as manager:
        shared, names = manager.Queue(), manager.list()
        table = manager.dict(list=manager.list([7]))
        with hotlease.Executor(1, initializer=begin, initargs=(names,)) as executor:
            print(executor.submit(put, shared, 1).result() != os.getpid(), shared.get())
            executor.submit(put_into_global, 2).result()
            print(shared.get(), executor.submit(first_of, table).result(), list(names))
            print(executor.submit(lambda: shared).result().qsize())
            seen = executor.submit(read, "/proc/self/environ", "/proc/self/cmdline").result()
    key = bytes(multiprocessing.current_process().authkey)
    print(len(seen) > 100, key in seen)

# Prints:
# True 1
# 2 7 ['began']
# 0
# True False
