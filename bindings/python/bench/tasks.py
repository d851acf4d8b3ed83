"""Measures no-op tasks per second, and one task from submit to result, beside ProcessPoolExecutor in the same run.

Also tasks that need others: a chain, a tree of adds, and the memory of each task that waits; and a megabyte of array to
a worker and back, through a function of Python and one in C (`hotlease.native`), which needs a C compiler.

    python bindings/python/bench/tasks.py [--workers N] [--tasks N] [--json]
"""

import argparse
import gc
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import hotlease

# The cases, and the adapters of both executors, are those of the comparison with other systems.
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench/peers/python"))
import adapters  # noqa: E402
import cases  # noqa: E402


def measure(make, workers, tasks, calls):
    peer = make(workers, None)
    try:
        cases.rate_of(peer)
        return {**cases.there_and_back(peer, 60, most=calls), **cases.per_second(peer, tasks)}
    finally:
        peer.close()


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def bytes_waiting(executor, tasks):
    """Returns the bytes of memory of a task that waits for another one, with its future."""
    blocker = executor.submit(time.sleep, 2 + tasks / 50_000)
    gc.collect()
    before = resident()
    futures = [executor.submit(abs, blocker) for _ in range(tasks)]
    with_futures = (resident() - before) / tasks
    blocker.cancel()
    del futures
    gc.collect()
    return {"waiting": executor._pending(), "bytes_with_future": with_futures}


def dataflow(workers, repeat=20):
    peer = adapters.Hotlease(workers, None)
    cases.chain(peer, 1000), cases.tree(peer, 1000)
    chains, trees = [cases.chain(peer, 1000) for _ in range(repeat)], [cases.tree(peer, 1000) for _ in range(repeat)]
    result = {
        "chain_1000_tasks_per_second": statistics.median(each["tasks_per_second"] for each in chains),
        "chain_1000_submits_per_second": statistics.median(each["submits_per_second"] for each in chains),
        "tree_1000_adds_per_second": statistics.median(each["adds_per_second"] for each in trees),
        "waiting": bytes_waiting(peer.executor, 100_000),
    }
    peer.executor.shutdown(wait=True, cancel_futures=True)
    return result


ECHO = """
#include <hotlease/function.h>
HOTLEASE_FUNCTION(echo)
{
    *produced = size;
    if (size <= capacity)
        memcpy(out, in, size);
    return 0;
}
"""


def arrays(workers, rounds=5):
    """A megabyte to a worker and back: peers and functions in turn."""
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder, "libecho.so")
        compiler = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O2", "-I", ROOT / "include", "-x", "c", "-", "-o", library]
        subprocess.run(compiler, input=ECHO, text=True, check=True)
        native = hotlease.native(library, "echo")
    ours, theirs = adapters.Hotlease(workers, None), adapters.ProcessPool(workers, None)
    asked = {"native": (ours, native), "hotlease": (ours, cases.echo), "ProcessPoolExecutor": (theirs, cases.echo)}
    found = {name: [] for name in asked}
    try:
        for _ in range(rounds):
            for name, (peer, function) in asked.items():
                found[name].append(cases.echo_array(peer, 1, function=function))
    finally:
        ours.close()
        theirs.close()
    medians = {name: statistics.median(each["p50_us"] for each in rounds) for name, rounds in found.items()}
    return {"bytes": found["native"][0]["bytes"], "p50_us": medians}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    peer = measure(adapters.ProcessPool, asked.workers, asked.tasks // 20, 1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours = measure(adapters.Hotlease, asked.workers, asked.tasks, 20_000)
    ours["peak_rss_added_mb"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    result = {
        "bench": "python-tasks",
        "params": {"workers": asked.workers, "tasks": asked.tasks},
        "measured": ours,
        "baseline": {"name": "ProcessPoolExecutor", **peer},
        "ratio_tasks_per_second": ours["tasks_per_second"] / peer["tasks_per_second"],
        "ratio_p50": ours["p50_us"] / peer["p50_us"],
        "dataflow": dataflow(asked.workers),
        "echo_array": arrays(asked.workers),
    }
    print(json.dumps(result) if asked.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
