"""Other work beside a benchmark, as on a machine that other users share."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys

# What the option --load takes, for its help.
HELP = "work beside it: a number of busy loops, or `compile`: two compilers that begin a short file again and again (default: 0)"

_LOOP = ["sh", "-c", "while :; do :; done"]
_COMPILE = ["sh", "-c", "while :; do echo 'int f(int x) { return x * x; }' | cc -x c -O2 -c -o /dev/null - || exit; done"]


def load(text):
    """Checks a value of --load: the `type` of its argument."""
    if text != "compile" and int(text) < 0:
        raise ValueError
    return text


@contextlib.contextmanager
def beside(text):
    """A load while the block runs."""
    if text == "compile" and shutil.which("cc") is None:
        sys.exit("--load compile needs a C compiler, cc")
    commands = [_COMPILE] * 2 if text == "compile" else [_LOOP] * int(text)
    # The load has a session of its own, so that Linux's grouping by sessions shares the cores as between the programs
    # of two users, and so that the whole group can be ended at once.
    running = [subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) for command in commands]
    try:
        yield
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
