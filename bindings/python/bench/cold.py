"""Measures the time to the first result of a function of a program, from before its imports, beside ProcessPoolExecutor.

Three starts, interleaved in one run: without a platform, with one, and with one that has run such a program a moment
ago.

    python bindings/python/bench/cold.py [--rounds N] [--json]

Python's own start, about 10 ms, is in none of the figures.
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

from hotlease import _programs

# Each program prints the time from its first line, and the parts of that time.
OURS = """
import time; begin = time.perf_counter()
import hotlease; from hotlease import Executor; imported = time.perf_counter()
def own(x): return abs(x)
executor = Executor(1); leased = time.perf_counter()
executor.submit(own, -1).result(); ended = time.perf_counter()
print(ended - begin, imported - begin, leased - imported, ended - leased)
executor.shutdown()
"""
PEER = """
import time; begin = time.perf_counter()
from concurrent.futures import ProcessPoolExecutor; imported = time.perf_counter()
def own(x): return abs(x)
executor = ProcessPoolExecutor(1); leased = time.perf_counter()
executor.submit(own, -1).result(); ended = time.perf_counter()
print(ended - begin, imported - begin, leased - imported, ended - leased)
executor.shutdown()
"""
PHASES = ("first_result", "import", "executor", "task")


def run(program, folder):
    environment = {**os.environ, "HOTLEASE_RUNTIME_DIR": folder}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return [1000 * float(number) for number in done.stdout.split()]


def down(folder):
    environment = {**os.environ, "HOTLEASE_RUNTIME_DIR": folder}
    subprocess.run([_programs.find("hotlease"), "down"], env=environment, capture_output=True, check=True)


def one_round(times):
    folder = tempfile.mkdtemp(prefix="hotlease-cold-")
    try:
        times["ProcessPoolExecutor"].append(run(PEER, folder))
        times["no platform"].append(run(OURS, folder))
        # After a lease, the platform starts spare workers in the background.
        time.sleep(1)
        times["again"].append(run(OURS, folder))
        down(folder)
        subprocess.run(
            [_programs.find("hotlease"), "up", "--detach"],
            env={**os.environ, "HOTLEASE_RUNTIME_DIR": folder}, capture_output=True, check=True,
        )
        time.sleep(1)
        times["platform"].append(run(OURS, folder))
    finally:
        down(folder)
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    times = {name: [] for name in ("ProcessPoolExecutor", "no platform", "platform", "again")}
    for _ in range(asked.rounds):
        one_round(times)
    for name, rows in times.items():
        medians = {f"{phase}_ms": round(statistics.median(column), 1) for phase, column in zip(PHASES, zip(*rows))}
        best = round(min(row[0] for row in rows), 1)
        row = {"bench": "python-cold", "params": {"start": name}, "samples": len(rows), "p50": medians, "best_ms": best}
        print(json.dumps(row) if asked.json else f"{name:20} best {best:6} ms  medians {medians}")


if __name__ == "__main__":
    main()
