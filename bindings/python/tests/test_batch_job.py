"""Programs of a batch job whose platform `hotlease up` serves on all nodes of the job."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from hotlease import _programs

_LIMIT = 60


class Job:
    """A job of one node on this machine."""

    def __init__(self, folder):
        self.folder = folder / "test-7"
        hidden = ("HOTLEASE_RUNTIME_DIR", "HOTLEASE_MANAGER", "HOTLEASE_IDENTITY")
        self.variables = {name: value for name, value in os.environ.items() if name not in hidden}
        self.variables.update(HOTLEASE_JOBS_DIR=str(folder), SLURM_JOB_ID="7", SLURM_CLUSTER_NAME="test")

    def up(self):
        """Starts `hotlease up` as a task of the job's step, and waits until it serves."""
        task = {"STEP_ID": "0", "PROCID": "0", "LOCALID": "0", "NODEID": "0", "STEP_NUM_NODES": "1"}
        variables = {"SLURMD_NODENAME": "n0", **{f"SLURM_{name}": value for name, value in task.items()}}
        up = subprocess.Popen(
            [_programs.find("hotlease"), "--json", "up"],
            env={**self.variables, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert json.loads(up.stdout.readline())["nodes"] == 1
        return up

    def run(self, script):
        """Runs a program of the job; returns its output."""
        program = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
        )
        assert program.returncode == 0, program.stderr
        assert "started the platform" not in program.stderr
        return program.stdout.splitlines()


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def test_executors_and_gangs_of_a_job_find_its_platform_without_an_argument(job):
    up = job.up()
    try:
        told = job.run(
            """
            import hotlease
            with hotlease.Executor() as executor:
                print(executor.submit(abs, -1).result(30))
            with hotlease.Gang(1) as gang:
                print(gang._manager.startswith("https://"), gang.run(abs, -2))
            """
        )
        assert told[0] == "1" and told[1].startswith("True") and "2" in told[1]
    finally:
        up.terminate()
        assert up.wait(_LIMIT) == 0
    assert not job.folder.exists()


def test_a_program_starts_no_platform_beside_that_of_its_job(job):
    job.folder.mkdir(mode=0o700)
    (told,) = job.run(
        """
        import hotlease
        try:
            hotlease.Executor(1, options=hotlease.ExecutorOptions(patience=0.3))
        except hotlease.Error as error:
            print(error)
        """
    )
    assert "batch job" in told and "starting" in told and str(job.folder) in told
