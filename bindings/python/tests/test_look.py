"""Observation of tasks by a program: times by phase, a report, progress, a hint."""

import functools
import html.parser
import json
import math
import re
import subprocess
import sys
import textwrap
import time

import pytest
import talking
import tasks

import hotlease
from hotlease import _outcomes, _programs, _report
from hotlease._timing import timing


@pytest.fixture(scope="module")
def timed(platform):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(timing=50)) as executor:
        yield executor


def run(script, **options):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=600, **options
    )


def test_a_task_is_timed_by_phase_and_the_phases_are_no_more_than_all(timed):
    begin = time.monotonic()
    future = timed.submit(time.sleep, 0.2)
    assert future.timing.running is None and future.timing.ending == "pending" and future.timing.total is None
    future.result(60)
    seen = time.monotonic()
    took = future.timing
    assert 0.2 <= took.running <= seen - begin, "of the function alone, on its worker"
    assert begin <= took.submitted and took.submitted + took.total <= seen, took
    phases = [took.submitting, took.waiting, took.queued, took.travelling, took.running, took.reading]
    assert all(phase is not None and phase >= 0 for phase in phases) and took.waiting == 0
    assert (took.worker, took.runs, took.ending) == (0, 1, "returned")


def test_a_task_waits_for_what_it_needs_and_then_in_the_queue(timed, tmp_path):
    gate = tmp_path / "gate"
    first = timed.submit(tasks.wait_for, str(gate))
    needs = timed.submit(tasks.concat, first, "s")
    behind = timed.submit(abs, -1)
    assert needs.timing.waiting is None, "it still does"
    time.sleep(0.3)
    gate.touch()
    assert needs.result(60) == f"{gate}s" and behind.result(60) == 1
    assert needs.timing.waiting > 0.2
    assert behind.timing.queued + behind.timing.travelling > 0.2, "its worker was busy with another one"


@pytest.mark.parametrize("seconds", [0.0, 1e-3, 0.1])
def test_exceptions_and_large_results_are_timed_as_others_are(timed, seconds):
    raised = timed.submit(tasks.sleep_and, seconds, "raise")
    assert isinstance(raised.exception(60), ValueError), "the time does not stand in the way of the exception"
    large = timed.submit(tasks.sleep_and, seconds, "large")
    assert large.result(60) == "x" * 100_000
    assert raised.timing.ending == "raised" and large.timing.ending == "returned"
    for future in (raised, large):
        assert seconds <= future.timing.running < seconds + 10


def test_unknown_times_are_none(timed, tmp_path):
    gate = tmp_path / "gate"
    blocker = timed.submit(tasks.wait_for, str(gate))
    waiting = [timed.submit(tasks.sleep, 0.01) for _ in range(3)]
    assert waiting[-1].cancel()
    took = waiting[-1].timing
    assert took.ending == "cancelled" and took.runs == 0
    assert took.queued is took.travelling is took.running is took.reading is took.worker is None
    gate.touch()
    died = timed.submit(tasks.die, 3)
    assert isinstance(died.exception(60), hotlease.WorkerDied)
    assert died.timing.ending == "failed" and died.timing.running is None and died.timing.runs >= 1
    assert blocker.result(60) == str(gate)


def test_remembered_results_are_the_same_with_times_and_without(platform, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(memo=True, checkpoint=checkpoint, timing=True)) as executor:
        made = executor.submit(tasks.add, executor.submit(tasks.add, 1, 2), 3)
        assert made.result(60) == 6 and made.timing.running is not None
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(memo=True, checkpoint=checkpoint)) as executor:
        assert executor.submit(tasks.mark_and_add, str(tmp_path / "ran"), 1).result(60) == 1
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(memo=True, checkpoint=checkpoint, timing=True)) as executor:
        again = executor.submit(tasks.mark_and_add, str(tmp_path / "ran"), 1)
        assert again.result(60) == 1 and again.timing.running is None, "it was not run"
    assert (tmp_path / "ran").read_text() == "x"


def test_nothing_is_timed_unless_asked_for(executor, tmp_path):
    future = executor.submit(abs, -1)
    assert future.result(60) == 1 and future.timing is None
    with pytest.raises(RuntimeError, match="timing=True"):
        executor.report(tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


class _Page(html.parser.HTMLParser):
    """Parser of a page: its tags, the resources they load, and the text of scripts and cells."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.open, self.cells, self.scripts = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.loaded += [value for name, value in attributes if name in ("src", "href", "action", "data")]
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, "each element is closed"

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data


def test_the_report_is_one_whole_page_of_the_last_tasks_and_loads_nothing(timed, tmp_path):
    for n in range(120):
        timed.submit(tasks.add, n)
    last = timed.submit(tasks.sleep, 0.2)
    last.result(60)
    timed.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    page = _Page(text)
    assert page.open == [] and page.loaded == [], "nothing from elsewhere"
    assert not re.search(r"https?:|url\(|import\s|fetch\(|XMLHttp", text)
    data = json.loads(page.scripts[0])
    # The last 50 tasks, as requested: 49 additions and the nap.
    assert len(data["bars"]) == 50 and data["names"][:2] == ["sleep", "add"], data
    assert "are not shown" in text
    naps = [bar for bar in data["bars"] if bar[3] == 0]
    assert len(naps) == 1 and naps[0][2] == pytest.approx(last.timing.running, abs=1e-6)
    ends = [begin + took for _, begin, took, _ in data["bars"]]
    begins = [begin for _, begin, _, _ in data["bars"]]
    assert all(end <= begin + 2e-7 for end, begin in zip(ends, begins[1:])), "one at a time on one worker"
    assert min(begins) >= 0 and max(ends) <= data["span"] + 1e-6
    assert {"submitting", "waiting", "queued", "travelling", "running", "reading", "all"} <= set(page.cells)


def test_a_report_of_nothing_and_of_strange_names_is_a_page(platform, tmp_path):
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(timing=True)) as executor:
        executor.report(tmp_path / "nothing.html")
        page = _Page((tmp_path / "nothing.html").read_text())
        assert page.open == [] and json.loads(page.scripts[0])["bars"] == []
    name = "</script><script>alert(1)</script>@DATA@"
    row = (1_000, 1_100, 1_100, 1_200, 9_000, 7_000, 10, 0, 1, 1)
    _report.write(tmp_path / "strange.html", [(name, row)], 1, 1)
    page = _Page((tmp_path / "strange.html").read_text())
    assert len(page.scripts) == 2 and json.loads(page.scripts[0])["names"][0] == name
    assert any(name in cell for cell in page.cells)


def test_bars_are_where_their_tasks_ran_at_the_latest():
    def row(sent, ended, running, slot=0):
        return (1, 1, 1, sent, ended, running, 0, slot, 1, 1)

    # Both results of worker 0 were seen at 100: the second task ran until then, the first task before the second.
    records = [("a", row(10, 100, 30)), ("b", row(11, 100, 20)), ("c", row(5, 50, 45, 1)), ("d", row(12, 0, 0))]
    assert sorted(_report.placed(records)) == [(0, 50, 80, 0), (0, 80, 100, 1), (1, 5, 50, 2)]


def test_percentiles_are_values_that_were_measured():
    ordered = [float(n) for n in range(1, 101)]
    assert [_report.percentile(ordered, part) for part in (0.5, 0.9, 0.99)] == [50, 90, 99]
    assert _report.percentile([7.0], 0.5) == _report.percentile([7.0], 0.99) == 7.0
    assert math.isclose(timing((5_000, 6_000, 6_000, 8_000, 20_000, 7_000, 0, 0, 1, 1)).total, 15e-6)


def test_progress_of_map_counts_what_is_drawn(executor, capsys):
    pytest.importorskip("tqdm")
    assert list(executor.map(abs, [-1, -2, -3], range(0), progress=True)) == []
    assert list(executor.map(abs, [-1, -2, -3], progress=True, chunksize=2)) == [1, 2, 3]
    told = capsys.readouterr().err
    assert "3/3" in told and "call" in told


def test_progress_of_an_executor_counts_what_has_ended(platform, capsys):
    pytest.importorskip("tqdm")
    with hotlease.Executor(1, options=hotlease.ExecutorOptions(progress=True)) as executor:
        futures = [executor.submit(abs, n) for n in range(30)]
        refused = executor.submit(abs, object().__reduce_ex__)
        assert refused.exception(60) is not None and futures[-1].result(60) == 29
    told = capsys.readouterr().err
    assert re.search(r"100%\|.*31/31", told), told
    assert executor._bar._thread.is_alive() is False


@pytest.mark.parametrize("load", ["parsl.load", "hotlease.parsl.load"])
def test_progress_of_parsl_s_apps_is_shown_on_both_kernels(platform, tmp_path, load):
    pytest.importorskip("tqdm")
    pytest.importorskip("parsl")
    done = run(
        f"""
        import parsl, hotlease.parsl

        @parsl.python_app
        def add(a, b):
            return a + b

        executors = [hotlease.parsl.HotleaseExecutor(max_workers=1, progress=True)]
        with {load}(parsl.config.Config(executors=executors, run_dir={str(tmp_path)!r}, usage_tracking=0)):
            print(sum(future.result() for future in [add(n, 1) for n in range(9)]))
        """
    )
    assert done.stdout == "45\n", done.stderr
    assert re.search(r"100%\|.*9/9", done.stderr), done.stderr


def test_output_of_tasks_does_not_break_a_progress_bar(executor, capsys):
    tqdm = pytest.importorskip("tqdm")
    with tqdm.tqdm(total=2, file=sys.stdout, mininterval=0) as bar:
        for n in range(2):
            executor.submit(talking.say, n).result(60)
            bar.update()
    shown = capsys.readouterr().out
    for n in range(2):
        # The bar is erased before the line is shown.
        assert re.search(rf"\r *\r\[say worker 0\] {n}\n", shown), shown


@pytest.mark.parametrize("use", ["hotlease.Executor(1, options=hotlease.ExecutorOptions(progress=True))", "hotlease.Executor(1).map(print, [1], progress=True)"])
def test_progress_without_tqdm_is_refused_before_anything_runs(platform, use):
    done = run(f"import sys; sys.modules['tqdm'] = sys.modules['tqdm.auto'] = None; import hotlease; {use}")
    assert done.returncode == 1 and "pip install tqdm" in done.stderr.splitlines()[-1], done.stderr
    assert done.stdout == ""


def test_a_program_of_tiny_tasks_is_told_once_with_both_figures(platform):
    done = run(
        """
        import hotlease
        with hotlease.Executor(1) as executor:
            for _ in range(3):
                for future in [executor.submit(abs, n) for n in range(4000)]:
                    future.result()
        """
    )
    told = [line for line in done.stderr.splitlines() if "OverheadWarning" in line]
    assert len(told) == 1 and told[0].startswith("<string>:5:"), done.stderr
    figures = re.search(r"submitting a task takes ([\d.]+) us here, running it ([\d.]+) us: .*chunksize=(\d+)", told[0])
    assert float(figures[1]) >= float(figures[2]) and 2 <= int(figures[3]) <= 1000


ADVICE = {
    "joblib": (
        """
        import joblib, hotlease.joblib
        with joblib.parallel_config(backend="hotlease"):
            joblib.Parallel(n_jobs=2, batch_size=1)(joblib.delayed(abs)(n) for n in range(4000))
        """,
        r"batches \d+ times as large, for instance: Parallel\(batch_size=\)",
    ),
    "dask": (
        """
        import dask, hotlease.dask
        tasks = [dask.delayed(abs)(n) for n in range(4000)]
        dask.compute(*tasks, scheduler=hotlease.dask.get)
        """,
        r"chunks or partitions (\d+) times as large, for instance, or compute\(chunksize=\1\)",
    ),
}


@pytest.mark.parametrize("library", ADVICE)
def test_a_program_of_tiny_tasks_of_a_library_s_is_told_what_that_library_offers(platform, library, tmp_path):
    pytest.importorskip(library)
    program, advice = ADVICE[library]
    done = run(program, cwd=tmp_path)
    told = [line for line in done.stderr.splitlines() if "OverheadWarning" in line]
    assert done.returncode == 0 and len(told) == 1 and re.search(advice, told[0]), done.stderr
    assert "chunksize" not in told[0] or library == "dask", "of map, which the program does not call"


@pytest.mark.parametrize(
    "through, advice",
    [
        ([], r"map\(\.\.\., chunksize=40\)"),
        (["hotlease._executor"], r"map\(\.\.\., chunksize=40\)"),
        (["hotlease.parsl.kernel", "parsl.app.python"], "apps that each do the work of 40, for instance"),
        (["hotlease.parsl.executor", "parsl.dataflow.dflow"], "apps that each do the work of 40, for instance"),
        (["hotlease.joblib", "joblib.parallel", "sklearn.utils.parallel"], "batches 40 times as large"),
    ],
)
def test_the_hint_goes_by_who_submits_and_points_at_the_program(through, advice):
    # Parsl's own calls cost so much that hotlease's share is seldom the larger share.
    call = functools.partial(_outcomes.hint, 20_000, 5_000)
    for module in through:
        frame = {"__name__": module, "call": call}
        exec("def submit():\n    return call()", frame)
        call = frame["submit"]
    with pytest.warns(hotlease.OverheadWarning, match=advice) as told:
        call()
    assert [warning.filename for warning in told] == [__file__]


def test_a_program_whose_tasks_are_worth_it_is_told_nothing(platform):
    done = run(
        """
        import hotlease, tasks
        with hotlease.Executor(1) as executor:
            for future in [executor.submit(tasks.sleep, 0.0005) for n in range(1200)]:
                future.result()
        """,
        cwd=tasks.__file__.rpartition("/")[0],
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_top_tells_what_workers_of_leases_do_between_two_looks(executor):
    executor.submit(abs, -1).result(60)
    command = [_programs.find("hotlease"), "top", "--json", "--interval", "2", "--count", "2"]
    top = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    first = json.loads(top.stdout.readline())
    calls = 0
    while top.poll() is None:
        executor.submit(time.sleep, 0.02).result(60)
        calls += 1
    rows = [json.loads(line) for line in top.stdout.read().splitlines()]
    assert top.returncode == 0 and first["busy"] is None and first["calls_per_second"] is None
    # There may be another worker, of this module's executor, which does nothing.
    busy = [row for row in rows if row["calls_per_second"]]
    assert len(busy) == 1 and busy[0]["calls_per_second"] <= calls and 0 <= busy[0]["busy"] <= 1, rows
