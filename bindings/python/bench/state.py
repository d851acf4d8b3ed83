"""Measures numpy state between two leases, saved at the end of one and restored by the next.

Interleaved in one run with leases that compute it again, and with leases that begin with nothing.

    python bindings/python/bench/state.py [--mib N] [--rounds N] [--directory DIR] [--json]
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

MODULE = """
import numpy
import hotlease

held = None

def compute(mib):
    global held
    held = numpy.random.default_rng(1).standard_normal(mib << 17)
    return float(held[-1])

def last():
    return None if held is None else float(held[-1])

def put(saved):
    global held
    held = numpy.frombuffer(saved)

hotlease.state(save=lambda: held if held is not None else b"", restore=put)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--directory", help="where states are saved [default: a temporary folder]")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    scratch = tempfile.mkdtemp(prefix="hotlease-state-")
    with open(f"{scratch}/stated.py", "w") as module:
        module.write(MODULE)
    sys.path.append(scratch)
    os.environ["HOTLEASE_RUNTIME_DIR"] = f"{scratch}/run"
    os.mkdir(f"{scratch}/run", 0o700)
    if asked.directory is None:
        os.mkdir(f"{scratch}/swap")
    times = {name: [] for name in ("nothing", "computed", "saved", "restored")}
    try:
        measure(asked, asked.directory or f"{scratch}/swap", times)
    finally:
        hotlease("down")
        shutil.rmtree(scratch, ignore_errors=True)
    for name, what in (
        ("nothing", "lease and first call, nothing in memory"),
        ("computed", "lease and a call that computes it"),
        ("saved", "end of a lease that saves it"),
        ("restored", "lease that restores it, and first call"),
    ):
        row = {"bench": "python-state", "params": {"what": name, "mib": asked.mib}, "samples": len(times[name])}
        row["p50_ms"] = round(statistics.median(times[name]), 1)
        row["best_ms"] = round(min(times[name]), 1)
        print(json.dumps(row) if asked.json else f"{what:42} median {row['p50_ms']:7} ms  best {row['best_ms']:7} ms")


def hotlease(*words):
    from hotlease import _programs

    subprocess.run([_programs.find("hotlease"), *words], capture_output=True, check=True)


def measure(asked, directory, times):
    from hotlease import Executor, ExecutorOptions

    # Imported here, too, so that functions are pickled by name.
    import stated

    hotlease("up", "--detach", "--swap-directory", directory, "--swap-limit", "30s", "--swap-state-bytes", "8G")

    def lease(name, function, *args, **options):
        begin = time.perf_counter()
        executor = Executor(1, options=ExecutorOptions(imports=["stated"], **options))
        value = executor.submit(function, *args).result()
        times[name].append(1000 * (time.perf_counter() - begin))
        return executor, value

    # After this lease a spare worker waits for the next one, and is warm.
    lease("nothing", stated.last)[0].shutdown()
    time.sleep(1)
    times["nothing"].clear()
    for _ in range(asked.rounds):
        lease("nothing", stated.last)[0].shutdown()
        time.sleep(1)
        executor, value = lease("computed", stated.compute, asked.mib, state="bench")
        begin = time.perf_counter()
        executor.shutdown()
        times["saved"].append(1000 * (time.perf_counter() - begin))
        time.sleep(1)
        executor, again = lease("restored", stated.last, state="bench")
        assert again == value, "it is another one"
        executor.submit(stated.put, b"").result()
        executor.shutdown()
        hotlease("state", "rm", directory, "bench")
        time.sleep(1)


if __name__ == "__main__":
    main()
