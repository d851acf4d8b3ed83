"""Cases that are measured of each executor of Python tasks. Workers import this module, too: they run its functions.

A peer (adapters.py) has `submit`, `result`, `results` and `map_chunked`; `futures_as_arguments` (if false, a chain
waits for each result); and `returns_results`. Cases are limited in seconds, as peers differ by a factor of a thousand.
"""

import time


def noop(_):
    return None


def add(a, b):
    return a + b


def echo(value):
    return value


def work(turns):
    """Runs a loop of this many turns; returns the seconds of processor time that it took."""
    begin = time.thread_time()
    for _ in range(turns):
        pass
    return time.thread_time() - begin


def percentiles(times):
    times = sorted(times)
    return {"p50_us": times[len(times) // 2], "p99_us": times[len(times) * 99 // 100], "samples": len(times)}


def within(rate, seconds, least, most):
    """Returns how many tasks at this rate take this many seconds, within limits."""
    return int(min(max(rate * seconds, least), most))


def rate_of(peer):
    """Returns roughly the tasks per second of a peer, and warms it up."""
    peer.result(peer.submit(noop, 0))
    begin = time.perf_counter()
    peer.result(peer.submit(noop, 0))
    # Enough tasks that the duration of a single one does not count.
    enough = max(0.25, 3 * (time.perf_counter() - begin))
    count = 8
    while True:
        begin = time.perf_counter()
        peer.results([peer.submit(noop, n) for n in range(count)])
        seconds = time.perf_counter() - begin
        if seconds > enough or count >= 2000:
            return count / seconds
        count *= 4


def there_and_back(peer, seconds, most=20_000):
    """One task at a time, from submit to result."""
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 10 or (len(times) < most and time.perf_counter() < end):
        begin = time.perf_counter_ns()
        peer.result(peer.submit(noop, 1))
        times.append((time.perf_counter_ns() - begin) / 1000)
    return percentiles(times)


def per_second(peer, count):
    """Many tasks at once."""
    submit = peer.submit
    begin = time.perf_counter()
    futures = [submit(noop, n) for n in range(count)]
    submitted = time.perf_counter()
    peer.results(futures)
    ended = time.perf_counter()
    return {"tasks_per_second": count / (ended - begin), "submits_per_second": count / (submitted - begin), "tasks": count}


def chunked(peer, calls, chunk):
    """Calls of a function, in tasks of `chunk` calls each."""
    begin = time.perf_counter()
    results = peer.map_chunked(noop, range(calls), chunk)
    seconds = time.perf_counter() - begin
    if peer.returns_results and len(results) != calls:
        raise AssertionError(f"{len(results)} results of {calls} calls")
    return {"calls_per_second": calls / seconds, "chunk": chunk, "calls": calls}


def chain(peer, length):
    """A chain in which each task needs the one before it."""
    begin = time.perf_counter()
    future = peer.submit(add, 0, 1)
    for _ in range(length - 1):
        future = peer.submit(add, future if peer.futures_as_arguments else peer.result(future), 1)
    submitted = time.perf_counter()
    result = peer.result(future)
    seconds = time.perf_counter() - begin
    if peer.returns_results and result != length:
        raise AssertionError(f"a chain of {length} adds ended with {result}")
    return {"tasks_per_second": length / seconds, "submits_per_second": length / (submitted - begin), "length": length}


def tree(peer, adds):
    """A tree of adds: sums of pairs, of pairs of these, and so on up to one sum."""
    leaves = (adds + 1) // 2
    begin = time.perf_counter()
    level = [peer.submit(add, n, n) for n in range(leaves)]
    while len(level) > 1:
        odd = level[len(level) // 2 * 2 :]
        if not peer.futures_as_arguments:
            level = peer.results(level)
            odd = level[len(level) // 2 * 2 :]
        level = [peer.submit(add, a, b) for a, b in zip(level[::2], level[1::2])]
        level += odd if peer.futures_as_arguments else [peer.submit(echo, each) for each in odd]
    total = peer.result(level[0])
    seconds = time.perf_counter() - begin
    if peer.returns_results and total != 2 * sum(range(leaves)):
        raise AssertionError(f"a tree of {adds} adds ended with {total}")
    return {"adds_per_second": adds / seconds, "adds": adds}


# Lengths of tasks, in microseconds.
LENGTHS_US = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)


def efficiency(peer, workers, rate, seconds):
    """Returns the share of the workers' time that tasks use, for each length, and METG(50 %), the length at half.

    A task is a loop of a number of turns. Its length is measured by the clock of its thread, which does not run while
    the task waits for a core: waiting is no work.
    """
    turns = 200_000
    took = sorted(peer.results([peer.submit(work, turns) for _ in range(4 * workers)]) if peer.returns_results else map(work, 4 * [turns]))
    # Approximate time of a turn; also used as the true time if the peer returns no results.
    each = took[len(took) // 2] / turns
    curve = []
    for length_us in LENGTHS_US:
        count = within(1 / max(length_us / 1e6 / workers, 1 / rate), seconds, 4 * workers, 50_000)
        # Full rounds of all workers: in the last round, too, no worker is idle.
        count = -(-count // workers) * workers
        turns = max(1, round(length_us / 1e6 / each))
        begin = time.perf_counter()
        took = peer.results([peer.submit(work, turns) for _ in range(count)])
        taken = time.perf_counter() - begin
        used = sum(took) if peer.returns_results else count * turns * each
        curve.append({"length_us": 1e6 * used / count, "tasks": count, "efficiency": used / workers / taken})
    return {"curve": curve, "metg50_us": metg(curve)}


def metg(curve, share=0.5):
    """Returns the shortest length from which the share is reached (log-interpolated between points), or None."""
    from math import exp, log

    above = None
    for point in reversed(curve):
        if point["efficiency"] < share:
            if above is None:
                return None
            part = (share - point["efficiency"]) / (above["efficiency"] - point["efficiency"])
            return exp(log(point["length_us"]) + part * log(above["length_us"] / point["length_us"]))
        above = point
    return above["length_us"] if above else None


def echo_array(peer, seconds, size=1_000_000, function=echo):
    """An array to a worker and back."""
    import numpy

    array = numpy.arange(size, dtype=numpy.uint8)
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 10 or time.perf_counter() < end:
        begin = time.perf_counter_ns()
        result = peer.result(peer.submit(function, array))
        times.append((time.perf_counter_ns() - begin) / 1000)
        if result.shape != array.shape or result[-1] != array[-1]:
            raise AssertionError("another array came back")
        del result
    found = percentiles(times)
    return {**found, "bytes": size, "mb_per_second": size / found["p50_us"]}
