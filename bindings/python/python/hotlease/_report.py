"""`Executor.report`: one HTML file, which loads nothing from elsewhere."""

from __future__ import annotations

import html
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from typing import Optional, Union

from hotlease._names import counted
from hotlease._timing import ENDINGS, Row, Timing, timing

_PHASES = ("submitting", "waiting", "queued", "travelling", "running", "reading")
# Largest number of functions with a separate row and colour; all other functions share one row.
_FUNCTIONS_MAX = 12
_COLOURS = (
    "#3366cc", "#dc3912", "#ff9900", "#109618", "#990099", "#0099c6", "#dd4477",
    "#66aa00", "#b82e2e", "#316395", "#994499", "#22aa99", "#888888",
)  # fmt: skip


def write(path: Union[str, os.PathLike[str]], records: list[tuple[str, Row]], workers: int, submitted: int) -> None:
    """Writes the page."""
    page = _page([(name, timing(row)) for name, row in records], placed(records), workers, submitted)
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


def placed(records: list[tuple[str, Row]]) -> list[tuple[int, int, int, int]]:
    """Returns when each function ran: worker, begin and end (nanoseconds), and the number of the record.

    The worker measures how long the function ran. The executor measures when it saw the result: at the function's end
    or later. A worker runs its tasks in the order in which they were sent. So each bar is put at its latest possible
    position.
    """
    bars = []
    following: dict[int, int] = {}
    known = [(row[3], number) for number, (_, row) in enumerate(records) if row[3] and row[4] and row[5]]
    for _, number in sorted(known, reverse=True):
        row = records[number][1]
        ended, running, worker = row[4], row[5], row[7]
        end = min(ended, following.get(worker, ended))
        following[worker] = end - running
        bars.append((worker, end - running, end, number))
    bars.reverse()
    return bars


def percentile(ordered: list[float], part: float) -> float:
    """Returns the smallest value that is not exceeded by the share `part` of the values."""
    return ordered[min(len(ordered) - 1, max(0, -(-int(part * 1000) * len(ordered) // 1000) - 1))]


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 else f"{seconds:.0f} s"
    return f"{seconds * 1e6:.3g} us"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _spread(name: str, values: list[Optional[float]]) -> list[str]:
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return [html.escape(name), "0", *["-"] * 5]
    parts = [_time(percentile(ordered, part)) for part in (0.5, 0.9, 0.99)]
    return [html.escape(name), str(len(ordered)), *parts, _time(ordered[-1]), _time(sum(ordered))]


def _functions(tasks: list[tuple[str, Timing]]) -> list[str]:
    spent: dict[str, float] = {}
    for name, task in tasks:
        spent[name] = spent.get(name, 0.0) + (task.running or 0.0)
    return sorted(spent, key=lambda name: spent[name], reverse=True)[:_FUNCTIONS_MAX]


def _page(tasks: list[tuple[str, Timing]], bars: list[tuple[int, int, int, int]], workers: int, submitted: int) -> str:
    begin = min((int(task.submitted * 1e9) for _, task in tasks), default=0)
    end = max([begin, *(bar[2] for bar in bars)])
    span = (end - begin) / 1e9
    names = _functions(tasks)
    number_of = {name: number for number, name in enumerate(names)}
    spread = ("count", "median", "90 %", "99 %", "longest", "sum")
    phases = [_spread(phase, [getattr(task, phase) for _, task in tasks]) for phase in _PHASES]
    phases.append(_spread("all", [task.total for _, task in tasks]))
    functions = [_spread(name, [task.running for other, task in tasks if other == name]) for name in names]
    others = [task.running for name, task in tasks if name not in number_of]
    functions += [_spread("others", others)] if others else []
    for number, row in enumerate(functions):
        row[0] = f'<i style="background:{_COLOURS[number]}"></i>{row[0]}'
    busy: Counter[int] = Counter()
    had: Counter[int] = Counter()
    for at, begun, over, _ in bars:
        busy[at] += over - begun
        had[at] += 1
    occupancy = []
    for worker in range(workers):
        share = 100 * busy[worker] / max(1, end - begin)
        meter = f'<div class="meter"><div style="width:{share:.1f}%"></div></div>'
        occupancy.append([str(worker), str(had[worker]), _time(busy[worker] / 1e9), f"{share:.1f} %", meter])
    endings = Counter(task.ending for _, task in tasks)
    ended = ", ".join(f"{endings[ending]} {ending}" for ending in ENDINGS if endings[ending])
    data = {
        "workers": workers,
        "span": span,
        "names": [*names, "others"],
        "colours": _COLOURS,
        # Seconds from the first submission on, to a tenth of a microsecond.
        "bars": [
            [worker, round((begun - begin) / 1e9, 7), round((over - begun) / 1e9, 7), number_of.get(tasks[at][0], len(names))]
            for worker, begun, over, at in bars
        ],
    }
    left_out = submitted - len(tasks)
    parts = {
        "TASKS": f"{counted(len(tasks), 'task')} in {_time(span)}: {ended or 'none'}",
        "LEFT": f" These are the last ones; {left_out} before them are not shown (<code>timing=</code>)." if left_out > 0 else "",
        "PHASES": _table(("phase", *spread), phases),
        "FUNCTIONS": _table(("function", *spread), functions),
        "WORKERS": _table(("worker", "tasks", "in functions", "of the time", ""), occupancy),
        # The escape keeps `</script>` in a name from ending the script.
        "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }
    # In one pass: the name of a function may look like a placeholder.
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], _TEMPLATE)


_TEMPLATE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>hotlease: tasks</title>
<style>
body { font: 15px system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222; background: #fff }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin-top: 2em }
table { border-collapse: collapse } th, td { padding: .2em .8em; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
i { display: inline-block; width: .8em; height: .8em; margin-right: .5em }
.meter { width: 16em; height: .8em; background: #eee } .meter div { height: 100%; background: #109618 }
canvas { width: 100%; border: 1px solid #ddd; cursor: grab } .note { color: #666 } #told { min-height: 1.4em }
</style></head><body>
<h1>@TASKS@</h1>
<p class="note">@LEFT@</p>
<h2>Timeline</h2>
<canvas id="line" role="img" aria-label="What ran when on which worker"></canvas><div id="told" class="note"></div>
<p class="note">A row for each worker; colours as of the functions below. The wheel zooms, dragging moves, a double click shows all.
How long a function ran is its worker's word; when, is the latest that the order of results allows.</p>
<h2>Phases</h2>
@PHASES@
<p class="note">submitting: in <code>submit</code>, room waited for included; waiting: for results that it needs; queued: until it was
sent to a worker; travelling: there and back and its turn behind others that were sent there, without running; running: in the
function; reading: making objects of the result.</p>
<h2>Functions: running</h2>
@FUNCTIONS@
<h2>Workers</h2>
@WORKERS@
<script type="application/json" id="data">@DATA@</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const canvas = document.getElementById("line"), told = document.getElementById("told"), pen = canvas.getContext("2d");
const high = Math.max(6, Math.min(28, 480 / Math.max(1, data.workers))), axis = 20, all = Math.max(data.span, 1e-6);
let from = 0, wide = all, held = null;
const unit = s => s >= 1 ? s.toPrecision(3) + " s" : s >= 1e-3 ? (s * 1e3).toPrecision(3) + " ms" : (s * 1e6).toPrecision(3) + " us";
function draw() {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = high * data.workers + axis;
  canvas.style.height = height + "px"; canvas.width = width * ratio; canvas.height = height * ratio;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0); pen.clearRect(0, 0, width, height);
  for (const [worker, begin, took, name] of data.bars) {
    if (begin + took < from || begin > from + wide) continue;
    pen.fillStyle = data.colours[name];
    pen.fillRect((begin - from) / wide * width, worker * high + 1, Math.max(0.6, took / wide * width), high - 2);
  }
  pen.fillStyle = "#666"; pen.font = "11px sans-serif";
  for (let at = 0; at < 8; at++) pen.fillText(unit(from + wide * at / 8), width * at / 8 + 2, height - 5);
}
const moment = event => from + wide * event.offsetX / canvas.clientWidth;
function bound() { wide = Math.min(wide, all); from = Math.max(0, Math.min(from, all - wide)); draw(); }
canvas.addEventListener("wheel", event => {
  event.preventDefault();
  const here = moment(event), factor = event.deltaY > 0 ? 1.25 : 0.8;
  from = here - (here - from) * factor; wide = Math.max(wide * factor, 1e-6); bound();
}, { passive: false });
canvas.addEventListener("mousedown", event => { held = moment(event); });
window.addEventListener("mouseup", () => { held = null; });
canvas.addEventListener("mousemove", event => {
  if (held !== null) { from += held - moment(event); bound(); return; }
  const here = moment(event), slack = wide / canvas.clientWidth, row = Math.floor(event.offsetY / high);
  const bar = data.bars.find(([worker, begin, took]) => worker === row && begin - slack <= here && here <= begin + took + slack);
  told.textContent = bar ? data.names[bar[3]] + " on worker " + row + ": " + unit(bar[2]) + ", from " + unit(bar[1]) + " on" : "";
});
canvas.addEventListener("dblclick", () => { from = 0; wide = all; draw(); });
window.addEventListener("resize", draw); draw();
</script></body></html>
"""
