"""Exceptions from sandboxes: what the program and its terminal see of them."""

import pathlib
import pickle
import traceback

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
