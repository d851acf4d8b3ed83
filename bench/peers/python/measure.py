"""Measures one peer in all cases, once, and prints one JSON object. Started by `run` in the peer's environment."""

import argparse
import json
import os
import sys
import time

import adapters
import cases


def versions(name, packages):
    from importlib.metadata import version

    if name == "hotlease":
        from hotlease import __version__

        return {"hotlease": __version__}
    return {package: version(package) for package in packages}


def measure(name, workers, scale, wanted, folder):
    begin = time.perf_counter()
    peer = adapters.PEERS[name](workers, folder)
    try:
        rate = cases.rate_of(peer)
        found = {"first_tasks_s": time.perf_counter() - begin}
        tasks = lambda most: cases.within(rate, scale, 20, most)  # noqa: E731
        todo = {
            "there_and_back": lambda: cases.there_and_back(peer, scale),
            "submit": lambda: cases.per_second(peer, tasks(100_000)),
            "map": lambda: cases.chunked(peer, tasks(10_000) * 50, 50),
            "chain": lambda: cases.chain(peer, tasks(1000)),
            "tree": lambda: cases.tree(peer, tasks(1000)),
            "granularity": lambda: cases.efficiency(peer, workers, rate, scale),
            "echo": lambda: cases.echo_array(peer, scale) if peer.returns_results else None,
        }
        for case in wanted:
            found[case] = todo[case]()
        about = {"peer": name, "workers": workers, "versions": versions(name, peer.packages)}
        return {**about, "futures_as_arguments": peer.futures_as_arguments, **found}
    finally:
        peer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=adapters.PEERS)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of each case")
    parser.add_argument("--cases", required=True)
    asked = parser.parse_args()
    # Output of libraries goes to standard error, so that standard output has only the result.
    result = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with adapters.temporary_folder() as folder:
        found = measure(asked.peer, asked.workers, asked.seconds, asked.cases.split(","), folder)
    print(json.dumps(found), file=result, flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
