"""Values are unchanged, to the bit: as arguments, as results, as results from sandboxes, and as results of `memo`."""

import collections
import enum
import math
import struct
from random import Random

import pytest

from hotlease._guarded import reader, writer

SEED = 29


class Number(int):
    pass


class Real(float):
    pass


class Text(str):
    pass


class Data(bytes):
    pass


class Level(enum.IntEnum):
    LOW = 1


Pair = collections.namedtuple("Pair", "one two")
OWN = (Number, Real, Text, Data, Level, Pair)


def described(value):
    """Describes a value with details that equality and printing hide: types of all parts, bits, the order of keys."""
    kind = type(value).__name__
    if isinstance(value, float):
        return kind, struct.pack("<d", value).hex()
    if isinstance(value, complex):
        return kind, struct.pack("<2d", value.real, value.imag).hex()
    if isinstance(value, int):
        return kind, hex(value)
    if isinstance(value, str):
        return kind, value.encode("utf-32-le", "surrogatepass").hex()
    if isinstance(value, (bytes, bytearray)):
        return kind, value.hex()
    if isinstance(value, dict):
        return kind, [(described(key), described(each)) for key, each in value.items()]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(repr(described(each)) for each in value)
    if isinstance(value, (list, tuple)):
        return kind, [described(each) for each in value]
    return kind, repr(value)


def described_call(*args, **kwargs):
    return described(args), described(kwargs)


def same(value):
    return value


def nan(payload):
    """Returns a NaN with a payload of given bits."""
    return struct.unpack("<d", struct.pack("<Q", 0x7FF8 << 48 | payload))[0]


INTEGERS = sorted({sign * (1 << bits) + near for bits in (0, 7, 8, 15, 31, 53, 61, 63, 64, 65, 200) for sign in (1, -1) for near in (-2, -1, 0, 1)})
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.1, 5e-324, -5e-324, 2.0**53, 1.7976931348623157e308, math.inf, -math.inf, nan(0), nan(7), -nan(7)]
LENGTHS = [0, 1, 2, 254, 255, 256, 257, 8000, 8128, 9000, 65535, 65536]
# Values that may be equal to each other, but are not the same.
ALIKE = [
    0, False, 0.0, -0.0, 0j, 1, True, 1.0, 1 + 0j, Number(1), Real(1), Level.LOW, "1", Text("1"), b"1", Data(b"1"), bytearray(b"1"),
    (1,), (True,), (1.0,), [1], [True], Pair(1, 2), (1, 2), {1: 0}, {True: 0}, {1.0: 0}, {1: False}, {Number(1): 0}, {Level.LOW: 0},
    {1}, {True}, {1.0}, frozenset([1]), frozenset([True]), {0.0}, {-0.0}, {(1,)}, {(True,)}, {1: {1}}, {1: {True}}, {"a": 1, "b": 2},
    {"b": 2, "a": 1}, collections.OrderedDict(a=1, b=2), collections.Counter(a=1, b=2), "e\u0301", "\u00e9", "", b"", (), [], {}, set(),
    None, (None,), nan(0), nan(7), 2**53, 2.0**53, 2**63, -(2**63), 2**64, "1, 1", (1, 1), ("1", "1"), ("1, 1",),
]  # fmt: skip


def samples(random, count):
    """Returns values of all kinds, near the bounds at which their encoding changes."""

    def text():
        alphabet = random.choice(["ab", "\0\x7f\x80", "\u00e9e\u0301", "\ud800\udfff", "\U0001f600a", "\u2028\n\r"])
        return "".join(random.choices(alphabet, k=random.choice(LENGTHS[:7] if random.random() < 0.95 else LENGTHS)))

    def atom():
        kind = random.randrange(12)
        if kind < 3:
            return random.choice(INTEGERS) if random.random() < 0.7 else random.getrandbits(random.randrange(1, 130)) - (1 << 64)
        if kind < 5:
            return random.choice(FLOATS) if random.random() < 0.7 else struct.unpack("<d", random.randbytes(8))[0]
        if kind < 7:
            return text()
        if kind == 7:
            return random.randbytes(random.choice(LENGTHS[:7]))
        if kind == 8:
            return random.choice([Number(random.choice(INTEGERS)), Real(random.choice(FLOATS)), Text(text()), Data(b"x"), Level.LOW])
        return random.choice([None, True, False, bytearray(b"b"), 1 + 2j, ...])

    def key():
        made = atom()
        return bytes(made) if isinstance(made, bytearray) else made

    def value(depth):
        kind = random.randrange(10)
        if depth == 0 or kind < 4:
            return atom()
        size = random.randrange(4)
        if kind < 7:
            return tuple(value(depth - 1) for _ in range(size))
        if kind == 7:
            return [value(depth - 1) for _ in range(size)]
        if kind == 8:
            return {key(): value(depth - 1) for _ in range(size)}
        return random.choice([set, frozenset])(key() for _ in range(size))

    made = [value(random.randrange(5)) for _ in range(count)]
    for depth in range(14, 20):
        nested = random.choice(ALIKE)
        for _ in range(depth):
            nested = (nested,)
        made.append(nested)
    return made + ALIKE + INTEGERS + FLOATS + ["x" * length for length in LENGTHS] + [(None,) * length for length in LENGTHS]


def test_arguments_and_results_are_what_was_given(executor):
    values = samples(Random(SEED), 1500)
    for value, there, back in zip(values, executor.map(described, values), executor.map(same, values)):
        assert there == described(value), f"seed {SEED}: a worker got another value"
        assert described(back) == described(value), f"seed {SEED}: another value came back"


def test_several_arguments_and_their_names_are_what_was_given(executor):
    random = Random(SEED)
    values = samples(random, 400)
    names = ["a", "b", "\u540d\u524d", "a b", "", "class", "\ud800"]
    for _ in range(400):
        args = random.choices(values, k=random.randrange(4))
        kwargs = {name: random.choice(values) for name in random.sample(names, random.randrange(4))}
        assert executor.submit(described_call, *args, **kwargs).result(60) == described_call(*args, **kwargs), f"seed {SEED}"


def test_results_of_tasks_are_arguments_as_they_are(executor):
    for value in samples(Random(SEED), 100):
        one = executor.submit(same, value)
        assert executor.submit(described, one).result(60) == described(value), f"seed {SEED}"
        assert executor.submit(described, [one, {"of": one}]).result(60) == described([value, {"of": value}]), f"seed {SEED}"


def test_results_from_sandboxes_are_what_the_task_returned():
    for value in samples(Random(SEED), 1500):
        assert described(reader.read_result(writer.dumps(value), [], "made", OWN)) == described(value), f"seed {SEED}"


def test_a_remembered_result_is_never_that_of_an_equal_value(executor):
    numpy = pytest.importorskip("numpy")
    kinds = ["i4", "i8", "f4", "f8", "?", "S1", "U1", ">i4", "M8[s]", "M8[D]"]
    arrays = [*(numpy.ones(1, kind) if kind[0] != "M" else numpy.zeros(1, kind) for kind in kinds), numpy.ones((1, 1)), numpy.ones(2)]
    scalars = [array[0] for array in arrays] + [numpy.array(1), numpy.array(1.0)]
    layouts = [numpy.arange(6).reshape(2, 3), numpy.arange(6).reshape(3, 2), numpy.arange(6).reshape(3, 2).T, numpy.arange(6)]
    memo = executor.options(memo=True)

    def shown(value):
        if isinstance(value, (numpy.ndarray, numpy.generic)):
            return type(value).__name__, value.dtype.str, value.shape, value.tolist()
        return described(value)

    values = ALIKE + samples(Random(SEED), 300) + arrays + scalars + layouts
    for _ in range(2):
        for value in values:
            for wrapped in (value, [value]):
                got = memo.submit(same, wrapped).result(60)
                got, given = (got[0], wrapped[0]) if wrapped is not value else (got, value)
                assert shown(got) == shown(given), f"seed {SEED}: {value!r:.100}"
