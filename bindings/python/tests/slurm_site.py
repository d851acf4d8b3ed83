"""Real Slurm on this machine, for tests."""

import contextlib
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bench/slurm"))
import slurm_cluster  # noqa: E402


@contextlib.contextmanager
def running(folder, nodes):
    """Runs a cluster until the end of the block. Its files are in `folder`, and each node has two processors."""
    if why := slurm_cluster.why_not():
        pytest.skip(why)
    site = slurm_cluster.Cluster(folder, [2] * nodes)
    try:
        yield site
    finally:
        site.close()
