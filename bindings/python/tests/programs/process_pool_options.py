"""Options and methods of concurrent.futures.ProcessPoolExecutor have the same meaning in hotlease.Executor."""

import collections
import concurrent.futures
import multiprocessing
import os
import time

import hotlease

begun = 0


def begin():
    global begun
    begun += 1


def process(_=None):
    return os.getpid(), begun


def large(size):
    return os.getpid(), bytes(size)


# The arguments are in the order of ProcessPoolExecutor's.
with hotlease.Executor(1, multiprocessing.get_context("fork"), begin, ()) as executor:
    print(executor.submit(process).result()[1])
# The lease lives for 60 s without renewal, because starts of workers on a busy host take long.
options = hotlease.ExecutorOptions(ttl=60)
with hotlease.Executor(1, initializer=begin, max_tasks_per_child=2, options=options) as executor:
    counts = collections.Counter(executor.map(process, range(6)))
    print(sorted(counts.values()), {begun for _, begun in counts})
with hotlease.Executor(1, max_tasks_per_child=1, options=options) as executor:
    # Results that the worker keeps until the client has memory for them, and a task that fails.
    sizes = [1, 3_000_000, 3_000_000, 10]
    results = list(executor.map(large, sizes))
    print([len(data) for _, data in results] == sizes, len({pid for pid, _ in results}))
    print(repr(executor.submit(int, "x").exception()), executor.submit(abs, -1).result())
for wrong in ({"max_tasks_per_child": 0}, {"max_tasks_per_child": "2"}, {"mp_context": "fork"}):
    try:
        hotlease.Executor(1, **wrong)
    except (TypeError, ValueError) as error:
        print(error)
for end in ("terminate_workers", "kill_workers"):
    executor = hotlease.Executor(1)
    running, waiting = executor.submit(time.sleep, 600), [executor.submit(abs, 1) for _ in range(2)]
    while not running.running():
        time.sleep(0.001)
    since = time.monotonic()
    getattr(executor, end)()
    error = running.exception()
    print(isinstance(error, concurrent.futures.BrokenExecutor), all(future.cancelled() for future in waiting), time.monotonic() - since < 60)
    try:
        executor.submit(abs, 1)
    except RuntimeError:
        print("accepts nothing")
    executor.kill_workers()
    executor.shutdown()
with hotlease.Executor(1) as executor:
    print(executor)

# Prints:
# 1
# [2, 2, 2] {1}
# True 4
# ValueError("invalid literal for int() with base 10: 'x'") 1
# max_tasks_per_child must be >= 1
# max_tasks_per_child must be an integer
# mp_context must be a context of multiprocessing
# True True True
# accepts nothing
# True True True
# accepts nothing
# <hotlease.Executor: 1 worker, 0 tasks pending>
