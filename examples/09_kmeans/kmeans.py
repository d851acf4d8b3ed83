"""Distributed k-means: each rank has a part of the molecules, and one allreduce in each epoch makes the new centroids.

The molecules are those of 07_molecules; their features are counted in their SMILES: atoms, bonds, rings and branches.
"""

import csv
import gzip
import os
import re
import sys
import time

import numpy as np

import hotlease
from hotlease import MPI

CLUSTERS, EPOCHS = 5, 20
FEATURES = ("Si", "[Ss]e", "[Cc]", "[Nn]", "[Oo]", "[Ss]", "=", "[0-9]", r"\(")


def features(path="examples/07_molecules/molecules.csv.gz"):
    molecules = list(csv.DictReader(gzip.open(path, "rt")))
    smiles = [molecule["smiles"] for molecule in molecules]
    counted = np.array([[len(re.findall(feature, text)) for feature in FEATURES] for text in smiles], dtype=float)
    return counted / counted.max(axis=0), np.array([float(molecule["PCE"]) for molecule in molecules])


def kmeans(points, first):
    world = MPI.COMM_WORLD  # communicator of the ranks that run this function
    mine = points[world.rank :: world.size]
    centroids = first.copy()
    for _ in range(EPOCHS):
        distances = ((mine[:, None, :] - centroids) ** 2).sum(axis=2)
        nearest = distances.argmin(axis=1)
        sums = np.zeros((CLUSTERS, points.shape[1] + 1))
        for cluster in range(CLUSTERS):
            members = mine[nearest == cluster]
            sums[cluster] = [*members.sum(axis=0), len(members)]
        world.Allreduce(MPI.IN_PLACE, sums)  # sums and counts of all ranks
        centroids = sums[:, :-1] / np.maximum(sums[:, -1:], 1)
    return centroids


points, efficiency = features()
first = points[:: len(points) // CLUSTERS][:CLUSTERS]
ranks = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
with hotlease.Gang(ranks) as gang:  # `ranks` workers, or none
    began = time.perf_counter()
    centroids = gang.run(kmeans, points, first)[0]  # all ranks return the same centroids
    seconds = time.perf_counter() - began
print(f"{EPOCHS} epochs over {len(points):,} molecules on {ranks} ranks: {seconds:.2f} s")
nearest = ((points[:, None, :] - centroids) ** 2).sum(axis=2).argmin(axis=1)
for cluster in np.argsort(-np.bincount(nearest, minlength=CLUSTERS)):
    its = efficiency[nearest == cluster]
    print(f"{len(its):6,} molecules alike, efficiency {its.mean():.2f} %")
