"""What a Python worker runs: started by an agent, never imported by programs.

`main` checks that this interpreter is what the lease's client has, and hands over to the loop in the extension module, which
comes back to `load`, `dump` and `describe` for what needs pickles.
"""

import os
import pickle
import sys
import time

from hotlease import _core, _importing, _versions

_EXPECTED = "HOTLEASE_PYTHON_EXPECTED"
_PATH = "HOTLEASE_PYTHON_PATH"
_SPARE = "HOTLEASE_PYTHON_SPARE"
_ZYGOTE = "HOTLEASE_PYTHON_ZYGOTE"
_IMPORTS = "HOTLEASE_PYTHON_IMPORTS"
_OUTPUT = "HOTLEASE_PYTHON_OUTPUT"
_TEXT_MAX = 64 * 1024

load = pickle.loads


def dump(value):
    """The pickle of a result, and its out-of-band buffers."""
    buffers = []
    try:
        return pickle.dumps(value, 5, buffer_callback=buffers.append), buffers
    except Exception:
        # What only cloudpickle can do: functions and classes of the client's __main__.
        try:
            import cloudpickle
        except ImportError:
            pass
        else:
            buffers = []
            try:
                return cloudpickle.dumps(value, 5, buffer_callback=buffers.append), buffers
            except Exception:
                pass
        raise


def describe(error):
    """Of an exception: its traceback, its pickle or None, and `type: message`; all bytes."""
    import traceback

    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        text = _cut("".join(lines))
    except Exception:
        text = ""
    try:
        pickled, buffers = dump(error)
        if buffers:
            pickled = pickle.dumps(error, 5)
    except Exception:
        pickled = None
    try:
        message = _cut(f"{type(error).__qualname__}: {error}")
    except Exception:
        message = type(error).__qualname__
    return text.encode(errors="replace"), pickled, message.encode(errors="replace")


def _cut(text):
    if len(text) <= _TEXT_MAX:
        return text
    half = _TEXT_MAX // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"


def _mismatch(expected):
    """Why this interpreter cannot run the client's tasks; None if it can."""
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
    # Where it began, by the program that an agent gives this interpreter.
    begun = vars(sys.modules["__main__"]).pop("begun", 0)
    is_zygote = bool(os.environ.pop(_ZYGOTE, ""))
    imports = os.environ.pop(_IMPORTS, "").split()
    try:
        # Before anything of the tenant's is imported.
        begins = _importing.begun() if is_zygote else (_core.Slot(),)
    except OSError as error:
        sys.exit(f"hotlease._slot: {error}; it is started by an agent")
    known = set(sys.path)
    for folder in os.environ.pop(_PATH, "").split(":"):
        if folder and folder not in known:
            sys.path.append(folder)
    why = _mismatch(os.environ.pop(_EXPECTED, "")) or _importing.imported(imports)
    if why:
        begins[0].refuse(why)
    level = os.environ.pop(_OUTPUT, "")
    if level:
        from hotlease import _printing

        _printing.begin(int(level))
    # What was printed before a worker dies is told with its death.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")
    if os.environ.pop(_SPARE, "") or is_zygote:
        # It waits for a lease, and has time for what functions of __main__ need.
        try:
            import cloudpickle  # noqa: F401
        except ImportError:
            pass
    took = time.monotonic_ns() - begun if begun else 0
    if is_zygote:
        _importing.serve(*begins, took)
        begins = (_core.Slot(),)
        took = 0
    begins[0].serve(load, dump, describe, took)
