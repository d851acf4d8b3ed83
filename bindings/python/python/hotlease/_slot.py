"""Main program of a Python worker: started by an agent, never imported by programs.

`main` checks that this interpreter matches the client's interpreter, and enters the loop in the extension module, which
calls `load`, `dump` and `describe` for pickles.
"""

import os
import pickle
import sys
import time

from hotlease import _core, _importing, _known, _modules, _versions

_EXPECTED = "HOTLEASE_PYTHON_EXPECTED"
_PATH = "HOTLEASE_PYTHON_PATH"
_OWN_PATH = "HOTLEASE_PYTHON_OWN_PATH"
_SPARE = "HOTLEASE_PYTHON_SPARE"
_ZYGOTE = "HOTLEASE_PYTHON_ZYGOTE"
_IMPORTS = "HOTLEASE_PYTHON_IMPORTS"
_OUTPUT = "HOTLEASE_PYTHON_OUTPUT"
_TASKS_MAX = "HOTLEASE_PYTHON_TASKS_MAX"
_TEXT_MAX = 64 * 1024

load = pickle.loads


def dump(value):
    """Returns the pickle of a result, and its out-of-band buffers."""
    buffers = []
    if _core._is_guarded():
        return _guarded_writer().dumps(value, buffers), buffers
    try:
        return _dump_by_name(value, buffers.append), buffers
    except Exception:
        # The value contains functions or classes of the client's __main__, for example.
        buffers = []
        try:
            return _dump_by_value(value, buffers.append), buffers
        except Exception:
            pass
        raise


def _dump_by_name(value, callback=None):
    """Pickles a value; fails if it has functions or classes of the client's __main__, which are sent by value."""
    before = _known.main_lookups
    data = pickle.dumps(value, 5, buffer_callback=callback)
    if _known.main_lookups != before:
        raise pickle.PicklingError("objects of __main__ are sent by value")
    return data


def _dump_by_value(value, callback=None):
    from hotlease import _by_value

    return _by_value.dumps(value, callback, is_current=False)


def _guarded_writer():
    from hotlease._guarded import writer

    return writer


def describe(error):
    """Describes an exception: its traceback, its pickle or None, and `type: message`; all bytes."""
    import traceback

    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        text = _cut("".join(lines))
    except Exception:
        text = ""
    try:
        pickled = _dumped(error)
    except Exception:
        pickled = None
    try:
        message = _cut(f"{type(error).__qualname__}: {error}")
    except Exception:
        message = type(error).__qualname__
    return text.encode(errors="replace"), pickled, message.encode(errors="replace")


def _dumped(error):
    """Returns the pickle of an exception, with everything that it refers to."""
    if _core._is_guarded():
        return _guarded_writer().dumps(error)
    try:
        return _dump_by_name(error)
    except Exception:
        return _dump_by_value(error)


def _cut(text):
    if len(text) <= _TEXT_MAX:
        return text
    half = _TEXT_MAX // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"


def _mismatch(expected):
    """Returns why this interpreter cannot run the client's tasks; None if it can."""
    versions = dict(word.partition("=")[::2] for word in expected.split())
    here = ".".join(map(str, sys.version_info[:3]))
    theirs = versions.get("python", "")
    advice = f"the worker's interpreter is {sys.executable}; name one like the client's for the lease"
    if theirs and theirs.split(".")[:2] != here.split(".")[:2]:
        return f"the client runs Python {theirs}, the worker Python {here}: {advice}"
    theirs = versions.get("hotlease", "")
    if theirs and theirs != _core.__version__:
        return f"the client has hotlease {theirs}, the worker hotlease {_core.__version__}: {advice}"
    theirs = versions.get("cloudpickle", "")
    ours = _versions.installed("cloudpickle") if theirs else ""
    if theirs != ours:
        return f"the client has cloudpickle {theirs}, the worker {ours or 'has none'}: {advice}"
    return None


def main():
    """Becomes a worker; never returns."""
    # Start time, set by the code that an agent passes to this interpreter (`-c`).
    own = vars(sys.modules["__main__"])
    begun = own.pop("begun", 0)
    own["__getattr__"] = _known.main_attribute
    is_zygote = bool(os.environ.pop(_ZYGOTE, ""))
    imports = os.environ.pop(_IMPORTS, "").split()
    tasks_max = int(os.environ.pop(_TASKS_MAX, "0"))
    try:
        # Done before any code of the tenant is imported.
        begins = _importing.begun() if is_zygote else (_core.Slot(),)
    except OSError as error:
        sys.exit(f"hotlease._slot: {error}; it is started by an agent")
    _modules.has_own_path = bool(os.environ.pop(_OWN_PATH, ""))
    folders = filter(None, os.environ.pop(_PATH, "").split(":"))
    _modules.follow(tuple(folder.replace("%3A", ":").replace("%25", "%") for folder in folders))
    why = _mismatch(os.environ.pop(_EXPECTED, "")) or _importing.imported(imports)
    if why:
        begins[0].refuse(why)
    level = os.environ.pop(_OUTPUT, "")
    if level:
        from hotlease import _printing

        _printing.begin(int(level))
    # Each line is written at once, so that the last output of a worker is reported with its death.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")
    if os.environ.pop(_SPARE, "") or is_zygote:
        # A spare worker waits for a lease, and has time to import what values of __main__ need.
        try:
            from hotlease import _by_value  # noqa: F401
        except ImportError:
            pass
    took = time.monotonic_ns() - begun if begun else 0
    if is_zygote:
        _importing.serve(*begins, took)
        begins = (_core.Slot(),)
        took = 0
    begins[0].serve(load, dump, describe, took, tasks_max)
