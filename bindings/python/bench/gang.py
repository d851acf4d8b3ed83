"""Measures the cost of a call on a gang: of a function that does nothing, over the connections of the previous call,
and over new connections for each call (as after a call that failed), in turn, in one run.

    python bindings/python/bench/gang.py [--ranks N] [--calls N] [--json]
"""

import argparse
import json
import statistics
import time

import hotlease


def nothing():
    """Does nothing, and leaves the ranks' connections as they are."""


def finish():
    """Closes the ranks' connections, so that the next call needs new ones."""
    from hotlease import MPI

    MPI.Finalize()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--calls", type=int, default=100, help="of each kind")
    parser.add_argument("--json", action="store_true", help="one object")
    options = parser.parse_args()
    kinds = {"kept": nothing, "new": finish}
    times = {kind: [] for kind in kinds}
    with hotlease.Gang(options.ranks) as gang:
        for _ in range(options.calls // 10):
            # The first of ten calls of a kind finds the connections that the other kind has left.
            for kind, function in kinds.items():
                gang.run(function)
                for _ in range(10):
                    begun = time.perf_counter()
                    gang.run(function)
                    times[kind].append(time.perf_counter() - begun)
    medians = {f"{kind}_us": statistics.median(each) * 1e6 for kind, each in times.items()}
    if options.json:
        print(json.dumps({"ranks": options.ranks, "calls": options.calls, **medians}))
    else:
        print(f"a call of nothing on {options.ranks} ranks, median of {options.calls}:")
        print(f"  over the connections of the call before: {medians['kept_us']:.0f} us")
        print(f"  over new ones: {medians['new_us']:.0f} us")


if __name__ == "__main__":
    main()
