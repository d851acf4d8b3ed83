"""The error for the death of a worker has the program's name of the function, in all ways in which functions are called."""

import functools
import os
import warnings

import dask
import joblib

import hotlease.dask
import hotlease.joblib


def crash(*_):
    os.abort()


class Crashing:
    def __call__(self):
        os.abort()

    def method(self):
        os.abort()


def name_in(call):
    try:
        call()
    except hotlease.WorkerDied as died:
        return str(died).partition("while running `")[2].partition("`")[0]


warnings.simplefilter("ignore")
with hotlease.Executor(1) as executor:
    print(name_in(executor.submit(functools.partial(crash, 1)).result))
    print(name_in(executor.submit(functools.partial(functools.partial(crash, 1), 2)).result))
    print(name_in(executor.submit(Crashing()).result), name_in(executor.submit(Crashing().method).result))
    print(name_in(lambda: list(executor.map(crash, range(4), chunksize=2))))
    print(name_in(lambda: list(executor.map(functools.partial(crash, 1), range(4), chunksize=2))))
print(name_in(lambda: joblib.Parallel(2, backend="hotlease")(joblib.delayed(crash)() for _ in range(2))))
print(name_in(lambda: dask.delayed(crash)().compute(scheduler="hotlease")))

# Prints:
# crash
# crash
# Crashing Crashing.method
# crash
# crash
# crash
# crash
