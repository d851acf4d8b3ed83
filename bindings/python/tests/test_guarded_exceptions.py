"""Exceptions from sandboxes: what the program and its terminal see of them."""

import collections
import datetime
import decimal
import pathlib
import pickle
import sys
import traceback

import pytest

import hotlease
from hotlease._guarded import reader, writer


class Refusal(Exception):
    def __init__(self, text, number):
        super().__init__(text, number)
        self.number = number


def test_an_exception_that_would_end_the_program_becomes_a_task_error():
    for exits in (SystemExit(0), KeyboardInterrupt(), GeneratorExit()):
        name = type(exits).__name__
        made = reader.read_exception(f"Traceback\n{name}: 0\n", writer.dumps(exits), "", ())
        assert type(made) is hotlease.TaskError and name in str(made) and "would end the program" in str(made)
    # As a value it is harmless.
    assert reader.read_result(writer.dumps(SystemExit(3)), [], "f", ()).code == 3


def test_what_is_shown_of_an_exception_has_no_control_characters():
    evil = "\x1b]0;title\x07\ta\nb\x9b31m"
    for raised in (
        ValueError(evil, 3, b"\x1b"),
        OSError(2, evil),
        ImportError(evil),
        SyntaxError(evil, ("a.py", 1, 1, evil)),
        UnicodeDecodeError("ascii", b"x", 0, 1, evil),
        Refusal(evil, 1),
    ):
        raised.__notes__ = [evil]
        made = reader.read_exception(f"Traceback {evil}", writer.dumps(raised), evil, (Refusal,))
        assert type(made) is type(raised)
        shown = "".join(traceback.format_exception(made))
        assert "\ufffd]0;title\ufffd" in shown and not {"\x1b", "\x07", "\x9b"} & set(shown), shown
    made = reader.read_exception(f"Traceback\n{evil}", pickle.dumps(1, 4), evil, ())
    assert type(made) is hotlease.TaskError and evil not in str(made)
    # Objects that show text as it is.
    within = ValueError("noted")
    within.__notes__ = [pathlib.PurePosixPath(evil)]
    for raised in (
        ValueError(ValueError(evil)),
        ValueError(pathlib.PurePosixPath(evil)),
        OSError(evil, "x"),
        UnicodeDecodeError(evil, b"x", 0, 1, "bad"),
        within,
    ):
        made = reader.read_exception(f"T\n{evil}", writer.dumps(raised), evil, ())
        shown = "".join(traceback.format_exception(made))
        assert not {"\x1b", "\x07", "\x9b"} & set(shown), shown


def test_an_exception_whose_text_has_no_end_comes_as_text():
    doubled, long = (), "x" * 1_000_000
    for _ in range(60):
        doubled = (doubled, doubled)
    for arguments in (doubled, [[long] * 1000] * 1000, {0: doubled}, ValueError(doubled)):
        made = reader.read_exception("T\nlast", writer.dumps(ValueError(arguments)), "", ())
        assert type(made) is hotlease.TaskError and "last" in str(made)
    made = reader.read_exception("T", writer.dumps(ValueError(list(range(10_000)), "y" * 100_000)), "", ())
    assert type(made) is ValueError and len(made.args[0]) == 10_000


class Fixed(Exception):
    """An exception with an attribute that cannot be set."""

    @property
    def reason(self):
        return "because"


def test_an_exception_keeps_attributes_that_cannot_be_set():
    made = reader.read_exception("T", writer.dumps(Fixed("boom")), "", (Fixed,))
    assert type(made) is Fixed and made.reason == "because" and made.args == ("boom",)


class Slotted:
    __slots__ = ("inner",)


class Holder:
    pass


def crafted(kind, arguments, state=None):
    """Pickle of an exception with attributes that its class would not accept."""

    class Crafted:
        def __reduce__(self):
            return (kind, arguments) if state is None else (kind, arguments, state)

    return writer.dumps(Crafted())


def test_a_decoding_error_names_a_place_in_its_text():
    # CPython before 3.12.8 reads the byte at that place without a check.
    for kind, text in ((UnicodeDecodeError, b"a"), (UnicodeEncodeError, "a")):
        for start, end in ((-(2**40), 1 - 2**40), (2**40, 2**40 + 1), (0, 5), (-1, 0)):
            data = crafted(kind, ("utf-8", text, start, end, "reason"))
            made = reader.read_exception("T\nlast", data, "", ())
            assert type(made) is hotlease.TaskError and "outside of its text" in str(made)
            within = pickle.dumps([{"key": (1, 2)}], 4)
            assert reader.read_result(within, [], "f", ()) == [{"key": (1, 2)}]
        state = crafted(kind, ("utf-8", text, 0, 1, "reason"), {"start": -(2**40), "end": 1 - 2**40})
        with pytest.raises(hotlease.TaskError, match="outside of its text"):
            reader.read_result(state, [], "f", ())
        good = kind("utf-8", text, 0, 1, "reason")
        assert str(reader.read_exception("T", writer.dumps(good), "", ())) == str(good)
    translated = crafted(UnicodeTranslateError, ("a", 5, 6, "reason"))
    assert type(reader.read_exception("T", translated, "", ())) is hotlease.TaskError


def test_exceptions_within_results_are_checked_wherever_they_are():
    holder, slotted = Holder(), Slotted()
    bad = UnicodeDecodeError("utf-8", b"a", 2**40, 2**40 + 1, "reason")
    holder.inner = slotted.inner = bad
    for value in ([bad], {"a": (bad,)}, collections.deque([bad]), ValueError(bad), holder, slotted, {1: [holder]}):
        with pytest.raises(hotlease.TaskError, match="outside of its text"):
            reader.read_result(writer.dumps(value), [], "f", (Holder, Slotted))


def test_no_module_is_imported_to_show_an_exception():
    name = "hotlease_test_never_imported"
    state = {"name_from": "x", "name": name}
    made = reader.read_exception("T", crafted(ImportError, ("text",), state), "", ())
    assert getattr(made, "name_from", None) is None and made.name == name
    traceback.format_exception(made)
    assert name not in sys.modules
    value = reader.read_result(crafted(AttributeError, ("text",), {"obj": {"a": 1}, "name": "b"}), [], "f", ())
    assert value.obj is None and value.name == "b"


def test_a_syntax_error_draws_no_endless_line():
    for place in ((("a.py", 1, 1, "x", 1, 10**12),), (("a.py", 1, -(10**12), "x"),), (("a.py", 1, 10**12, "x"),), ((3, 1, 1, "x"),)):
        made = reader.read_exception("T\nlast", crafted(SyntaxError, ("text", *place)), "", ())
        assert type(made) is hotlease.TaskError, place
    good = SyntaxError("text", ("a.py", 1, 2, "x y", 1, 3))
    assert reader.read_exception("T", writer.dumps(good), "", ()).offset == 2


def test_text_within_other_objects_is_counted():
    long = "x" * 40_000
    zone = datetime.timezone(datetime.timedelta(0), long)
    for value in (
        slice(long, long),
        pathlib.PurePosixPath(long),
        zone,
        datetime.datetime(2020, 1, 1, tzinfo=zone),
        decimal.Decimal("1" * 40_000),
    ):
        made = reader.read_exception("T\nlast", writer.dumps(ValueError([value] * 1000)), "", ())
        assert type(made) is hotlease.TaskError, type(value)
        assert type(reader.read_exception("T", writer.dumps(ValueError([value] * 2)), "", ())) is ValueError
    made = reader.read_exception("T\nlast", writer.dumps(ValueError(1 << 10_000_000)), "", ())
    assert type(made) is hotlease.TaskError


def test_arrays_in_exceptions_are_counted_by_what_is_shown_of_them():
    numpy = pytest.importorskip("numpy")
    made = reader.read_exception("T", writer.dumps(ValueError(numpy.zeros(1_000_000))), "", ())
    assert made.args[0].shape == (1_000_000,)
    for array in (numpy.zeros(900, "U4000"), numpy.zeros((2,) * 20, "i1")):
        made = reader.read_exception("T\nlast", writer.dumps(ValueError([array] * 10)), "", ())
        assert type(made) is hotlease.TaskError, array.dtype


def test_errors_of_the_reader_have_no_control_characters():
    evil = "\x1b]0;title\x07"

    class Named:
        def __reduce__(self):
            from hotlease._guarded import arrays

            return arrays.zone, ("/" + evil,)

    data = pickle.dumps(Named(), 4)
    with pytest.raises(hotlease.TaskError) as raised:
        reader.read_result(data, [], "f", ())
    shown = "".join(traceback.format_exception(raised.value))
    assert "\x1b" not in shown and "\x07" not in shown
    made = reader.read_exception("T\nlast", data, "", ())
    assert "\x1b" not in "".join(traceback.format_exception(made))


def test_exceptions_of_a_group_are_counted():
    if sys.version_info < (3, 11):
        pytest.skip("groups came with Python 3.11")
    group = ValueError("leaf")
    for _ in range(20):
        group = ExceptionGroup("g", [group] * 15)  # noqa: F821
    crafted_group = crafted(ExceptionGroup, ("g", [group] * 15), {"args": ()})  # noqa: F821
    made = reader.read_exception("T\nlast", crafted_group, "", ())
    assert type(made) is hotlease.TaskError and "too much" in str(made)
    small = ExceptionGroup("g", [ValueError("a"), KeyError("b")])  # noqa: F821
    made = reader.read_exception("T", writer.dumps(small), "", ())
    assert [str(each) for each in made.exceptions] == ["a", "'b'"]


def test_times_are_read_in_every_form():
    zone = datetime.timezone(datetime.timedelta(hours=2), "there")
    times = [
        datetime.date(1, 1, 1),
        datetime.date(9999, 12, 31),
        datetime.datetime(2026, 11, 29, 12, 34, 56, 789012),
        datetime.datetime(2026, 11, 29, 2, 30, fold=1, tzinfo=zone),
        datetime.time(23, 59, 59, 999999),
        datetime.time(1, 2, fold=1, tzinfo=zone),
    ]
    read = reader.read_result(writer.dumps(times), [], "f", ())
    assert read == times and [getattr(each, "fold", 0) for each in read] == [0, 0, 0, 1, 0, 1]
    assert read[3].tzname() == "there"


def test_records_name_a_bounded_number_of_new_loggers(monkeypatch):
    import logging

    from hotlease import _showing

    monkeypatch.setattr(_showing, "_NEW_NAMES_MAX", 3)
    monkeypatch.setattr(_showing, "_new_names", set())
    logging.getLogger("of_program")
    names = [_showing._known_name(name) for name in ("a.b", "of_program", "c", "c", "d", "e", "of_program.x", "f" * 600)]
    assert names == ["a.b", "of_program", "c", "c", "d", "root", "of_program", "root"]
    assert _showing._known_name("a.b") == "a.b"
    monkeypatch.setattr(_showing, "_new_names", set())
    assert _showing._known_name(".".join("x" * 1000)).count(".") == _showing._NAME_PARTS_MAX - 1
