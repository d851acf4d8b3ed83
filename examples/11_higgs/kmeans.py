"""Distributed k-means over any link, as LambdaML does it on functions: one allreduce in each epoch makes new centroids.

    hotlease comm run -n 10 python examples/11_higgs/kmeans.py

HOTLEASE_COMM_LINK names the link between the ranks. The points are generated, in the shape of the HIGGS data set: 28
features each.
"""

import argparse
import json
import time

import numpy as np

from hotlease import MPI

FEATURES, CLUSTERS, SEED = 28, 10, 2014
POINTS = (1 << 20) // (8 * FEATURES)  # in a batch of 1 MiB
SUMS = (CLUSTERS, FEATURES + 2)  # for each cluster: sums of coordinates, number of points, squared lengths


def batch(number):
    """Returns points, the same at every rank. They are around ten centres, which are as far from each other as a point is
    from its centre."""
    centres = np.random.default_rng(SEED).normal(size=(CLUSTERS, FEATURES))
    random = np.random.default_rng([SEED, number])
    return centres[random.integers(CLUSTERS, size=POINTS)] + random.normal(size=(POINTS, FEATURES))


def epoch(world, mine, centroids):
    """Returns the next centroids, the mean squared distance of points from the old centroids, and the exchange's time."""
    sums = np.zeros(SUMS)
    for points in mine:
        nearest = np.argmin((centroids**2).sum(axis=1) - 2 * points @ centroids.T, axis=1)
        lengths = (points**2).sum(axis=1, keepdims=True)
        sums += np.eye(CLUSTERS)[nearest].T @ np.hstack([points, np.ones_like(lengths), lengths])
    began = time.perf_counter()
    world.Allreduce(MPI.IN_PLACE, sums)  # 2,400 bytes of each rank
    took = time.perf_counter() - began
    coordinates, counts, lengths = sums[:, :-2], sums[:, -2:-1], sums[:, -1:]
    squares = lengths - 2 * (centroids * coordinates).sum(axis=1, keepdims=True) + counts * (centroids**2).sum(axis=1, keepdims=True)
    return coordinates / np.maximum(counts, 1), squares.sum() / counts.sum(), took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40, help="of 1 MiB, all ranks together (default: 40; HIGGS has 2,350)")
    parser.add_argument("--epochs", type=int, default=10, help="(default: 10)")
    parser.add_argument("--json", action="store_true", help="print an object with all that was measured")
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    mine = [batch(number) for number in range(world.rank, options.batches, world.size)]
    centroids = mine[0][:CLUSTERS].copy() if world.rank == 0 else np.empty((CLUSTERS, FEATURES))
    world.Bcast(centroids)
    took, exchanges = np.empty(options.epochs), np.empty(options.epochs)
    for number in range(options.epochs):
        began = time.perf_counter()
        centroids, distance, exchanges[number] = epoch(world, mine, centroids)
        took[number] = time.perf_counter() - began
    world.Allreduce(MPI.IN_PLACE, took, MPI.MAX)
    world.Allreduce(MPI.IN_PLACE, exchanges, MPI.MIN)  # time of the last rank, which did not wait for other ranks
    measured = {
        "ranks": world.size, "epochs": options.epochs, "points": options.batches * POINTS, "bytes": int(8 * np.prod(SUMS)),
        "epoch_s": float(np.median(took)), "exchange_s": float(np.median(exchanges)), "distance": round(float(distance), 6),
    }
    if world.rank == 0 and options.json:
        print(json.dumps(measured))
    elif world.rank == 0:
        print(f"{measured['points']:,} points by {world.size} ranks, {options.epochs} epochs: squared distance {distance:.6f}")
        print(f"an epoch took {measured['epoch_s'] * 1e3:.2f} ms, the exchange in it {measured['exchange_s'] * 1e3:.3f} ms")


main()
