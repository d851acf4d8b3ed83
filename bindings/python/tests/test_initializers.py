"""Initializers: arguments that are sent by value, and data that initializers leave for tasks."""

import pytest

import hotlease

_PROGRAM = """\
import functools, os, sys
import hotlease

G = None
H = "unset"

def init(value):
    global G
    G = value

def read():
    return G

"""


@pytest.mark.parametrize(
    ("initializer", "arguments", "expected"),
    [
        ("init", "(5,)", "5"),
        ("functools.partial(init, 6)", "()", "6"),
        ("hotlease.function(init)", "(7,)", "7"),
        ("lambda value: init(value)", "(8,)", "8"),
        ("Setter(9)", "()", "9"),
        ("Setter(0).set", "(10,)", "10"),
        ("init", "(Point(11),)", "Point(11)"),
        ("init", "(lambda: 12,)", "12"),
    ],
)
def test_globals_of_the_program_that_an_initializer_sets_are_those_of_tasks(platform, run, initializer, arguments, expected):
    done = run(
        _PROGRAM
        + f"""
class Point:
    def __init__(self, x):
        self.x = x
    def __repr__(self):
        return f"Point({{self.x}})"

class Setter:
    def __init__(self, value):
        self.value = value
    def __call__(self):
        init(self.value)
    def set(self, value):
        init(value)

def shown():
    return repr(G() if callable(G) else G), H

with hotlease.Executor(1, initializer={initializer}, initargs={arguments}) as executor:
    print(executor.submit(shown).result(60), executor.submit(lambda: shown()).result(60), G)
    # A global that the initializer does not set is the program's, as it is now.
    H = "set"
    print(executor.submit(shown).result(60))
"""
    )
    once = repr((expected, "unset"))
    assert done.stdout.splitlines() == [f"{once} {once} None", repr((expected, "set"))], done.stdout + done.stderr


def test_each_worker_is_prepared_and_so_is_the_next_one(platform, run):
    done = run(
        _PROGRAM
        + """
with hotlease.Executor(initializer=init, initargs=({"n": 1},)) as executor:
    print(set(map(repr, executor.map(lambda _: read(), range(20)))))
    try:
        executor.submit(os._exit, 3).result(60)
    except hotlease.WorkerDied:
        pass
    print(set(map(repr, executor.map(lambda _: read(), range(20)))))
"""
    )
    assert done.stdout.splitlines() == ["""{"{'n': 1}"}"""] * 2, done.stdout + done.stderr


def test_functions_in_results_use_the_globals_of_the_process_that_calls_them(platform, run):
    done = run(
        _PROGRAM
        + """
def made():
    def add(n):
        return n + G
    return add

with hotlease.Executor(1, initializer=init, initargs=(5,)) as executor:
    add = executor.submit(made).result(60)
    print(executor.submit(add, 2).result(60), G)
    G = 10
    print(add(1))
"""
    )
    assert done.stdout.split() == ["7", "None", "11"], done.stdout + done.stderr


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_an_initializer_may_keep_its_arguments_of_any_size(platform, run, size):
    pytest.importorskip("numpy")
    done = run(
        _PROGRAM
        + f"""
import numpy
import tasks

def total():
    return float(G.sum()), G.flags.writeable

with hotlease.Executor(1, initializer=init, initargs=(numpy.ones({size}),)) as executor:
    print([executor.submit(total).result(60) for _ in range(3)])
with hotlease.Executor(1, initializer=tasks.set_state, initargs=(numpy.ones({size}),)) as executor:
    print([executor.submit(len, numpy.ones(3)).result(60) for _ in range(3)])
"""
    )
    assert done.stdout.splitlines() == [repr([(float(size), True)] * 3), "[3, 3, 3]"], done.stdout + done.stderr


def test_a_future_is_no_argument_of_an_initializer(executor):
    with pytest.raises(TypeError, match="future"):
        hotlease.Executor(1, initializer=print, initargs=(executor.submit(abs, -1),))
