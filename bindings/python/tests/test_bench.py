"""The comparison with other systems runs, for the systems that other tests need anyway. The tests do not check speeds."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

PEERS = pathlib.Path(__file__).resolve().parents[3] / "bench/peers/python"
CASES = "there_and_back,submit,map,chain,tree,granularity,echo"


@pytest.fixture(scope="module")
def cases():
    sys.path.insert(0, str(PEERS))
    try:
        import cases

        yield cases
    finally:
        sys.path.remove(str(PEERS))


@pytest.mark.parametrize("peer", ["hotlease", "process_pool", "parsl_threads"])
def test_a_peer_is_measured_in_every_case(platform, peer, tmp_path):
    path = os.pathsep.join(filter(None, [str(PEERS), os.environ.get("PYTHONPATH")]))
    options = ["--workers", "1", "--seconds", "0.02", "--cases", CASES]
    done = subprocess.run(
        [sys.executable, PEERS / "measure.py", peer, *options],
        capture_output=True, text=True, cwd=tmp_path, timeout=600, env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["peer"] == peer and set(CASES.split(",")) <= set(found)
    assert found["there_and_back"]["samples"] >= 10 and found["there_and_back"]["p50_us"] > 0
    assert all(point["efficiency"] > 0 for point in found["granularity"]["curve"])


def test_metg_is_where_efficiency_passes_the_half_for_good(cases):
    def curve(*efficiencies):
        return [{"length_us": 10**place, "efficiency": each} for place, each in enumerate(efficiencies)]

    assert cases.metg(curve(0.1, 0.2, 0.3)) is None, "never reached"
    assert cases.metg(curve(0.6, 0.7)) == 1, "reached by the shortest"
    assert cases.metg(curve(0.1, 0.5, 0.9)) == pytest.approx(10)
    assert cases.metg(curve(0.1, 0.4, 0.6)) == pytest.approx(10**1.5), "between two points, by their logarithms"
    assert cases.metg(curve(0.1, 0.6, 0.4, 0.6)) == pytest.approx(10**2.5), "what falls below again does not count"
