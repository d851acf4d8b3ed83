"""Measures no-op tasks per second through joblib, Dask and Parsl, on hotlease and on their own executors, in one run.

    python bindings/python/bench/dropin.py [--workers N] [--tasks N] [--json]
"""

import argparse
import json
import operator
import os
import sys
import tempfile
import time

import dask
import dask.multiprocessing
import joblib
import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider

import hotlease
import hotlease.dask
import hotlease.joblib
import hotlease.parsl
from hotlease.parsl import HotleaseExecutor


def per_second(run, count):
    """Returns the calls per second, after one run that starts all that is needed."""
    run(20)
    begin = time.perf_counter()
    run(count)
    return count / (time.perf_counter() - begin)


def through_joblib(backend, asked, **options):
    with joblib.parallel_config(backend=backend, n_jobs=asked.workers, **options):
        calls = joblib.delayed(operator.neg)
        # One task at a time: with joblib's batches, joblib itself would be measured.
        return per_second(lambda count: joblib.Parallel(batch_size=1)(calls(n) for n in range(count)), asked.tasks)


def through_dask(asked, **chosen):
    def run(count):
        dask.compute(*[dask.delayed(operator.neg, pure=False)(n) for n in range(count)], **chosen)

    return per_second(run, asked.tasks)


def negative(n):
    return -n


def through_parsl(load, executor, asked):
    with tempfile.TemporaryDirectory() as folder:
        with load(Config(executors=[executor], run_dir=folder, usage_tracking=0, initialize_logging=False)):
            app = parsl.python_app(negative)
            return per_second(lambda count: [future.result() for future in [app(n) for n in range(count)]], asked.tasks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.workers < 2:
        parser.error("--workers: at least 2; with one, joblib runs everything in the program")
    # Parsl looks for its programs in PATH, which does not have those of an environment that was not activated.
    os.environ["PATH"] = f"{sys.prefix}/bin:{os.environ['PATH']}"
    own = HighThroughputExecutor(max_workers_per_node=asked.workers, provider=LocalProvider(), encrypted=False)
    # At the end of the block the workers are given back, for Parsl's executor.
    with hotlease.Executor(asked.workers) as executor:
        measured = {
            "joblib": {
                "loky": through_joblib("loky", asked),
                "hotlease": through_joblib("hotlease", asked, executor=executor),
            },
            "dask": {
                "processes": through_dask(asked, scheduler="processes", num_workers=asked.workers),
                "hotlease": through_dask(asked, scheduler=hotlease.dask.get, pool=executor),
            },
        }
    measured["parsl"] = {
        "HighThroughputExecutor": through_parsl(parsl.load, own, asked),
        "HotleaseExecutor": through_parsl(parsl.load, HotleaseExecutor(max_workers=asked.workers), asked),
        "hotlease.parsl.load": through_parsl(hotlease.parsl.load, HotleaseExecutor(max_workers=asked.workers), asked),
    }
    result = {
        "bench": "python-dropin",
        "params": {"workers": asked.workers, "tasks": asked.tasks},
        "tasks_per_second": measured,
    }
    print(json.dumps(result) if asked.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
