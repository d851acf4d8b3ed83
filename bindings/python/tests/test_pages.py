"""The Python blocks of the documentation run; the blocks of a section of a page are one program."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import hotlease

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "drop-in.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
SECTIONS = {section.splitlines()[0]: BLOCK.findall(section) for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]}
SAYS = {
    "joblib, and scikit-learn's n_jobs": "[0, 1, 8, 27, 64]\n{'n_neighbors': ",
    "Dask": "328350\n",
    "Parsl": "4\n",
    "Parsl's own kernel with a HotleaseExecutor": "4\n",
    "Providers and blocks": "4\n",
}


def test_every_section_has_a_program():
    assert SECTIONS.keys() == SAYS.keys() and all(SECTIONS.values())


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_s_program_runs(platform, section, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("".join(SECTIONS[section]))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(SAYS[section]), done.stdout + done.stderr


def test_the_page_of_errors_has_a_row_for_each_exception():
    page = (PAGE.parent / "errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)`", page.partition("\n## Of the Python package\n")[2], re.M)
    values = (getattr(hotlease, name) for name in dir(hotlease))
    exceptions = {value.__name__ for value in values if isinstance(value, type) and issubclass(value, Exception)}
    # Error and the warning are described in the text.
    assert sorted(exceptions - {"Error", "OverheadWarning"} | {"CancelledError"}) == sorted(rows)


@pytest.mark.parametrize("library", ["joblib", "dask", "parsl"])
def test_a_library_that_is_missing_is_named_with_its_remedy(library, tmp_path):
    script = f"import sys; sys.modules[{library!r}] = None; import hotlease; import hotlease.{library}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=os.environ)
    assert done.returncode == 1 and f"pip install {library}" in done.stderr.splitlines()[-1], done.stderr
