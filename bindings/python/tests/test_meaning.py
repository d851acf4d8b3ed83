"""Keys of computations in `memo` and checkpoints: they depend on the meaning of code and arguments, not on their location."""

import os
import subprocess
import sys
import textwrap
from random import Random

import pytest
import tasks

from hotlease import _source

SEED = 71

MEANING = """
    import dataclasses, enum, functools, sys
    import hotlease

    rate = {rate}

    class Color(enum.Enum):
        RED = 1

    @dataclasses.dataclass(frozen=True)
    class P:
        x: int
        of: frozenset = frozenset()
        color: Color = Color.RED
        def scaled(self):
            return self.x * {factor}

    @dataclasses.dataclass
    class Settings:
        names: set
        by: dict

    def helper(n):
        return (lambda m: m * rate)(n)

    def work(tag, *args, **named):
        open("ran", "a").write(tag + "\\n")
        return tag, helper(1)

    words = "alpha beta gamma delta epsilon".split()
    calls = (
        ("int", 1), ("set", frozenset(words)), ("sets", [set(words), {{frozenset(words), 3}}]), ("enum", Color.RED),
        ("dataclass", P(1, frozenset(words))), ("nested", Settings(set(words), {{"a": P(2)}})), ("class", P),
        ("partial", functools.partial(helper, 2)), ("lambda", lambda n: n + P(1).x), ("method", P(3).scaled),
    )
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(checkpoint="kept", memo=True)) as executor:
        for tag, argument in calls:
            executor.submit(work, tag, argument).result()
        three = executor.submit(helper, 3)
        executor.submit(work, "future", {{"of": [three, P(1)]}}).result()
        executor.submit(work, "foreign", P(1), named=three).result()
"""


def test_a_checkpoint_knows_a_computation_by_what_it_means(platform, tmp_path):
    program = textwrap.dedent(MEANING)

    def ran(folder=tmp_path, before="", rate=2, factor=3):
        folder.mkdir(exist_ok=True)
        (tmp_path / "ran").write_text("")
        file = folder / "main.py"
        file.write_text(before + program.format(rate=rate, factor=factor))
        done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return (tmp_path / "ran").read_text().split()

    every = "int set sets enum dataclass nested class partial lambda method future foreign".split()
    assert ran() == every
    assert ran() == [], "equal arguments are the same computation, in any order of their sets"
    assert ran(before="# a comment\n\n") == [], "lines that move are no other code"
    assert ran(folder=tmp_path / "elsewhere") == [], "nor is a file that moves"
    of_class = "dataclass nested class lambda method future foreign".split()
    assert ran(factor=4) == of_class, "what uses a changed class is computed again"
    assert ran(rate=5) == every, "so is what uses a changed global"


def test_a_remembered_result_is_that_of_these_arguments(executor, tmp_path):
    np = pytest.importorskip("numpy")
    path = str(tmp_path / "ran")
    memo = executor.options(memo=True)
    pairs = [[1, 2], [2, 1], [1, np.arange(3)], [1, np.arange(4)], [1, np.arange(3.0)], [{1, 2}], [{1, 3}], [{1: 2}], [{2: 1}]]
    for _ in range(2):
        for pair in pairs:
            memo.submit(tasks.mark_and_return, path, pair).result(60)
    assert os.path.getsize(path) == len(pairs)
    one, two = executor.submit(tasks.add, 1, 0), executor.submit(tasks.add, 2, 0)
    assert (one.result(60), two.result(60)) == (1, 2)
    for futures in ([one, two], [two, one], [executor.submit(tasks.add, 3, 0)], [executor.submit(tasks.add, 4, 0)]):
        values = [future.result(60) for future in futures]
        assert memo.submit(tasks.mark_and_return, path, futures).result(60) == values, "futures count by their results"
    file = tmp_path / "data"
    mapped = np.memmap(file, dtype="f8", mode="w+", shape=(4,))
    sums = []
    for n in (1.0, 2.0):
        mapped[:] = n
        sums.append(float(memo.submit(np.sum, mapped).result(60)))
    assert sums == [4.0, 8.0], "the content of a file counts"


def test_functions_that_differ_in_their_constants_are_different_ones(executor):
    memo = executor.options(memo=True)
    # Written one after another, the constants of both functions have the same digits.
    functions = [lambda x: x * 1 + 23, lambda x: x * 12 + 3]
    assert [memo.submit(function, 2).result(60) for function in functions] == [25, 27]


def test_code_is_known_by_each_of_its_constants():
    random = Random(SEED)
    known = {}
    for _ in range(2000):
        constants = tuple(random.choice([1, 11, 111, 1.0, 11.5, True, "1", b"1", None, -1, "", "1, 1", (1, 1), (11,)]) for _ in range(3))
        text = "lambda x: [x" + "".join(f", x + {constant!r}" for constant in constants) + "]"
        meant = repr(constants)
        assert known.setdefault(_source.of_code(eval(text).__code__), meant) == meant, f"seed {SEED}"
    assert len(known) == len(set(known.values())) > 500


def test_buffers_are_known_by_their_lengths(executor, tmp_path):
    path = str(tmp_path / "ran")
    memo = executor.options(memo=True)
    for first, second in (("ab", "c"), ("a", "bc"), ("abc", ""), ("ab", "c")):
        pair = [tasks.Raw(first.encode()), tasks.Raw(second.encode())]
        assert memo.submit(tasks.mark_and_return, path, pair).result(60) == pair
    assert os.path.getsize(path) == 3


MODULE = """
import functools

def noted(name, value):
    open("ran", "a").write(name + "\\n")
    return value

def traced(function):
    @functools.wraps(function)
    def trace(*args):
        return function(*args)
    return trace

@traced
@traced
def wrapped(x):
    return noted("wrapped", x * {factor})

def plain(x):
    return noted("plain", x * {factor})

def given(function, x):
    return function(x)

class Model:
    def __init__(self, name):
        self.name = name
    def predict(self, x):
        return noted(self.name, x * {factor})

class Called(Model):
    def __call__(self, x):
        return noted(self.name, x * {factor})
"""
MODULE_USED = """
import functools, sys
import hotlease, used

with hotlease.Executor(1, checkpoint="kept", memo=True) as executor:
    calls = {
        "wrapped": lambda: executor.submit(used.wrapped, 2).result(),
        "plain": lambda: executor.submit(used.plain, 2).result(),
        "given": lambda: executor.submit(used.given, used.plain, 3).result(),
        "kept": lambda: executor.submit(used.given, function=used.plain, x=4).result(),
        "chunks": lambda: list(executor.map(used.plain, [5], chunksize=2))[0],
        "partial": lambda: executor.submit(functools.partial(used.plain, 6)).result(),
        "method": lambda: executor.submit(used.Model("method").predict, 7).result(),
        "called": lambda: executor.submit(used.Called("called"), 8).result(),
    }
    print([calls[name]() for name in sys.argv[1:]])
"""


def test_functions_of_a_module_are_known_by_their_code_however_they_are_called(platform, tmp_path):
    (tmp_path / "main.py").write_text(MODULE_USED)
    ways = "wrapped plain given kept chunks partial method called".split()
    runs = ["wrapped", *["plain"] * 5, "method", "called"]

    def results(factor, *ways):
        (tmp_path / "used.py").write_text(MODULE.format(factor=factor))
        (tmp_path / "ran").write_text("")
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "main.py", *ways]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        return eval(done.stdout), (tmp_path / "ran").read_text().split()

    # The second factor has more digits, because workers keep the module's compiled code: Python takes two versions of a file
    # with the same second and size for the same version.
    products = [factor * x for factor in (3, 5555) for x in (2, 2, 3, 4, 5, 6, 7, 8)]
    assert results(3, *ways) == (products[:8], runs)
    assert results(3, *reversed(ways)) == (products[7::-1], []), "in any order"
    assert results(5555, *ways) == (products[8:], runs), "changed code is other code"
