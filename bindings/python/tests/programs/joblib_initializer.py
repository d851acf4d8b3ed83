"""joblib's initializer runs in each worker, as with its own backend, and options that have no meaning here are refused."""

import joblib
import numpy as np

import hotlease.joblib

name, runs, table = "nothing", 0, None


def begin(given, array=None):
    global name, runs, table
    name, runs, table = given, runs + 1, array


def state():
    return name, runs


def total():
    table[0] += 1
    return float(table.sum())


def fail():
    raise ValueError("bad start")


def called(function, **options):
    parallel = joblib.Parallel(2, batch_size=1, **{"backend": "hotlease", **options})
    return sorted(set(parallel(joblib.delayed(function)() for _ in range(20))))


print(called(state, initializer=begin, initargs=("first",)))
# Each worker runs an initializer once, until it gets a different one.
print(called(state, initializer=begin, initargs=("first",)))
print({name for name, _ in called(state, initializer=begin, initargs=("second",))})
print({name for name, _ in called(state, initializer=begin, initargs=("first",))})
with joblib.parallel_config(backend="hotlease", initializer=lambda: begin("third")):
    print({name for name, _ in called(state, backend=None)})
# An initializer may keep its arguments, of any size.
print(min(called(total, initializer=begin, initargs=("large", np.zeros(300_000)))) >= 1)
for options in ({"initializer": fail}, {"initializer": 5}, {"idle_worker_timeout": 3}, {"mmap_mode": "w+"}):
    try:
        called(state, **options)
    except Exception as error:
        print(type(error).__name__, str(error)[:40])
try:
    joblib.parallel_config(backend="hotlease", env={"A": "1"})
except TypeError as error:
    print(str(error)[:40])
print(joblib.Parallel(2, backend="hotlease")(joblib.delayed(abs)(-n) for n in range(3)))

# Prints:
# [('first', 1)]
# [('first', 1)]
# {'second'}
# {'first'}
# {'third'}
# True
# ValueError bad start
# TypeError initializer must be a callable
# TypeError idle_worker_timeout: joblib's backend ho
# ValueError mmap_mode='w+': joblib's backend hotleas
# env: joblib's backend hotlease has the o
# [0, 1, 2]
