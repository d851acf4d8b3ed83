"""No-op tasks per second, and one task there and back, beside ProcessPoolExecutor in the same run.

    python bindings/python/bench/tasks.py [--workers N] [--tasks N] [--json]
"""

import argparse
import concurrent.futures
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
    }
    print(json.dumps(result) if asked.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
