"""The initializer in Dask's configuration runs in each worker, and Dask's other options for processes apply, too."""

import pickle
import warnings

import dask

import hotlease.dask

began, dumped = [], []


def begin(by="configured"):
    began.append(by)


def get():
    return began[-1:], len(began) == len(set(began))


def dumps(what):
    dumped.append(what)
    return pickle.dumps(what)


def computed(**options):
    results = dask.compute(*(dask.delayed(get, pure=False)() for _ in range(10)), scheduler="hotlease", **options)
    return set(map(str, results))


with dask.config.set({"multiprocessing.initializer": begin}):
    print(computed(), computed())
print(computed(initializer=lambda: begin("given")))
print(dask.delayed(abs)(-3).compute(scheduler="hotlease", func_dumps=dumps, func_loads=pickle.loads), len(dumped) > 0)
try:
    dask.delayed(int)("x").compute(scheduler="hotlease", func_dumps=pickle.dumps)
except ValueError as error:
    print(error)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from hotlease import _kept

    computed(pool=_kept.executor(), initializer=begin)
print([str(each.message).partition(",")[0] for each in told])

# Prints:
# {"(['configured'], True)"} {"(['configured'], True)"}
# {"(['given'], True)"}
# 3 True
# invalid literal for int() with base 10: 'x'
# ['the initializer is ignored']
