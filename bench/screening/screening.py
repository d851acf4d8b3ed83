"""Virtual screening: workers predict the efficiency of many molecules, in batches.

Compares hotlease, Parsl's HTEX and a loop in turn, for each size of batch and each number of workers. See README.md;
`bench/screening/run` sets up the environment.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import sys
import tempfile
import time

import numpy as np

import model as screening
from model import screen

BATCHES = (1, 3, 10, 30, 100, 300, 1000)


@contextlib.contextmanager
def loop(workers):
    yield lambda calls: [screen(*call) for call in calls]


@contextlib.contextmanager
def hotlease(workers):
    import hotlease

    with hotlease.Executor(workers) as executor:
        if executor._slots() < workers:
            sys.exit(f"screening: of {workers} workers the platform has {executor._slots()} (hotlease ps)")
        yield lambda calls: [future.result() for future in [executor.submit(screen, *call) for call in calls]]


@contextlib.contextmanager
def parsl_htex(workers):
    import parsl
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    with tempfile.TemporaryDirectory(prefix="screening-parsl-") as folder:
        executor = HighThroughputExecutor(
            address="127.0.0.1", max_workers_per_node=workers, provider=LocalProvider(init_blocks=1, max_blocks=1), encrypted=False,
        )
        with parsl.load(Config(executors=[executor], run_dir=folder, strategy="none", initialize_logging=False)):
            app = parsl.python_app(screen)
            yield lambda calls: [future.result() for future in [app(*call) for call in calls]]
        parsl.clear()


SYSTEMS = {"loop": loop, "hotlease": hotlease, "parsl_htex": parsl_htex}


def measure(system, workers, file, smiles, batch):
    """Returns the seconds to the workers' first results (imports, model), the seconds of the screening, and the
    predictions."""
    calls = [(file, smiles[begin : begin + batch]) for begin in range(0, len(smiles), batch)]
    begin = time.perf_counter()
    with SYSTEMS[system](workers) as run:
        # These tasks take longer than a batch of one, so that each worker gets some.
        run([(file, smiles[:50])] * (4 * workers))
        started = time.perf_counter()
        found = run(calls)
        ended = time.perf_counter()
    return started - begin, ended - started, np.concatenate(found)


def main():
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = lambda text: [int(number) for number in text.split(",")]  # noqa: E731
    parser.add_argument("--molecules", type=int, default=100_000)
    parser.add_argument("--batches", type=numbers, default=list(BATCHES), help="sizes, with commas between them")
    parser.add_argument("--workers", type=numbers, default=list(range(1, cores + 1)), help="default: 1 to all cores")
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(SYSTEMS))
    parser.add_argument("--train", type=int, default=5000, help="molecules to train the model with")
    parser.add_argument("--input", default=screening.MOLECULES, help="a gzipped table with the columns smiles and PCE")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="for records, one JSON object a line")
    asked = parser.parse_args()
    if unknown := set(asked.systems) - set(SYSTEMS):
        parser.error(f"no such system: {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    smiles, rows = screening.read(asked.input, asked.molecules)
    with tempfile.TemporaryDirectory(prefix="screening-") as folder, open(asked.output, "w") as output:
        file = os.path.join(folder, "model.pickle")
        trained = screening.train(rows, file, asked.train)
        print(
            f"{len(smiles):,} molecules, of which {min(len(rows), len(smiles)):,} are different (the input is repeated); the model was "
            f"trained on {trained['trained_on']:,}, R2 on as many others {trained['r2_on_others']:.2f}", flush=True,
        )
        expected = None
        for workers in asked.workers:
            for batch in asked.batches:
                for system in asked.systems:
                    if system == "loop" and workers != asked.workers[0]:
                        continue
                    load = os.getloadavg()[0]
                    start, seconds, found = measure(system, workers, file, smiles, batch)
                    if expected is None:
                        expected = found
                    # Batches of other sizes add floats in another order.
                    if len(found) != len(expected) or not np.allclose(found, expected, atol=1e-4):
                        sys.exit(f"screening: {system} predicted something else")
                    record = {
                        "bench": "screening", "system": system, "workers": 1 if system == "loop" else workers, "batch": batch,
                        "molecules": len(smiles), "distinct": min(len(rows), len(smiles)), "seconds": round(seconds, 4),
                        "start_seconds": round(start, 3), "us_per_molecule": round(1e6 * seconds / len(smiles), 2), **trained,
                        "cores": cores, "load_before": round(load, 2), "python": platform.python_version(),
                    }
                    print(json.dumps(record), file=output, flush=True)
                    print(
                        f"{system:12} {record['workers']:2} workers  batches of {batch:5}: {seconds:9.2f} s, "
                        f"{record['us_per_molecule']:9.1f} us a molecule  (start {start:.1f} s)", flush=True,
                    )
        best = list(dict.fromkeys(smiles[place] for place in np.argsort(-expected)))[:3]
    print("best three:", *best)


if __name__ == "__main__":
    main()
