"""The case studies: k-means over every link, and data-parallel training."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from hotlease import _programs

pytest.importorskip("numpy")

ROOT = pathlib.Path(__file__).resolve().parents[3]
HIGGS = ROOT / "examples/11_higgs/kmeans.py"
TRAINING = ROOT / "examples/12_training/train.py"
# A Python with torch, which is too large for the tests' own environments.
TORCH = [os.environ["HOTLEASE_TEST_TORCH"]] if "HOTLEASE_TEST_TORCH" in os.environ else [sys.executable, "/usr/bin/python3"]


def good(command, **environment):
    # Ranks share the cores.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **environment}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, env=env, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_clusters_of_k_means_are_the_same_on_any_number_of_ranks():
    def measured(ranks):
        program = [sys.executable, HIGGS, "--json", "--batches", 6, "--epochs", 3]
        return json.loads(good([_programs.find("hotlease"), "comm", "run", "-n", ranks, *program]))

    alone, several = measured(1), measured(4)
    assert alone["points"] == 6 * 4681 and several["ranks"] == 4
    # Mean squared distance: 28 (features of variance 1) in pure clusters, more in mixed clusters. Clusters mix,
    # because centres are as far from each other as points are from their centre.
    assert alone["distance"] == several["distance"] and 20 < alone["distance"] < 60


def test_k_means_is_compared_over_the_links_that_there_are():
    command = [sys.executable, ROOT / "bench/cases/run", "--ranks", 3, "--batches", 3, "--epochs", 2, "--rounds", 1, "direct", "tcp", "redis"]
    lines = good(command, HOTLEASE_PROGRAMS=os.path.dirname(_programs.find("hotlease"))).splitlines()
    rows = {line.split()[0]: line for line in lines if line.split()[0] in ("direct", "tcp", "redis")}
    results = ROOT / lines[-1].removeprefix("results in ") / "cases.jsonl"
    records = [json.loads(line) for line in results.read_text().splitlines()]
    assert {record["link"] for record in records} | {"redis"} == set(rows) | {"redis"}, lines
    for record in records:
        # A rank is charged for at least its waiting time, and the model has prices for all of these links.
        assert 0 < record["exchange_s"] <= record["epoch_s"] and record["price"] > 0 and record["aws_price"] > 0
    tcp = next(record for record in records if record["link"] == "tcp")
    assert tcp["price"] / tcp["exchange_s"] == pytest.approx(tcp["aws_price"] / tcp["aws_exchange_s"]), "nothing but seconds is charged for"


def test_training_on_several_ranks_is_training_on_one():
    def has_torch(python):
        # Python must have the version for which the extension module is built. Torch is not loaded, because that takes seconds.
        probe = f"import sys; assert sys.version_info[:2] == {sys.version_info[:2]}; from importlib.util import find_spec as find; assert find('torch') and find('numpy')"
        return os.path.exists(python) and subprocess.run([python, "-c", probe], capture_output=True).returncode == 0

    python = next(filter(has_torch, TORCH), None)
    if python is None:
        pytest.skip("no Python of this version has torch and numpy here (HOTLEASE_TEST_TORCH names one)")
    told = good([_programs.find("hotlease"), "comm", "run", "-n", 3, python, TRAINING])
    assert told.startswith("loss 0.7") and told.endswith(" in 64 steps on 3 ranks, as on one\n")
    first, last = (float(told.split()[place]) for place in (1, 3))
    assert last < first / 2, "it learns"
