"""Functions on gangs: ranks that run at the same time, send each other messages, and fail together."""

import concurrent.futures
import os
import signal
import tempfile
import textwrap
import threading
import time

import pytest
import ranks
from hosts import Hosts, Site

import hotlease
from hotlease import MPI, _gang

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


def pids(gang):
    return [pid for _, pid, _ in gang.run(ranks.where)]


@pytest.fixture(scope="module")
def gang(platform):
    with hotlease.Gang(2) as gang:
        yield gang


def test_results_are_in_the_order_of_ranks(gang):
    assert gang.run(ranks.ring) == [1, 0]
    assert gang.submit(ranks.total, 10, times=2).result(60) == [42, 42]
    assert [rank for rank, _, _ in gang.run(ranks.where)] == [0, 1]


def test_arrays_and_functions_by_value_arrive(gang):
    numpy = pytest.importorskip("numpy")
    sums = gang.run(ranks.array_total, numpy.arange(100_000.0))
    assert all(numpy.array_equal(each, 2 * numpy.arange(100_000.0)) for each in sums)
    by_how_much = 3
    assert gang.run(lambda: MPI.COMM_WORLD.rank * by_how_much) == [0, 3]


def test_calls_have_the_same_workers_and_see_nothing_of_each_other(gang):
    before = pids(gang)
    assert len(set(before)) == 2 and os.getpid() not in before
    gang.run(ranks.leave_a_message)
    assert gang.run(ranks.first_message) == ["fresh", "fresh"]
    assert [gang.run(ranks.finalize) for _ in range(2)] == [[0, 1], [0, 1]]
    assert pids(gang) == before


def test_calls_have_the_connections_of_those_before_until_one_fails(gang, tmp_path):
    before = gang.run(ranks.kept)
    assert len(set(before)) == 1, "all ranks have the same"
    assert gang.run(ranks.total, 1) == [3, 3]
    assert gang.run(ranks.kept) == before
    with pytest.raises(ValueError):
        gang.run(ranks.fail_at, 0, str(tmp_path / "told"))
    after = gang.run(ranks.kept)
    assert len(set(after)) == 1 and after != before


def test_a_worker_that_stood_still_between_calls_fails_none(gang):
    workers = pids(gang)
    os.kill(workers[1], signal.SIGSTOP)
    # Longer than members wait for a message of another member: they have declared the worker lost, or soon will.
    time.sleep(3)
    os.kill(workers[1], signal.SIGCONT)
    assert gang.run(ranks.total, 1) == [3, 3]
    assert pids(gang) == workers


def test_a_function_on_a_gang_is_offered_its_communicator(gang):
    assert gang.run(ranks.offered) == [(True, 2)] * 2
    with pytest.raises(RuntimeError, match="hotlease.spmd"):
        hotlease.communicator()


def test_an_exception_of_a_rank_is_raised_and_the_other_ranks_are_told(gang, monkeypatch, tmp_path):
    # Long enough for the busiest host.
    monkeypatch.setattr(_gang, "_GRACE", 60.0)
    with pytest.raises(ValueError, match="not on 1") as raised:
        gang.run(ranks.fail_at, 1, str(tmp_path / "told"))
    assert raised.value.hotlease_rank == 1
    assert "rank 1 of 2" in str(raised.value.__cause__)
    assert (tmp_path / "told").read_text() == "MemberLost 1"
    assert gang.run(ranks.ring) == [1, 0]


def test_a_worker_that_dies_is_named_by_its_rank(gang):
    with pytest.raises(hotlease.WorkerDied, match="rank 0 of 2") as raised:
        gang.run(ranks.die_at, 0)
    assert (raised.value.hotlease_rank, raised.value.exit_code) == (0, -signal.SIGKILL)
    assert gang.run(ranks.ring) == [1, 0]


def test_a_worker_that_died_between_calls_is_replaced(gang):
    before = pids(gang)
    os.kill(before[1], signal.SIGKILL)
    assert gang.run(ranks.ring) == [1, 0]
    assert before[1] not in pids(gang)


def test_ranks_that_do_not_come_together_begin_again_with_other_workers(alone, gang, monkeypatch):
    # As if a worker had died while the ranks were sent: one rank is queued behind another rank.
    gang._executor = hotlease.Executor(1)
    monkeypatch.setattr(_gang, "_JOIN", 0.2)
    lease = gang._lease

    def usual():
        monkeypatch.undo()
        return lease()

    monkeypatch.setattr(gang, "_lease", usual)
    assert gang.run(ranks.ring) == [1, 0]


def test_ranks_that_never_ask_are_ended_a_while_after_another_failed(gang, monkeypatch):
    before = pids(gang)
    monkeypatch.setattr(_gang, "_GRACE", 0.1)
    with pytest.raises(ValueError, match="not on 0") as raised:
        gang.run(ranks.fail_quietly_at, 0)
    assert raised.value.hotlease_rank == 0
    monkeypatch.undo()
    assert gang.run(ranks.ring) == [1, 0]
    assert not set(before) & set(pids(gang))


def test_a_call_is_cancelled_with_its_workers_and_those_behind_it_run(gang, tmp_path, eventually):
    gang.cancel()  # has no effect
    running = gang.submit(ranks.wait_without_end, str(tmp_path / "all are here"))
    following, dropped = gang.submit(ranks.ring), gang.submit(ranks.ring)
    assert dropped.cancel()
    eventually((tmp_path / "all are here").exists, "all ranks run")
    gang.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        running.result(60)
    assert following.result(60) == [1, 0]


def test_an_argument_that_does_not_pickle_raises_and_no_rank_waits(gang):
    with pytest.raises(TypeError, match="pickle"):
        gang.run(ranks.total, threading.Lock())
    assert gang.run(ranks.ring) == [1, 0]


def test_output_of_ranks_is_labelled_with_their_ranks(gang, capsys):
    gang.run(ranks.say)
    printed = capsys.readouterr().out.splitlines()
    assert sorted(printed) == ["[say worker 0] here is 0", "[say worker 1] here is 1"]


@pytest.fixture
def alone(gang):
    """Frees the cores, for this test's own gangs."""
    gang._give_back()


def test_a_gang_is_whole_or_not_at_all(alone):
    cores = len(os.sched_getaffinity(0))
    with pytest.raises(hotlease.Refused, match=f"room for .* of {cores + 1} workers"):
        hotlease.Gang(cores + 1, options=hotlease.ExecutorOptions(patience=0))
    with pytest.raises(hotlease.Refused):
        hotlease.Executor(cores + 1, options=hotlease.ExecutorOptions(at_least=cores + 1, patience=0))
    with pytest.raises(ValueError, match="at_least"):
        hotlease.Executor(1, options=hotlease.ExecutorOptions(at_least=0))
    with hotlease.Gang(cores - 1):
        with pytest.raises(hotlease.Refused) as raised:
            hotlease.Gang(2, options=hotlease.ExecutorOptions(patience=0))
        assert raised.value.ran is False
        # The cores that were free are still free.
        with hotlease.Executor(1, options=hotlease.ExecutorOptions(patience=30)) as executor:
            with pytest.raises(RuntimeError, match="no ranks run here"):
                executor.submit(hotlease.communicator).result(60)


def test_a_host_without_the_address_raises_an_error(alone):
    with pytest.raises(hotlease.NotRunning, match="192.0.2.1"):
        hotlease.Gang(1, address="192.0.2.1")
    with hotlease.Gang(1, address="127.0.0.2") as gang:
        assert gang.run(ranks.ring) == [0]


def test_gangs_that_want_the_same_workers_have_them_one_after_the_other(alone):
    cores = len(os.sched_getaffinity(0))

    def total(n):
        with hotlease.Gang(cores, options=hotlease.ExecutorOptions(patience=60)) as gang:
            return gang.run(ranks.total, n)[0]

    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        expected = [cores * n + cores * (cores - 1) // 2 for n in range(3)]
        assert list(threads.map(total, range(3))) == expected


def test_a_gang_past_its_deadline_is_ended(alone):
    with hotlease.Gang(2, timeout=0.5) as gang, pytest.raises(hotlease.DeadlineExceeded, match="rank . of 2"):
        gang.run(ranks.fail_quietly_at, 5)


def test_functions_that_run_on_ranks(alone):
    @hotlease.spmd(ranks=2)
    def total(n):
        return MPI.COMM_WORLD.allreduce(n)

    assert total(21) == [42, 42]
    assert total.submit(3).result(60) == [6, 6]
    assert total.local(5) == 5
    # A gang of another size now replaces the program's gang.
    assert hotlease.spmd(ranks.ring, ranks=1)() == [0]
    with pytest.raises(TypeError, match="ranks="):
        hotlease.spmd(ranks.ring)
    with pytest.raises(ValueError):
        hotlease.spmd(ranks.ring, ranks=0)
    _gang._kept[1].shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        _gang._kept[1].submit(ranks.ring)
    _gang._kept = None


@pytest.mark.parametrize(
    ("end", "said"), [("gang.submit(ranks.say), gang.submit(ranks.say)", 4), ("os.kill(os.getpid(), signal.SIGKILL)", 0)]
)
def test_nothing_is_left_of_a_program_that_ends(alone, run, eventually, end, said):
    program = f"""
        import os, signal, subprocess, sys, hotlease, ranks
        gang = hotlease.Gang(2)
        print(gang.run(ranks.ring), gang._rendezvous._process.pid, *(pid for _, pid, _ in gang.run(ranks.where)))
        child = os.fork()
        if child == 0:
            try:
                gang.run(ranks.ring)
            except RuntimeError as error:
                assert "forked" in str(error)
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        here = gang._rendezvous.secret
        group = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True).stdout
        assert b"rendezvous" in group and here not in group
        sys.stdout.flush()
        {end}
    """
    # Python 3.12 and later warn of forks in programs with threads. Here the child only checks an error, which is safe.
    done = run(textwrap.dedent(program), PYTHONWARNINGS="ignore::DeprecationWarning")
    assert done.stderr == ""
    told, *calls = done.stdout.splitlines()
    assert len(calls) == said, "calls that were submitted are run before the program ends"
    result, rendezvous, first, second = told.replace("[1, 0]", "ring").split()
    assert result == "ring"
    for pid in (rendezvous, first, second):
        eventually(lambda pid=pid: not os.path.exists(f"/proc/{pid}"), f"process {pid} has ended")


def test_more_ranks_than_cores_on_several_hosts():
    program = """
        import sys, hotlease, ranks
        with hotlease.Gang(4, manager=sys.argv[1]) as gang:
            print(gang.run(ranks.total, 1), gang.run(ranks.ring))
            told = gang.run(ranks.where)
            print([rank for rank, _, _ in told], len({pid for _, pid, _ in told}), len({host for _, _, host in told}))
            try:
                gang.run(ranks.die_at, 2)
            except hotlease.WorkerDied as error:
                print(error.hotlease_rank, gang.run(ranks.ring))
            hotlease._gang._GRACE = 0.1
            try:
                gang.run(ranks.fail_quietly_at, 3)
            except ValueError as error:
                print(error.hotlease_rank, gang.run(ranks.ring))
    """
    with tempfile.TemporaryDirectory(prefix="hlt-") as folder:
        hosts = Hosts(folder)
        try:
            site = Site(hosts, nodes=("node", "next"), share=False)
            program = site.program(textwrap.dedent(program))
            told, errors = program.communicate(timeout=120)
        finally:
            hosts.close()
    assert program.returncode == 0, errors
    assert told.splitlines() == ["[10, 10, 10, 10] [3, 0, 1, 2]", "[0, 1, 2, 3] 4 2", "2 [3, 0, 1, 2]", "3 [3, 0, 1, 2]"]


def test_the_example_finds_what_it_says(alone, monkeypatch, capsys):
    root = os.path.join(os.path.dirname(__file__), *[os.pardir] * 3)
    monkeypatch.chdir(root)
    path = os.path.join(root, "examples/09_kmeans/kmeans.py")
    with open(path) as file:
        code = compile(file.read(), path, "exec")
    monkeypatch.setattr("sys.argv", [path, "2"])
    exec(code, {"__name__": "example"})
    first, *clusters = capsys.readouterr().out.splitlines()
    assert "29,978 molecules on 2 ranks" in first
    with open(os.path.join(os.path.dirname(path), "README.md")) as file:
        assert "\n".join(clusters) in file.read()
