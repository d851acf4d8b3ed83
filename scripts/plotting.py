"""matplotlib in a virtual environment of its own (target/plot, made if it is missing), and records to plot."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

MATPLOTLIB = "matplotlib==3.10.0"
ENVIRONMENT = Path(__file__).resolve().parent.parent / "target" / "plot"


def enter_environment():
    """Starts this program again in the environment, unless it runs there. Sets matplotlib up for SVG."""
    python = ENVIRONMENT / "bin" / "python"
    if Path(sys.prefix) != ENVIRONMENT:
        ready = ENVIRONMENT / "ready"
        if not ready.exists() or ready.read_text() != MATPLOTLIB:
            venv.create(ENVIRONMENT, with_pip=True, clear=True)
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
            if subprocess.run([*pip, MATPLOTLIB]).returncode != 0:
                sys.exit(f"{Path(sys.argv[0]).name}: {MATPLOTLIB} cannot be had; the plot needs it")
            ready.write_text(MATPLOTLIB)
        os.execv(python, [python, *sys.argv])
    import matplotlib

    matplotlib.use("svg")
    # The same records give the same file, in which text stays text.
    matplotlib.rcParams.update({"svg.hashsalt": "hotlease", "svg.fonttype": "none", "font.size": 9})


def read_records(paths):
    """JSON objects of files that have one in each line."""
    records = []
    for path in paths:
        for number, line in enumerate(Path(path).read_text().splitlines(), 1):
            try:
                records.append(json.loads(line))
            except ValueError as error:
                sys.exit(f"{Path(sys.argv[0]).name}: {path}:{number} is no JSON: {error}")
    return records


def save(figure, target):
    figure.savefig(target, format="svg", metadata={"Date": None})
