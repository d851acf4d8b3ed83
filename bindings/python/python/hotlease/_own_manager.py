"""A manager that this program starts, for agents of other hosts that join later. Its authority is in a private folder."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Optional, Union

from hotlease import _programs
from hotlease.errors import ClusterError

# Tenant of the program at its own manager.
TENANT = "owner"
# Queue of the manager's allocator.
QUEUE = "python"
_ANSWERS_WITHIN = 60
_CLOSES_WITHIN = 90

# Script that starts the manager, and later the allocator. Ends both when the program ends in any way, which closes the
# script's standard input. First cancels the allocator's jobs; last removes the folder with the authority.
_KEEPER = r"""
program=$1 folder=$2 every=$3 queue=$4
trap : HUP INT TERM
cd "$folder" || exit 1
run=$(mktemp -d "${TMPDIR:-/tmp}/hotlease-XXXXXXXX") || exit 1
HOTLEASE_RUNTIME_DIR=$run "$program" --json manager --listen 0.0.0.0:0 --identity manager --in-memory 2>manager.log &
manager=$!
# The program sees the end of this output if the manager does not start.
exec >/dev/null
allocator=
read -r address
if [ -n "$address" ] && [ "$address" != - ]; then
    "$program" alloc serve --alloc-dir alloc --every "$every" --manager "$address" --identity client >allocator.log 2>&1 &
    allocator=$!
    read -r end
fi
if [ -n "$allocator" ]; then
    kill "$allocator"
    wait "$allocator"
    "$program" alloc rm --alloc-dir alloc "$queue" || failed=1
fi
kill "$manager"
wait "$manager"
rm -rf "$run"
cd / && rm -rf "$folder"
exit ${failed:-0}
"""


class OwnManager:
    """A manager that this program starts. It ends with the program, or by `close`.

    Parameters
    ----------
    host
        Name or address at which other hosts reach this host. Default: this host's name.
    directory
        Directory in which the manager's folder is made; the nodes must see it. Default: ``$HOTLEASE_CLUSTERS_DIR``, else
        ``hotlease/clusters`` in ``$XDG_STATE_HOME`` or ``~/.local/state``.

    Raises
    ------
    ClusterError
        If the manager does not start.
    """

    def __init__(
        self, host: Optional[str] = None, directory: Union[str, os.PathLike[str], None] = None, every: float = 5.0
    ) -> None:
        try:
            self.program = _programs.find("hotlease")
        except FileNotFoundError as error:
            raise ClusterError(f"the cluster's manager cannot be started: {error}") from None
        self.host = host or socket.gethostname()
        self._keeper: Optional[subprocess.Popen[str]] = None
        try:
            above = Path(directory) if directory is not None else _clusters()
            above.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Only this user can enter the folder, because the authority's key is in it.
            self.folder = Path(tempfile.mkdtemp(prefix=f"{socket.gethostname()}-{os.getpid()}-", dir=above.resolve()))
        except OSError as error:
            raise ClusterError(f"the cluster's folder cannot be made: {error}") from error
        self.authority, self.client = self.folder / "ca", self.folder / "client"
        try:
            self.run("identity", "init", "--dir", self.authority)
            for out, *role in (("manager", "manager", "--host", self.host), ("client", "client", "--tenant", TENANT)):
                at = ("--dir", self.authority, "--out", self.folder / out)
                self.run("identity", "issue", *at, "--days", "365", "--role", *role)
            self.address = f"https://{self.host}:{self._start(every)}"
        except BaseException:
            self._end()
            raise

    def _start(self, every: float) -> int:
        """Starts the manager; returns its port."""
        command = ["/bin/sh", "-c", _KEEPER, "sh", self.program, str(self.folder), f"{max(1, round(every * 1000))}ms", QUEUE]
        keeper = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=_plain(),
            # Ctrl-C in the program's terminal must not end the manager.
            start_new_session=True,
        )
        self._keeper = keeper
        assert keeper.stdout is not None
        said = keeper.stdout.readline()
        if not said:
            log = self.folder / "manager.log"
            why = log.read_text().strip() if log.exists() else "its folder is not accessible"
            raise ClusterError(f"the cluster's manager does not start: {why}")
        return int(json.loads(said)["listen"].rpartition(":")[2])

    def serve_queue(self) -> None:
        """Starts the allocator."""
        self._say(self.address)

    def _say(self, line: str) -> None:
        assert self._keeper is not None and self._keeper.stdin is not None
        self._keeper.stdin.write(line + "\n")
        self._keeper.stdin.flush()

    def run(self, *arguments: Any) -> list[Any]:
        """Runs a command of ``hotlease``; returns the objects that it prints.

        Raises
        ------
        ClusterError
            If the command fails, with the command's own words.
        """
        command = [self.program, "--json", *map(str, arguments)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWERS_WITHIN, env=_plain()
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ClusterError(f"hotlease {arguments[0]} {arguments[1]} cannot be run: {error}") from error
        if done.returncode != 0:
            raise ClusterError(_complaint(done.stderr) or f"hotlease {arguments[0]} {arguments[1]} failed: {done.returncode}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def alloc(self, verb: str, *arguments: Any) -> list[Any]:
        """Runs a command of ``hotlease alloc`` for the manager's allocator."""
        return self.run("alloc", verb, "--alloc-dir", self.folder / "alloc", *arguments)

    def agents(self) -> int:
        """Returns the number of agents that serve."""
        listed = self.run("agents", "--manager", self.address, "--identity", self.client)
        return sum(agent["state"] == "serving" for agent in listed)

    @property
    def is_closed(self) -> bool:
        return self._keeper is None

    def close(self) -> None:
        """Cancels the allocator's jobs, and ends the manager. Returns when the manager has ended.

        Raises
        ------
        ClusterError
            If jobs may be left.
        """
        keeper = self._end()
        if keeper is not None and keeper.returncode != 0:
            raise ClusterError("jobs of the cluster may be left: the batch system did not accept that they are cancelled")

    def _end(self) -> Optional[subprocess.Popen[str]]:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            return None
        assert keeper.stdin is not None and keeper.stdout is not None
        try:
            # Two lines, because the script may be at either of its two reads. Closing the pipe is not enough: a child of this
            # program may also have it open.
            keeper.stdin.write("-\n-\n")
            keeper.stdin.close()
        except OSError:
            # The script has ended already.
            pass
        try:
            keeper.wait(_CLOSES_WITHIN)
        except subprocess.TimeoutExpired:
            raise ClusterError(
                f"the batch system does not answer: jobs may be left. They are cancelled by process {keeper.pid} when it does"
            ) from None
        finally:
            keeper.stdout.close()
        return keeper


def _clusters() -> Path:
    named = os.environ.get("HOTLEASE_CLUSTERS_DIR")
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME", "")
    return Path(state if os.path.isabs(state) else os.path.expanduser("~/.local/state")) / "hotlease" / "clusters"


def _plain() -> dict[str, str]:
    """Returns the environment without the variables that name another platform or identity."""
    theirs = ("HOTLEASE_MANAGER", "HOTLEASE_IDENTITY", "HOTLEASE_KEY_FILE", "HOTLEASE_TOKEN_FILE", "HOTLEASE_MUNGE")
    return {name: value for name, value in os.environ.items() if name not in theirs}


def _complaint(text: str) -> str:
    """Returns the error in the JSON output of a command, as text."""
    lines = text.strip().splitlines()
    try:
        return str(json.loads(lines[-1])["error"])
    except (IndexError, KeyError, TypeError, ValueError):
        return text.strip()
