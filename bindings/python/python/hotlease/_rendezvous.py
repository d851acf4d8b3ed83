"""Rendezvous of a gang's ranks: ``hotlease comm rendezvous``, which ends with this program."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import tempfile
from typing import IO, Optional
from urllib.parse import urlsplit

from hotlease import _programs
from hotlease.errors import NotRunning

# The shell reads until this program closes its end of the pipe, or ends. Only the child writes to standard output.
_WITH_ITS_PARENT = '"$@" & child=$!; exec >&-; read -r _; kill $child; wait $child'


class Rendezvous:
    """Process of a rendezvous: serves members that have its secret, until it is closed."""

    def __init__(self, address: str) -> None:
        self.secret = secrets.token_hex(32).encode()
        try:
            program = _programs.find("hotlease")
        except FileNotFoundError as error:
            raise NotRunning(f"ranks cannot find each other: {error}", False) from None
        listen = f"[{address}]:0" if ":" in address else f"{address}:0"
        errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _WITH_ITS_PARENT, "sh", program, "--json", "comm", "rendezvous", "--listen", listen],
            env={**os.environ, "HOTLEASE_COMM_SECRET": self.secret.decode()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            # Ctrl-C must reach this program only.
            start_new_session=True,
        )
        said = _opened(self._process.stdout).readline()
        if not said:
            self.close()
            errors.seek(0)
            why = errors.read().decode(errors="replace").strip()
            raise NotRunning(f"ranks cannot find each other at address={address!r}: {why}", False)
        self.address = str(json.loads(said)["listen"])

    def close(self) -> None:
        """Ends the process."""
        _opened(self._process.stdin).close()
        self._process.wait()
        _opened(self._process.stdout).close()


def _opened(stream: Optional[IO[bytes]]) -> IO[bytes]:
    assert stream is not None
    return stream


def own_address(manager: Optional[str]) -> str:
    """Returns the address from which this host reaches a manager; most likely the workers' hosts reach this host at the
    same address."""
    if not manager:
        return "127.0.0.1"
    # Uses the first manager of several.
    parts = urlsplit(manager.split(",")[0])
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            # Connecting a datagram socket sends nothing.
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise NotRunning(f"this host has no way to the manager {manager}: {error}", False) from error
