"""The process of a worker, and that of the program: teams of threads."""

import os

import hotlease

_TEAMS = ("MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def _teams(names):
    return [os.environ.get(name) for name in names]


def test_teams_of_threads_have_the_size_of_a_slot_unless_a_variable_says_otherwise(platform, monkeypatch):
    for name in _TEAMS:
        monkeypatch.delenv(name, raising=False)
    with hotlease.Executor(1) as executor:
        assert executor.submit(_teams, _TEAMS).result(60) == ["1"] * 5
    options = hotlease.ExecutorOptions(variables={"RAYON_NUM_THREADS": "5"})
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    with hotlease.Executor(1, options=options) as executor:
        assert executor.submit(_teams, _TEAMS).result(60) == ["1", "1", "1", "3", "5"]
    # Most libraries take OpenMP's number if they have none of their own.
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with hotlease.Executor(1) as executor:
        assert executor.submit(_teams, _TEAMS).result(60) == [None, None, "2", None, "1"]
