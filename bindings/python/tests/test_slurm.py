"""`hotlease.Slurm` on real Slurm, and its errors."""

import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
import slurm_site

import hotlease
from hotlease import _slurm

_LIMIT = 100


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with slurm_site.running(tmp_path_factory.mktemp("slurm"), nodes=2) as made:
        yield made


@pytest.fixture
def here(site, monkeypatch, tmp_path):
    """Arguments of clusters on the tests' site."""
    for name, value in site.variables.items():
        monkeypatch.setenv(name, value)
    return {"cores": 2, "walltime": "5min", "host": "127.0.0.1", "directory": tmp_path}


def test_an_executor_gets_nodes_that_are_scaled_and_given_back(site, here, tmp_path, eventually):
    with hotlease.Slurm(1, **here) as cluster:
        with hotlease.Executor(cluster=cluster) as executor:
            assert executor.submit(abs, -1).result(_LIMIT) == 1
            assert list(site.jobs().values()) == ["RUNNING"]
            cluster.scale(2)
            eventually(lambda: list(site.jobs().values()) == ["RUNNING"] * 2, "a second job runs", _LIMIT)
            eventually(lambda: [job.state for job in cluster.jobs()] == ["running"] * 2, "both are seen to run", _LIMIT)
            assert {job.number for job in cluster.jobs()} == set(site.jobs())
            cluster.scale(1)
            eventually(lambda: len(site.jobs()) == 1, "one job is cancelled", _LIMIT)
            assert executor.submit(pow, 2, 3).result(_LIMIT) == 8
        with hotlease.Gang(2, cluster=cluster) as gang:
            assert gang.run(abs, -2) == [2, 2]
        assert "srun" in cluster.job_script() and any("submitted job" in line for line in cluster.logs())
    assert site.jobs() == {}
    assert list(tmp_path.iterdir()) == [], "the authority is removed"
    with pytest.raises(hotlease.ClusterError, match="closed"):
        cluster.scale(1)


def test_adapted_nodes_come_for_executors_that_wait_and_go_when_they_are_idle(site, here, eventually):
    with hotlease.Slurm(0, idle=2, **here) as cluster:
        cluster.adapt(0, 1)
        with hotlease.Executor(1, cluster=cluster) as executor:
            assert executor.submit(abs, -1).result(_LIMIT) == 1
            assert len(site.jobs()) == 1
        eventually(lambda: site.jobs() == {}, "the idle node is given back", _LIMIT)
        eventually(lambda: [job.state for job in cluster.jobs()] == ["completed"], "its end is seen", _LIMIT)


def test_a_prologue_runs_on_each_node_before_its_agent(here):
    lines = ["added=/opt/it\\'s/bin", "export PATH=$added:$PATH"]
    with hotlease.Slurm(job_script_prologue=lines, **here) as cluster:
        assert "\n".join(lines) in cluster.job_script()
        with hotlease.Executor(1, cluster=cluster) as executor:
            assert executor.submit(os.getenv, "PATH").result(_LIMIT).startswith("/opt/it's/bin:")


def test_what_the_site_rejects_is_an_error_with_its_words(here):
    with hotlease.Slurm(partition="nosuch", **here) as cluster:
        with pytest.raises(hotlease.JobRejected, match="(?i)invalid partition"):
            hotlease.Executor(cluster=cluster)
        with pytest.raises(hotlease.JobRejected, match="(?i)invalid partition"):
            cluster.job_script()


def test_a_job_that_fails_is_an_error_with_its_output(here):
    with hotlease.Slurm(job_extra_directives=["--export=ALL,PATH=/no/such/folder"], **here) as cluster:
        with pytest.raises(hotlease.JobEnded, match="srun") as raised:
            hotlease.Executor(cluster=cluster)
    assert raised.value.state == "failed" and raised.value.job.isdigit() and raised.value.ran is False


def test_jobs_end_with_a_program_that_is_killed(site, here, tmp_path, eventually):
    arguments = {**here, "directory": str(tmp_path)}
    script = f"""
import gc, hotlease
executor = hotlease.Executor(1, cluster=hotlease.Slurm(**{arguments!r}))
gc.collect()
print(executor.submit(abs, -1).result(), flush=True)
input()
"""
    program = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "1\n"
    assert len(site.jobs()) == 1
    program.send_signal(signal.SIGKILL)
    program.communicate()
    eventually(lambda: site.jobs() == {}, "its job is cancelled", _LIMIT)
    eventually(lambda: list(tmp_path.iterdir()) == [], "the authority is removed", _LIMIT)


def test_a_host_without_slurm_is_told_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(hotlease.ClusterError, match="no sbatch in PATH"):
        hotlease.Slurm()


def test_values_that_are_not_understood_are_named(tmp_path):
    for wrong in (
        {"walltime": "soon"},
        {"walltime": "30s"},
        {"walltime": -3600},
        {"memory": "lots"},
        {"memory": 0},
        {"cores": 0},
        {"nodes": -1},
        {"gpus": True},
        {"job_extra_directives": "--x"},
        {"job_script_prologue": "module load gcc"},
    ):
        (name,) = wrong
        with pytest.raises(hotlease.OptionError, match=name):
            hotlease.Slurm(directory=tmp_path, **wrong)
    assert list(tmp_path.iterdir()) == []


def test_times_and_sizes_have_the_forms_of_slurm_and_of_dask_jobqueue():
    times = {"01:30:00": 5400, "90:00": 5400, "1-02:30": 95_400, "1-00:00:00": 86_400, "90min": 5400, "2h": 7200, 61.5: 62}
    assert {text: _slurm._seconds(text) for text in times} == times
    assert _slurm._seconds(timedelta(hours=2)) == 7200
    sizes = {"16GB": 16 * 10**9, "64GiB": 64 * 2**30, "500M": 5 * 10**8, "1.5 t": 1_500_000_000_000, 4096: 4096}
    assert {text: _slurm._bytes(text) for text in sizes} == sizes
