"""Draws the records of screening.py: plot.py RECORDS.jsonl CHART.svg. Runtime over the size of a batch."""

import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

COLOURS = {"loop": "0.4", "hotlease": "tab:red", "parsl_htex": "tab:blue"}
NAMES = {"loop": "loop in the program", "hotlease": "hotlease", "parsl_htex": "Parsl, HTEX"}
STYLES = ("-", "--", "-.", ":")


def main(records, chart):
    with open(records) as file:
        rows = [json.loads(line) for line in file]
    lines = {}
    for row in rows:
        lines.setdefault((row["system"], row["workers"]), []).append((row["batch"], row["seconds"]))
    counts = sorted({workers for _, workers in lines})
    figure, axes = plt.subplots(figsize=(8, 5))
    for (system, workers), points in lines.items():
        label = NAMES[system] + ("" if system == "loop" else f", {workers} worker{'s' * (workers > 1)}")
        style = STYLES[counts.index(workers) % len(STYLES)]
        axes.plot(*zip(*sorted(points)), style, marker="o", markersize=4, color=COLOURS[system], label=label)
    axes.set(xscale="log", yscale="log", xlabel="molecules in a batch", ylabel="seconds")
    axes.set_title(f"Screening of {rows[0]['molecules']:,} molecules ({rows[0]['distinct']:,} different), {rows[0]['cores']} cores")
    axes.grid(which="both", alpha=0.25)
    axes.legend()
    figure.tight_layout()
    figure.savefig(chart)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
