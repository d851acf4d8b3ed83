"""Measures arrays to a worker and back, beside ProcessPoolExecutor, and the cost of large arguments and chains.

    python bindings/python/bench/arrays.py [--rounds N] [--seconds S] [--megabytes N] [--json]

All are interleaved in one run. With 1 MB: `echo` returns its argument, `copy` a new array, `sum` a number. With more
(100 MB): a task that reads 4 KB of its argument, which is the program's own array or one of `Executor.empty`; a task
that makes an array, of which the program reads the first number; and a step of a chain, which makes a new array from
that of the step before, or changes it in place.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import numpy

# The adapters of both executors, and the echo, are those of the comparison with other systems.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bench/peers/python"))
import adapters  # noqa: E402
import cases  # noqa: E402

SMALL = 1_000_000
CHAIN = 8


def copied(array):
    return array.copy()


def summed(array):
    return int(array.sum())


def looked_at(array):
    return int(array[:4096].sum())


def made(size):
    return numpy.ones(size, numpy.uint8)


def changed(array):
    array[0] += 1
    return array


def microseconds(call, seconds):
    """Returns the median duration of a call, of three calls at least."""
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begin = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begin) / 1000)
    return statistics.median(times)


def there_and_back(peer, seconds):
    array = numpy.arange(SMALL, dtype=numpy.uint8)
    call = lambda function: lambda: peer.result(peer.submit(function, array))  # noqa: E731
    return {
        "echo": cases.echo_array(peer, seconds, SMALL)["p50_us"],
        "copy": microseconds(call(copied), seconds),
        "sum": microseconds(call(summed), seconds),
    }


def chain(executor, size, step, length):
    future = executor.submit(made, size)
    for _ in range(length):
        future = executor.submit(step, future)
    last = executor.submit(looked_at, future)
    # A result whose future is still referenced would be copied.
    del future
    return last.result()


def large(peer, size, seconds, shared=None):
    array = numpy.ones(size, numpy.uint8)
    read = lambda array: lambda: peer.result(peer.submit(looked_at, array))  # noqa: E731
    found = {
        "read": microseconds(read(array), seconds),
        "made": microseconds(lambda: peer.result(peer.submit(made, size))[0], seconds),
    }
    if shared is not None:
        found["read_of_empty"] = microseconds(read(shared), seconds)
    if peer.futures_as_arguments:
        for name, step in (("chain_new", copied), ("chain_in_place", changed)):
            whole, ends = (
                microseconds(lambda: chain(peer.executor, size, step, length), seconds)
                for length in (CHAIN, 0)
            )
            found[f"{name}_step"] = (whole - ends) / CHAIN
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each case and round")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    size = asked.megabytes * 1_000_000
    peers = {"hotlease": adapters.Hotlease(1, None), "process_pool": adapters.ProcessPool(1, None)}
    shared = peers["hotlease"].executor.empty(size, numpy.uint8)
    shared[:] = 1
    try:
        for peer in peers.values():
            there_and_back(peer, 0.1)
        rounds = []
        for _ in range(asked.rounds):
            each = {}
            for name, peer in peers.items():
                mine = shared if name == "hotlease" else None
                each[name] = {**there_and_back(peer, asked.seconds), **large(peer, size, asked.seconds, mine)}
            rounds.append(each)
    finally:
        for peer in peers.values():
            peer.close()
    median = {
        name: {case: statistics.median(each[name][case] for each in rounds) for case in rounds[0][name]} for name in peers
    }
    ratio = {
        case: statistics.median(each["process_pool"][case] / each["hotlease"][case] for each in rounds)
        for case in median["process_pool"]
    }
    result = {
        "bench": "python-arrays",
        "params": {"bytes": SMALL, "large_bytes": size, "rounds": asked.rounds, "chain": CHAIN},
        "measured_us": median["hotlease"],
        "baseline": {"name": "ProcessPoolExecutor", "measured_us": median["process_pool"]},
        "times_as_fast": ratio,
    }
    print(json.dumps(result) if asked.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
