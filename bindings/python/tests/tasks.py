"""Functions that tests submit. They are sent by reference: workers import this module."""

import os
import pickle
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


def sleep_and_tell_pid(seconds):
    time.sleep(seconds)
    return os.getpid()


def wait_for(path):
    """Waits until a file exists."""
    while not os.path.exists(path):
        time.sleep(0.005)
    return path


def wait_until(path):
    """Waits until a file exists, if one is named."""
    return path is None or bool(wait_for(path))


def note_run(folder, number, seconds, data):
    """Records its run in the file `number` of a folder."""
    mark(os.path.join(folder, str(number)))
    time.sleep(seconds)
    return number, data


def mark(path):
    """Records a run: adds a byte to a file."""
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


def dawdle(path, gate):
    """Initializer that returns at once in the first of several workers; in the other workers it waits."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        wait_for(gate)


def get_state():
    return state


def state_and_pid(_):
    time.sleep(0.005)
    return state, os.getpid()


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


class Raw:
    """Object whose pickle has its bytes out of band, without their number, as in the documentation of pickle."""

    def __init__(self, data):
        self.data = bytes(data)

    def __reduce_ex__(self, protocol):
        return Raw, (pickle.PickleBuffer(self.data),)

    def __eq__(self, other):
        return self.data == other.data


def mark_and_fail(path, times):
    """Fails in the first `times` runs, then returns the number of runs."""
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
    """Makes an array of `size` bytes whose elements are `number`."""
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


def add_one_and_fail_once(array, path):
    array += 1
    if not os.path.exists(path):
        mark(path)
        raise OSError("the first time")
    return array


def keep(array):
    set_state(array)


def wait_and_keep(path, array):
    wait_for(path)
    keep(array)


def sleep_and(seconds, what):
    time.sleep(seconds)
    if what == "raise":
        raise ValueError("asked for")
    return "x" * 100_000


def mark_and_add(path, number):
    mark(path)
    return number


def place(array):
    """Returns the number of an array's memory, which is the same in every process, and the array's offset in the memory."""
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            words = line.split()
            begin, end = (int(each, 16) for each in words[0].split("-"))
            if begin <= address < end:
                return int(words[4]), int(words[2], 16) + address - begin
    return None


def place_of(array, *_):
    return place(array)


def increased(array):
    return array + 1


def mark_and_return_ones(path, count):
    mark(path)
    if os.path.getsize(path) == 1:
        os._exit(3)
    return ones(count)


def ones_or(size, what):
    if what == "raise":
        raise ValueError("x" * size)
    return ones(size // 8) if what == "array" else b"x" * size


def is_writable(array):
    return bool(array.flags.writeable)


def wait_for_and_return(path, array):
    wait_for(path)
    return array


def scale_and_fail_once(array, factor, path):
    array *= factor
    mark(path)
    if os.path.getsize(path) == 1:
        raise OSError("the first run")
    return array


def states(count):
    """Makes an array whose elements are the value that the initializer has set."""
    import numpy

    return numpy.full(count, 0.0 if state is None else float(state))


def states_like(array):
    array[:] = 0 if state is None else state
    return array


def first_sum(one, two):
    """Adds the second array to the first array in place, up to the shorter length."""
    one = one[: two.size]
    one += two[: one.size]
    return one


def mark_and_wait(path, gate):
    mark(path)
    return wait_for(gate)


def wait_and_die(gate):
    wait_for(gate)
    os._exit(3)


def die_if_there(path):
    if os.path.exists(path):
        os._exit(3)


def first(items):
    """Returns the first item; raises StopIteration if there is none."""
    return next(iter(items))


def put_into(array, at, value):
    """Writes to an array that is an argument."""
    array[at] = value


def put_into_copy_of(array, at, value):
    """Writes to an array that is an argument; returns a copy of its earlier content."""
    before = array.copy()
    array[at] = value
    return before


def sum_of(array):
    """Returns the sum as a number."""
    return float(array.sum())


def item(array, at):
    """Returns an element as a number."""
    return float(array[at])


def loaded(data):
    """Unpickles."""
    import pickle

    pickle.loads(data)


def interrupt():
    raise KeyboardInterrupt


class Exits:
    """Object that exits the process in which it is unpickled."""

    def __reduce__(self):
        return sys.exit, (1,)


class Interrupts:
    """Object that raises KeyboardInterrupt when its state is restored."""

    def __getstate__(self):
        return 1

    def __setstate__(self, state):
        interrupt()


class ExitsWhenPickled:
    def __reduce__(self):
        sys.exit(1)


def raise_with(way):
    raise ValueError(way())


def sends_interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    # Python handles the signal between two of these instructions.
    for _ in range(1000):
        pass


def sends_exit():
    signal.signal(signal.SIGTERM, exit_by_signal)
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass


def exit_by_signal(number, frame):
    sys.exit(3)


class Signals:
    """Object that sends a signal to the process in which it is unpickled."""

    def __init__(self, how):
        self.how = how

    def __reduce__(self):
        return self.how, ()


class MakesFolder:
    """Object that makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def returns_code(path):
    return [MakesFolder(path)]


def raises_code(path):
    raise ValueError(MakesFolder(path))


def returns_code_as_to_a_trusting_program(path):
    """Makes the worker treat its client as one that trusts results; then returns an object that runs code."""
    from hotlease import _core

    _core._is_guarded = lambda: False
    return [MakesFolder(path)]


def returns_place_of_file(path):
    """Returns an object that is pickled like an array mapped from a file, which is allowed only in arguments."""
    from hotlease import _mapped

    class Descriptor:
        def __reduce__(self):
            whole = (path, (os.stat("/").st_ino, 0), "r+", 0, 0)
            return _mapped.opened, (whole, type(self), 0, (0,), "u1", (1,), True)

    return Descriptor()


def returns_mapped():
    import tempfile

    import numpy

    with tempfile.TemporaryFile() as file:
        mapped = numpy.memmap(file, "i4", "w+", shape=(3,))
        mapped[:] = 1, 2, 3
        return mapped


def token():
    return os.urandom(8)


def fails_as_bash(status):
    """Raises the exception that Parsl raises for a bash app that ends with a given status."""
    from parsl.app.errors import BashExitFailure

    raise BashExitFailure("app", status)
