"""Measures the cost that Python adds to message passing.

A ping-pong of 8 bytes and an allreduce of 16 MiB, each beside the native call (crates/comm/examples/pingpong.rs), in
turn, in one run.

    cargo build --release --package hotlease-comm --examples
    python bindings/python/bench/comm.py [--ranks N] [--rounds N] [--json]
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
CASES = {"pingpong_8B_us": (2, 8, 2000), "allreduce_16MiB_us": (None, 16 << 20, 8)}


def member(case, size, calls):
    """Runs one member's part; rank 0 prints the median of a call, in microseconds."""
    import numpy as np

    from hotlease import MPI

    comm = MPI.COMM_WORLD
    rank = comm.rank
    if case == "pingpong_8B_us":
        buf = np.zeros(size // 8)

        def call():
            if rank == 0:
                comm.Send(buf, 1)
                comm.Recv(buf, 1)
            else:
                comm.Recv(buf, 0)
                comm.Send(buf, 0)
    else:
        given, got = np.ones(size // 8), np.zeros(size // 8)

        def call():
            comm.Allreduce(given, got)

    for _ in range(max(2, calls // 10)):
        call()
    times = []
    for _ in range(calls):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    # A round trip is two calls of each kind: half of it is a message.
    if rank == 0:
        print(statistics.median(times) * 1e6 / (2 if case == "pingpong_8B_us" else 1))


def measured(hotlease, ranks, command):
    done = subprocess.run([hotlease, "comm", "run", "-n", str(ranks), *command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="of the allreduce")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--member", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.member:
        case, size, calls = asked.member
        return member(case, int(size), int(calls))
    programs = pathlib.Path(os.environ.get("HOTLEASE_PROGRAMS", ROOT / "target/release"))
    result = {"bench": "python-comm", "params": {"ranks": asked.ranks, "rounds": asked.rounds}}
    for case, (ranks, size, calls) in CASES.items():
        arguments = [case.split("_")[0], str(size), str(calls)]
        native = [str(programs / "examples/pingpong"), *arguments]
        python = [sys.executable, __file__, "--member", case, str(size), str(calls)]
        found = {"native": [], "python": []}
        for _ in range(asked.rounds):
            for name, command in (("native", native), ("python", python)):
                found[name].append(measured(programs / "hotlease", ranks or asked.ranks, command))
        medians = {name: statistics.median(values) for name, values in found.items()}
        result[case] = {**medians, "ratio": medians["python"] / medians["native"], "difference_us": medians["python"] - medians["native"]}
    print(json.dumps(result) if asked.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
