"""Draws records.json: plot.py RECORDS.json PLOT.svg. Efficiency over the length of a task, and tasks per second."""

import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt


def main(records, plot):
    with open(records) as file:
        rows = json.load(file)["medians"]
    counts = sorted({row["workers"] for row in rows})
    names = list(dict.fromkeys(row["peer"] for row in rows))
    colours = {name: f"C{number}" for number, name in enumerate(names)}
    figure, axes = plt.subplots(2, len(counts), figsize=(6.5 * len(counts), 9), squeeze=False)
    for column, workers in enumerate(counts):
        curves, rates = axes[0][column], axes[1][column]
        chosen = [row for row in rows if row["workers"] == workers]
        for row in chosen:
            if curve := row.get("granularity"):
                points = [(point["length_us"], point["efficiency"]) for point in curve["curve"]]
                curves.plot(*zip(*points), marker="o", markersize=3, color=colours[row["peer"]], label=row["peer"])
        curves.axhline(0.5, color="0.6", linewidth=0.8)
        curves.set(xscale="log", ylim=(0, 1.05), xlabel="length of a task, us", ylabel="efficiency")
        curves.set_title(f"{workers} worker{'s' * (workers > 1)}")
        if curves.get_legend_handles_labels()[0]:
            curves.legend(fontsize=8, loc="lower right")
        measured = [row for row in chosen if row.get("submit")]
        rates.barh(
            [row["peer"] for row in measured], [row["submit"]["tasks_per_second"] for row in measured],
            color=[colours[row["peer"]] for row in measured],
        )
        rates.set(xscale="log", xlabel="no-op tasks per second, through submit")
        rates.invert_yaxis()
        for each in (curves, rates):
            each.grid(which="both", alpha=0.25)
    figure.tight_layout()
    figure.savefig(plot)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
