"""Functions that tests submit by reference: workers import this module."""

import os
import signal
import sys
import threading
import time


def add(a, b=0, *, c=0):
    return a + b + c


def concat(a, b):
    return a + b


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def wait_for(path):
    """Until a file is there."""
    while not os.path.exists(path):
        time.sleep(0.005)
    return path


def mark(path):
    """Says in a file that it ran."""
    with open(path, "a") as file:
        file.write("x")


def fail(text):
    raise ValueError(text)


class Unpicklable(Exception):
    def __init__(self, first, second):
        super().__init__("of two arguments, which its pickle does not know")
        self.lock = threading.Lock()


def fail_unpicklably():
    raise Unpicklable(1, 2)


def lock():
    return threading.Lock()


def die(status):
    print("last words", flush=True)
    os._exit(status)


def die_once(path):
    if not os.path.exists(path):
        mark(path)
        os._exit(3)
    return "survived"


def mark_and_die(path, *_):
    mark(path)
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    sys.exit(7)


def pid():
    return os.getpid()


state = None


def set_state(value):
    global state
    state = value


def get_state():
    return state


class Counter:
    def __init__(self):
        self.count = 0

    def next(self):
        self.count += 1
        return self.count

    def __call__(self):
        return self.next()


def total(numbers):
    return sum(numbers)


def listed(*args, **kwargs):
    return [*args, kwargs]


def mark_and_return(path, value):
    mark(path)
    return value


def mark_and_fail(path, times):
    """Fails so many times, then returns how often it ran."""
    mark(path)
    runs = os.path.getsize(path)
    if runs <= times:
        raise OSError(f"run {runs}")
    return runs


def append_to(path, value, *_):
    with open(path, "a") as file:
        file.write(f"{value}\n")
    return value


def ones(count):
    import numpy

    return numpy.ones(count)


def scaled(array, factor):
    array *= factor
    return array


class Holder:
    def __init__(self, value):
        self.value = value


def held(holder):
    return holder.value


def counted(number, size=16_000):
    """So many bytes of this number."""
    import numpy

    return numpy.full(size // 8, float(number))


def summed(array):
    return float(array.sum())


def die_of(array, status):
    os._exit(status)


def summed_slowly(array, seconds):
    time.sleep(seconds)
    return float(array.sum())


def add_one_and_die_once(array, path):
    array += 1
    die_once(path)
    return array


def sleep_and(seconds, what):
    time.sleep(seconds)
    if what == "raise":
        raise ValueError("asked for")
    return "x" * 100_000


def mark_and_add(path, number):
    mark(path)
    return number
