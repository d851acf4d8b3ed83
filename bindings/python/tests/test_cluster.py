"""Executors of a site: manager, workers and the program on different hosts, which identify each other by
certificates."""

import tempfile
import textwrap

import pytest
from hosts import Hosts, Site


@pytest.fixture(scope="module")
def site():
    # Not pytest's folders: a socket's path has 108 bytes at most.
    with tempfile.TemporaryDirectory(prefix="hlt-") as folder:
        hosts = Hosts(folder)
        try:
            yield Site(hosts)
        finally:
            hosts.close()


def finished(program):
    """Waits for a program, which must succeed; returns its output, by lines."""
    told, errors = program.communicate(timeout=120)
    assert program.returncode == 0, errors
    return told.splitlines()


def run(site, script, *arguments, **options):
    return finished(site.program(textwrap.dedent(script), *arguments, **options))


def test_a_map_runs_on_a_node_of_the_site(site):
    told = run(
        site,
        """
        import os, sys, hotlease
        def where(_):
            return os.readlink("/proc/self/ns/net")
        with hotlease.Executor(sys.argv[1]) as executor:
            print(sum(executor.map(lambda n: n * n, range(1000), chunksize=10)))
            here, there = where(None), set(executor.map(where, range(20)))
            print(len(there), here in there)
        """,
    )
    assert told == [str(sum(n * n for n in range(1000))), "1 False"]


def test_a_worker_on_another_host_gets_an_array_and_returns_one(site):
    pytest.importorskip("numpy")
    told = run(
        site,
        """
        import sys, numpy, hotlease, tasks
        with hotlease.Executor(1, manager=sys.argv[1]) as executor:
            for count in (10, 5_000, 1_000_000):
                mine = numpy.arange(float(count))
                theirs = executor.submit(tasks.scaled, mine, 3.0).result(60)
                print(numpy.array_equal(theirs, 3 * mine), mine.sum() == sum(range(count)))
                theirs += 1
            made = executor.submit(tasks.ones, 300_000)
            print(executor.submit(tasks.summed, made).result(60))
        """,
    )
    assert told == ["True True"] * 3 + ["300000.0"]


FAILING = """
    import sys, hotlease
    try:
        hotlease.Executor(1, manager=sys.argv[1], options=hotlease.ExecutorOptions(patience=float(sys.argv[2])))
    except hotlease.Error as error:
        print(type(error).__name__, error.ran, error)
"""


def test_an_identity_of_another_site_is_refused_and_the_error_says_so(site):
    stranger = site.hosts.identity("client", "--tenant", "alice", authority="other")
    (told,) = run(site, FAILING, 10, identity=stranger)
    assert told.split()[1] != "True" and "certificate" in told, told


def test_a_program_without_credentials_is_told_what_is_missing(site, tmp_path):
    (told,) = run(site, FAILING, 10, identity=tmp_path / "nowhere")
    assert "nowhere" in told, told


def test_a_tenant_that_no_node_serves_is_told_that(site):
    mallory = site.hosts.identity("client", "--tenant", "mallory")
    (told,) = run(site, FAILING, 0, identity=mallory)
    assert "mallory" in told, told


def test_a_run_goes_on_while_its_manager_is_killed_and_started_again(site, tmp_path, eventually):
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    program = site.program(
        textwrap.dedent(
            """
            import pathlib, sys, hotlease, tasks
            begun, gate = map(pathlib.Path, sys.argv[2:4])
            def slowly(n):
                import time
                time.sleep(0.005)
                return n
            with hotlease.Executor(2, manager=sys.argv[1], options=hotlease.ExecutorOptions(memo=True)) as executor:
                results = executor.map(slowly, range(1000))
                first = [next(results) for _ in range(50)]
                begun.touch()
                died = executor.submit(tasks.die_once, str(begun.with_name("died")))
                print(type(died.exception(60)).__name__)
                print([*first, *results] == list(range(1000)))
                print(executor.submit(tasks.wait_for, str(gate)).result(60) == str(gate))
            with hotlease.Executor(1, manager=sys.argv[1]) as executor:
                print(executor.submit(tasks.add, 1, 2).result(60))
            """
        ),
        begun,
        gate,
    )
    eventually(lambda: begun.exists() or program.poll() is not None, "it runs")
    site.kill_manager()
    # The agent replaces the worker that dies now, without the manager.
    eventually(lambda: (tmp_path / "died").exists() or program.poll() is not None, "a worker dies")
    site.start_manager()
    gate.touch()
    assert finished(program) == ["WorkerDied", "True", "True", "3"]
