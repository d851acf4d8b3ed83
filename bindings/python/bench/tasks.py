"""No-op tasks per second, and one task there and back, beside ProcessPoolExecutor in the same run; and tasks that need others:
a chain, a tree of adds, and bytes for each task that waits.

    python bindings/python/bench/tasks.py [--workers N] [--tasks N] [--json]
"""

import argparse
import concurrent.futures
import gc
import json
import resource
import statistics
import time

import hotlease


def there_and_back(executor, count):
    times = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        executor.submit(abs, 1).result()
        times.append((time.perf_counter_ns() - begin) / 1000)
    times.sort()
    return {"p50_us": statistics.median(times), "p99_us": times[len(times) * 99 // 100]}


def per_second(executor, count):
    begin = time.perf_counter()
    futures = [executor.submit(abs, 1) for _ in range(count)]
    submitted = time.perf_counter()
    for future in futures:
        future.result()
    return {"tasks_per_second": count / (time.perf_counter() - begin), "submits_per_second": count / (submitted - begin)}


def measure(make, tasks, calls):
    with make() as executor:
        executor.submit(abs, 1).result()
        there_and_back(executor, calls // 10)
        return {**there_and_back(executor, calls), **per_second(executor, tasks)}


def add(a, b):
    return a + b


def chain(executor, length):
    begin = time.perf_counter()
    future = executor.submit(add, 0, 1)
    for _ in range(length - 1):
        future = executor.submit(add, future, 1)
    submitted = time.perf_counter()
    assert future.result() == length
    return length / (time.perf_counter() - begin), length / (submitted - begin)


def tree(executor, adds):
    begin = time.perf_counter()
    level = [executor.submit(add, n, n) for n in range((adds + 1) // 2)]
    while len(level) > 1:
        odd = level[len(level) // 2 * 2 :]
        level = [executor.submit(add, a, b) for a, b in zip(level[::2], level[1::2])] + odd
    assert level[0].result() == 2 * sum(range((adds + 1) // 2))
    return adds / (time.perf_counter() - begin)


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
    with hotlease.Executor(workers) as executor:
        chain(executor, 1000), tree(executor, 1000)
        chains, trees = [chain(executor, 1000) for _ in range(repeat)], [tree(executor, 1000) for _ in range(repeat)]
        result = {
            "chain_1000_tasks_per_second": statistics.median(each for each, _ in chains),
            "chain_1000_submits_per_second": statistics.median(each for _, each in chains),
            "tree_1000_adds_per_second": statistics.median(trees),
        }
        result["waiting"] = bytes_waiting(executor, 100_000)
        executor.shutdown(wait=True, cancel_futures=True)
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    peer = measure(lambda: concurrent.futures.ProcessPoolExecutor(asked.workers), asked.tasks // 20, 1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours = measure(lambda: hotlease.Executor(asked.workers), asked.tasks, 20_000)
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
