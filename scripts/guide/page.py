"""Code blocks of a page, the commands in them, and the comparison of an output with the page."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROMPT = re.compile(r"^(node1# |hotlease\$ |# |\$ )(.*)$")


def blocks(page, section=None):
    """Code blocks of a page, or of one section: (heading, language, lines)."""
    heading, language, lines = "", None, []
    for line in (ROOT / page).read_text().splitlines():
        if language is None and line.startswith("```"):
            language, lines = line.removeprefix("```"), []
        elif language is not None and line == "```":
            if section in (None, heading):
                yield heading, language, lines
            language = None
        elif language is not None:
            lines.append(line)
        elif line.startswith("## "):
            heading = line[3:]


def commands(lines):
    """Commands in a console block: (prompt, command, lines shown below)."""
    typed, rest = None, ""
    for line in lines:
        match = not rest and PROMPT.match(line)
        if match:
            if typed:
                yield typed
            typed = match[1], match[2], []
            # A here-document: the lines up to this word belong to the command.
            rest = match[2].partition("<<'")[2].rstrip("'")
        elif rest:
            typed = typed[0], f"{typed[1]}\n{line}", []
            rest = "" if line == rest else rest
        elif typed and line:
            typed[2].append(line)
    if typed:
        yield typed


def is_shown(lines, printed):
    """Whether these lines are in the output."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"[ \t]*\n" for line in lines
    )
    return re.search(f"^{pattern}", f"{printed}\n", re.M)


def is_error(line):
    """Whether a line is an error of a program of hotlease, or of Python."""
    return line.startswith(("hotlease: ", "Traceback "))
