"""Large results that only other tasks need. The workers are on two hosts and the program is on a third host: the results are
sent from worker to worker, and not through the program."""

import os
import subprocess
import tempfile
import textwrap

import pytest
from hosts import Hosts, Site

pytest.importorskip("numpy")

_BEGIN = """
import concurrent.futures, os, pathlib, sys, time, hotlease, passing, tasks

def eventually(holds, what):
    end = time.monotonic() + 15
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)

def begin(**options):
    made = hotlease.Executor(2, manager=sys.argv[1], options=hotlease.ExecutorOptions(**options))
    eventually(lambda: made._slots() == 2, "both workers are there")
    gate = pathlib.Path(sys.argv[2]) / "both"
    gate.unlink(missing_ok=True)
    # One task on each worker: neither ends before both have begun.
    hosts = [made.submit(passing.met, str(gate), n) for n in range(2)]
    assert len({host.result(60) for host in hosts}) == 2, "the workers are on one host"
    return made

def kill(path):
    pid = int(open(path).read().split()[1])
    os.kill(pid, 9)
    eventually(lambda: not os.path.exists(f"/proc/{pid}"), "the worker is dead")
    def is_known():
        try:
            pids = {future.result(60) for future in [executor.submit(passing.short) for _ in range(20)]}
        except hotlease.WorkerDied:
            return False
        return len(pids) == 2 and pid not in pids
    eventually(is_known, "and another one has taken its place")

folder = pathlib.Path(sys.argv[2])
gate = str(folder / "gate")
"""


@pytest.fixture(scope="module")
def site():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    # Not pytest's folders: a socket's path has 108 bytes at most.
    with tempfile.TemporaryDirectory(prefix="hlt-") as folder:
        hosts = Hosts(folder)
        try:
            yield Site(hosts, nodes=("node", "next"))
        finally:
            hosts.close()


@pytest.fixture
def run(site, tmp_path):
    """Runs a program on the client's host; returns its output, by lines."""

    def run(script):
        program = site.program(_BEGIN + textwrap.dedent(script), tmp_path)
        try:
            told, errors = program.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            # The next test needs the program's workers.
            program.kill()
            raise
        assert program.returncode == 0, errors
        return told.splitlines()

    return run


def test_results_that_tasks_on_two_hosts_need_do_not_pass_through_the_program(run):
    told = run(
        """
        with begin() as executor:
            before = passing.passed()
            make = lambda value: executor.submit(passing.made, 20, value, gate)
            add = lambda one, two: executor.submit(passing.added_on, one, two)
            first = lambda pair: executor.submit(passing.first_of, pair)
            # The program keeps futures only of the results that it looks at.
            seen = executor.submit(passing.looked_at, first(add(first(add(make(1), make(2))), first(add(make(3), make(4))))))
            pathlib.Path(gate).touch()
            print(seen.result(120)[:2])
            print("bytes", passing.passed() - before)
        """
    )
    assert told[0] == "(10.0, 10.0)"
    passed = int(told[1].split()[1])
    # Four arrays and three sums were made, each of 20 MB.
    assert passed < 1_000_000, f"{passed} bytes went through the program's host"


def test_a_chain_stays_on_its_host(run):
    told = run(
        """
        with begin() as executor:
            before = passing.passed()
            future = executor.submit(passing.made, 20, 0, gate)
            for _ in range(10):
                future = executor.submit(passing.increased, future)
            future = executor.submit(passing.looked_at, future)
            pathlib.Path(gate).touch()
            print(future.result(120))
            print(passing.passed() - before < 1_000_000)
        """
    )
    assert told == ["(10.0, 10.0, 2621440, True)", "True"]


def test_a_result_that_two_tasks_need_is_each_ones_own(run):
    told = run(
        """
        with begin() as executor:
            array = executor.submit(passing.made, 5, 1, gate)
            both = [executor.submit(passing.added, array, array) for _ in range(4)]
            looked = [executor.submit(passing.looked_at, one) for one in both]
            del array, both
            pathlib.Path(gate).touch()
            print({one.result(60)[0] for one in looked})
        """
    )
    assert told == ["{2.0}"]


_KILLED = """
    with begin() as executor:
        asked = executor.options(idempotent={idempotent})
        later = concurrent.futures.Future()
        path = str(folder / "runs")
        # Only after its future is gone: its result would come here otherwise.
        total = asked.submit(passing.looked_at, asked.submit(passing.made, 20, 3, gate, path), later)
        pathlib.Path(gate).touch()
        eventually(lambda: executor._pending() == 1, "the array is made")
        try:
            kill(path)
        finally:
            later.set_result(None)
        try:
            print(total.result(60)[:3])
        except hotlease.DependencyError as error:
            print(error.chain, error.ran, type(error.__cause__).__name__, error.__cause__.ran)
            print(error.__cause__)
        print(len(open(path).readlines()))
"""


def test_a_result_whose_worker_died_is_made_once_more_if_it_may_be(run):
    assert run(_KILLED.format(idempotent=True)) == ["(3.0, 3.0, 2621440)", "2"]


def test_a_result_whose_worker_died_fails_what_needs_it_with_the_chain(run):
    chain, text, runs = run(_KILLED.format(idempotent=False))
    assert chain == "('looked_at', 'made') False TaskError True"
    assert "the function ran, but its result is lost" in text and "worker" in text
    assert runs == "1"


def test_the_program_carries_a_result_if_the_hosts_have_no_path_between_them(run, site):
    def block(*what):
        for one, other in (("node", "next"), ("next", "node")):
            where = site.hosts.namespace(one)
            route = ["ip", "-n", where, "route", *what, "blackhole", f"{site.hosts.address(other)}/32"]
            subprocess.run(route, check=True, timeout=60)

    block("add")
    try:
        told = run(
            """
            with begin() as executor:
                two = [executor.submit(passing.made, 20, value, gate) for value in (1, 2)]
                total = executor.submit(passing.looked_at, executor.submit(passing.added, *two))
                del two
                pathlib.Path(gate).touch()
                print(total.result(60)[:3])
            """
        )
    finally:
        block("del")
    assert told == ["(3.0, 3.0, 2621440)"]


def test_a_held_future_gives_its_value_also_when_the_executor_is_shut_down(run):
    told = run(
        """
        with begin() as executor:
            one, two = (executor.submit(passing.made, 20, value, gate) for value in (1, 2))
            total = executor.submit(passing.looked_at, executor.submit(passing.added, one, two))
            pathlib.Path(gate).touch()
            print(total.result(60)[:2], one.done(), two.done())
            print(one.result(60)[0], one.exception(), one.result()[-1])
            # The result is known here now, and passed on from here.
            print(executor.submit(passing.looked_at, one).result(60)[0])
        print(two.result(60)[0], two.result().size)
        """
    )
    assert told == ["(3.0, 3.0) True True", "1.0 None 1.0", "1.0", "2.0 2621440"]


def test_callbacks_memo_and_checkpoints_have_the_value(run):
    told = run(
        """
        seen = []
        with begin(checkpoint=str(folder / "checkpoint")) as executor:
            one = executor.submit(passing.made, 5, 1, gate)
            one.add_done_callback(lambda future: seen.append(float(future.result()[0])))
            remembered = executor.options(memo=True)
            two = remembered.submit(passing.made, 5, 2)
            looked = [remembered.submit(passing.looked_at, each) for each in (one, two, executor.submit(passing.made, 5, 3))]
            pathlib.Path(gate).touch()
            print([each.result(60)[0] for each in looked])
            print(remembered.submit(passing.made, 5, 2).result(60)[0], seen)
        again = hotlease.ExecutorOptions(checkpoint=str(folder / "checkpoint"), memo=True)
        with hotlease.Executor(2, manager=sys.argv[1], options=again) as executor:
            print(executor.submit(passing.looked_at, executor.submit(passing.made, 5, 2)).result(60)[0])
        """
    )
    assert told == ["[1.0, 2.0, 3.0]", "2.0 [1.0]", "2.0"]


def test_nothing_is_left_behind(run):
    told = run(
        """
        with begin() as executor:
            def rounds(number):
                for _ in range(number):
                    futures = [executor.submit(passing.made, 10, n) for n in range(4)]
                    total = executor.submit(passing.added, *futures[:2]), executor.submit(passing.added, *futures[2:])
                    assert executor.submit(passing.looked_at, executor.submit(passing.added, *total)).result(60)[0] == 6
                del futures, total
            def states():
                found = {}
                while len(found) < 2:
                    for pid, *state in executor.map(lambda _: passing.state(), range(20)):
                        found[pid] = state
                return found
            rounds(5)
            before, mine = states(), len(os.listdir("/proc/self/fd"))
            rounds(30)
            eventually(lambda: executor._pending() == 0, "all is told")
            def is_back():
                after = states()
                return after.keys() == before.keys() and all(
                    after[pid][0] <= before[pid][0] and after[pid][1] < before[pid][1] + (64 << 20) for pid in after
                )
            eventually(is_back, f"{before} {states()}")
            print(len(os.listdir("/proc/self/fd")) <= mine + 8)
        """
    )
    assert told == ["True"]
