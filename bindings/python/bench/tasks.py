"""No-op tasks per second, and one task there and back, beside ProcessPoolExecutor in the same run; and tasks that need others:
a chain, a tree of adds, and bytes for each task that waits.

    python bindings/python/bench/tasks.py [--workers N] [--tasks N] [--json]
"""

import argparse
import gc
import json
import pathlib
import resource
import statistics
import sys
import time

import hotlease

# The cases, and both executors behind the same methods, are those of the comparison with other systems.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bench/peers/python"))
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
    """Of a task that waits for another one, with its future and without."""
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
    }
    print(json.dumps(result) if asked.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
