"""Reading of Rust sources by the checks: packages, files, and code without comments, literals and tests. Not a parser."""

import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Comments (without nested comments), raw strings, strings, characters. A lifetime is not a character.
NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\bb?r(?P<hashes>#*)".*?"(?P=hashes)|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\])'""", re.S
)
# An attribute that makes the next item a part of tests only, and further attributes.
TESTS_ONLY = re.compile(r"#\[cfg\((?:test|loom|fuzzing|all\((?:test|loom|fuzzing)\b[^\]]*)\)\]\s*(?:#\[[^\]]*\]\s*)*")


def tracked(*patterns):
    """Paths below the root of the files that git tracks and that exist."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    return [pathlib.Path(name) for name in listing.split("\0") if name and (ROOT / name).is_file()]


def packages():
    """Packages of the workspace, as `cargo metadata` describes them."""
    command = ["cargo", "metadata", "--format-version=1", "--no-deps", "--locked"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)["packages"]


def end_of_block(code, opening):
    """Offset behind the brace that closes the brace at `opening`."""
    depth = 0
    for match in re.compile("[{}]").finditer(code, opening):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return len(code)


def code_of(text):
    """Text without comments and literals (their line breaks stay), and without items that only tests have."""
    code = NOT_CODE.sub(lambda match: '""' + "\n" * match[0].count("\n"), text)
    while match := TESTS_ONLY.search(code):
        ends = re.compile("[;{]").search(code, match.end())
        end = len(code) if not ends else ends.end() if ends[0] == ";" else end_of_block(code, ends.start())
        code = code[: match.start()] + "\n" * code.count("\n", match.start(), end) + code[end:]
    return code
