"""Key of `multiprocessing`, by which processes authenticate each other: workers get the program's key, so that proxies of
its managers work in tasks.

A worker asks the program for the key when a proxy arrives. The program answers at a socket in a private folder. It answers
only if the kernel reports that the peer is a process of the same user, outside of a sandbox. So the key is never in a
message between hosts, nor in an argument list, an environment or a file. Imported when a proxy is first an argument.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import socket
import struct
import tempfile
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

# Seconds for one answer.
_WITHIN = 10.0
# Seconds until the next attempt to accept a peer, after an attempt failed.
_PAUSE = 0.1
# Process, user and group of a peer.
_CREDENTIALS = struct.Struct("3i")

_lock = threading.Lock()
# Path of this program's socket, once it is open; in a worker: path of the socket from which it got the key.
_path: Optional[str] = None


def reduce(proxy: Any) -> Any:
    """Pickles a proxy of a manager, for workers of this program."""
    return rebuilt, (_served(), *proxy.__reduce__())


def rebuilt(path: str, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Makes the proxy in a worker; first asks for the key."""
    global _path
    if path != _path:
        multiprocessing.current_process().authkey = _asked(path)
        _path = path
    return make(*arguments)


def _asked(path: str) -> bytes:
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_WITHIN)
            asking.connect(path)
            with asking.makefile("rb") as told:
                key = told.read()
        why = "" if key else "the program does not know it as one"
    except OSError as error:
        key, why = b"", f"{type(error).__name__}: {error}"
    if not key:
        raise PermissionError(
            "an argument is a proxy of a multiprocessing manager, whose key is only for workers on the program's host that run as its "
            f"user, outside of a sandbox; this worker did not get it: {why}"
        )
    return key


def _served() -> str:
    """Returns the path of the program's socket. The first call opens the socket."""
    global _path
    with _lock:
        if _path is None:
            # Only the user can enter the folder, so other users cannot reach the socket.
            folder = tempfile.mkdtemp(prefix="hotlease-key-")
            path = os.path.join(folder, "socket")
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(path)
            listening.listen()
            # The folder is removed after the end of all executors.
            atexit.register(_remove, folder, os.getpid())
            threading.Thread(target=_serve, args=(listening,), name="hotlease-key", daemon=True).start()
            _path = path
        return _path


def _remove(folder: str, process: int) -> None:
    # A forked child of the program must not remove the folder.
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _serve(listening: socket.socket) -> None:
    while True:
        try:
            peer, _ = listening.accept()
        except OSError:
            # For instance, there is no descriptor left for the connection.
            time.sleep(_PAUSE)
            continue
        with peer:
            try:
                if _is_trusted(peer):
                    peer.sendall(multiprocessing.current_process().authkey)
            except OSError:
                # The peer is gone, or its namespaces cannot be read: it gets no key.
                pass


def _is_trusted(peer: socket.socket) -> bool:
    """Whether a peer is a process of this user, in this process's mount and user namespaces: it is in no sandbox."""
    process, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if user != os.geteuid():
        return False
    return all(os.path.samefile(f"/proc/{process}/ns/{kind}", f"/proc/self/ns/{kind}") for kind in ("mnt", "user"))


def _begin_anew() -> None:
    """Forgets, in a forked child, the parent's socket, which only the parent serves."""
    global _path, _lock
    _path, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)
