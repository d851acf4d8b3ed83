"""Functions that print and log: workers import this module."""

import logging
import os
import sys
import threading


def say(*texts, end="\n", then=None):
    for text in texts:
        print(text, end=end)
    return then


def say_to_both(count):
    for number in range(count):
        print("out", number)
        print("err", number, file=sys.stderr)


def say_bytes(data):
    sys.stdout.buffer.write(data)
    return len(data)


def say_and_fail(text):
    print(text)
    raise ValueError("after it")


def say_in_threads(threads, lines):
    def talk(thread):
        for line in range(lines):
            print("thread", thread, end=" ")
            print("line", line)

    running = [threading.Thread(target=talk, args=(thread,)) for thread in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def say_and_return(text, *values):
    print(text)
    return sum(values)


def say_and_return_bytes(text, size):
    print(text)
    return b"x" * size


def say_and_return_array(text, count):
    import numpy

    print(text)
    return numpy.arange(float(count))


def say_and_change(array, text):
    """Changes its argument in place and returns it."""
    print(text)
    array += 1
    return array


def say_much(lines):
    """Prints lines of 100 bytes."""
    for line in range(lines):
        print(f"{line:08} {'x' * 90}")
    return lines


def say_much_and_fail(lines, length):
    say_much(lines)
    raise ValueError("z" * (length + 1))


def say_and_mark(path):
    print("marked")
    with open(path, "a") as file:
        file.write("x")


def say_at_once(size):
    print("x" * size)


def flush_in_a_line():
    for number in range(3):
        print(number, end="", flush=True)


def say_twice(text):
    print(text)
    return text + text


def say_what_is(text):
    sys.stdout.write(text)


class Odd:
    """An object that does not pickle."""

    def __init__(self):
        self.lock = threading.Lock()

    def __str__(self):
        return "odd"

    def __repr__(self):
        return "<odd>"


def log_levels(name):
    logger = logging.getLogger(name)
    logger.debug("debug %d", 1)
    logger.info("info %s", Odd())
    logger.warning("100 %", extra={"weight": 2.5, "what": Odd(), "worker": "mine"})
    logger.log(35, "between")
    try:
        raise KeyError("missing")
    except KeyError:
        logger.exception("it went wrong")


def warn(name, text):
    logging.getLogger(name).warning("%s", text)


def log_wrongly():
    logging.getLogger("wrong").warning("%d", "no number")


def log_much(records):
    for number in range(records):
        logging.getLogger("much").warning("record %d %s", number, "x" * 100)


def log_oddly():
    logging.getLogger("odd \udc80").warning("a lone one: \udc80, and much: %s", "x" * 100_000)


def configure_and_log():
    logging.basicConfig(level=logging.DEBUG, format="configured: %(message)s")
    logging.getLogger("mine").debug("by its own hand")


def say_log_and_die(text):
    print(text)
    logging.getLogger("last").warning("words")
    os._exit(4)


def fork_and_say():
    child = os.fork()
    print("the child" if child == 0 else "the parent")
    if child == 0:
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)


def close_output():
    sys.stdout.close()


def stream_facts():
    import io

    out = sys.stdout
    return out.fileno(), out.encoding, out.isatty(), out.writable(), isinstance(out.buffer, io.BufferedIOBase), out.name


def square(n):
    print("square of", n)
    return n * n
