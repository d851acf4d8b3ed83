"""Formats records.json as a table in Markdown."""

COLUMNS = (
    ("there and back, median", "there_and_back", "p50_us", "us"),
    ("p99", "there_and_back", "p99_us", "us"),
    ("submit, tasks/s", "submit", "tasks_per_second", ""),
    ("chunks of 50, calls/s", "map", "calls_per_second", ""),
    ("chain, tasks/s", "chain", "tasks_per_second", ""),
    ("tree, adds/s", "tree", "adds_per_second", ""),
    ("METG(50 %)", "granularity", "metg50_us", "us"),
    ("1 MB echo", "echo", "p50_us", "us"),
)
# Words for a load that is no number of busy loops.
BESIDE = {"0": "", "compile": "; beside two compilers"}


def number(value):
    """Formats a number with three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cell(row, case, figure, unit):
    if case not in row:
        return ""
    value = row[case] and row[case][figure]
    return "none" if value is None else f"{number(value)} {unit}".strip()


def of(records):
    lines = []
    for workers in records["params"]["workers"]:
        rows = [row for row in records["medians"] if row["workers"] == workers]
        if not rows:
            continue
        lines += [
            f"{workers} worker{'s' * (workers > 1)}, medians of {records['params']['rounds']} rounds; {records['machine']['cpu']}, "
            f"{records['machine']['cores']} cores, load average {records['machine']['load_at_start']:.1f} at the start"
            + BESIDE.get(records["params"]["load"], f"; beside busy loops: {records['params']['load']}"),
            "",
            "| | " + " | ".join(title for title, *_ in COLUMNS) + " |",
            "|---" * (len(COLUMNS) + 1) + "|",
        ]
        for row in rows:
            versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
            title = row["peer"] + (f" ({versions})" if versions else "")
            lines.append(f"| {title} | " + " | ".join(cell(row, *column) for _, *column in COLUMNS) + " |")
        lines.append("")
    if any(not row["futures_as_arguments"] for row in records["medians"]):
        waiting = dict.fromkeys(row["peer"] for row in records["medians"] if not row["futures_as_arguments"])
        lines.append(f"In chain and tree the program waits for each result where futures are no arguments: {', '.join(waiting)}.")
    lines += [f"Left out: {name}, it cannot be installed." for name in records["left_out"]]
    lines += [f"Failed: {error['peer']}, {error['workers']} workers: {error['error']}" for error in records["errors"]]
    return "\n".join(lines) + "\n"
