"""Hosts on this node, and daemons of a site on them. The hosts are network namespaces; a bridge in a further namespace joins
them. As in `tests/src/hosts.rs`, nothing is visible or changed outside of these namespaces. Leftovers of a killed test have
names that start with `hlt-PID-`; the next test removes them.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from hotlease import _programs

_LIMIT = 60
_NAMES = ("client", "manager", "node", "next")
# Variables of the user who runs the tests; the hosts' programs do not get them.
_NOT_THEIRS = ("HOTLEASE_MANAGER", "HOTLEASE_IDENTITY", "HOTLEASE_KEY_FILE", "HOTLEASE_TOKEN_FILE", "HOTLEASE_MUNGE")


def _ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=_LIMIT)


def _remove_stale():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=_LIMIT).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith("hlt-")):
        if not os.path.exists(f"/proc/{name.split('-')[1]}"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=_LIMIT)


class Hosts:
    """A client's host, a manager's host and two nodes, each with its own files in a folder."""

    def __init__(self, folder):
        if os.geteuid() != 0:
            pytest.skip("several hosts on one machine need root")
        self._folder = pathlib.Path(folder)
        # In this folder, each host sees only its own sockets: a client that finds an agent's socket is on the agent's
        # host.
        self._run = self._folder / "run"
        self._prefix = f"hlt-{os.getpid()}-python"
        self._namespaces = []
        self._daemons = []
        _remove_stale()
        try:
            self._join()
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            words = getattr(error, "stderr", None) or error
            pytest.skip(f"several hosts on one machine need network namespaces and iproute2: {words}")

    def _add(self, name):
        namespace = self.namespace(name)
        _ip("netns", "add", namespace)
        self._namespaces.append(namespace)
        _ip("-n", namespace, "link", "set", "lo", "up")
        return namespace

    def _join(self):
        hub = self._add("hub")
        _ip("-n", hub, "link", "add", "hub", "type", "bridge", "stp_state", "0")
        _ip("-n", hub, "link", "set", "hub", "up")
        for name in _NAMES:
            namespace, port = self._add(name), f"to-{name}"
            _ip("-n", namespace, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", hub)
            _ip("-n", hub, "link", "set", port, "master", "hub", "up")
            _ip("-n", namespace, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            self.runtime(name).mkdir(mode=0o700)
        self._run.mkdir(mode=0o700)

    def namespace(self, name):
        return f"{self._prefix}-{name}"

    @staticmethod
    def address(name):
        return f"10.78.0.{1 + _NAMES.index(name)}"

    def runtime(self, name):
        """Returns the folder of a host's sockets."""
        return self._folder / name

    def identity(self, role, *arguments, authority="ca"):
        """Makes a folder with an identity that the site's authority, or another authority, has issued."""
        if not (self._folder / authority).exists():
            self._issue("init", "--dir", self._folder / authority)
        out = self._folder / f"identity-{len(list(self._folder.iterdir()))}"
        self._issue("issue", "--dir", self._folder / authority, "--role", role, *arguments, "--out", out)
        return str(out)

    def _issue(self, *arguments):
        command = [_programs.find("hotlease"), "identity", *map(str, arguments)]
        subprocess.run(command, check=True, capture_output=True, timeout=_LIMIT)

    def start(self, name, *command, environment=None, **options):
        """Starts a program on a host."""
        theirs = {key: value for key, value in os.environ.items() if key not in _NOT_THEIRS}
        theirs.update(environment or {}, HOTLEASE_RUNTIME_DIR=str(self._run))
        seen = ["sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(self.runtime(name)), str(self._run)]
        command = ["ip", "netns", "exec", self.namespace(name), *seen, *command]
        return subprocess.Popen(command, env=theirs, stdin=subprocess.DEVNULL, text=True, **options)

    def daemon(self, name, *arguments):
        """Starts a daemon on a host; returns when it serves, with its first output."""
        log = open(self._folder / f"{name}.log", "a")
        program = _programs.find("hotlease")
        daemon = self.start(name, program, "--json", *arguments, stdout=subprocess.PIPE, stderr=log)
        log.close()
        self._daemons.append(daemon)
        said = daemon.stdout.readline()
        assert said, f"{name} does not serve:\n{(self._folder / f'{name}.log').read_text()}"
        return daemon, json.loads(said)

    def close(self):
        for daemon in reversed(self._daemons):
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGINT)
            try:
                daemon.wait(_LIMIT)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            daemon.stdout.close()
        for namespace in reversed(self._namespaces):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, timeout=_LIMIT)


class Site:
    """A manager, agents (each with both cores of the machine, or with its share of the two), and the data that a client needs."""

    def __init__(self, hosts, nodes=("node",), share=True):
        self.hosts = hosts
        state = hosts.runtime("manager") / "state"
        identity = hosts.identity("manager", "--host", hosts.address("manager"))
        self._manager = ("manager", "--identity", identity, "--state-dir", str(state))
        self.manager, said = hosts.daemon("manager", *self._manager, "--listen", f"{hosts.address('manager')}:0")
        self._listen = said["listen"]
        self.url = f"https://{self._listen}"
        cores = sorted(os.sched_getaffinity(0))[:2]
        for number, node in enumerate(nodes):
            address = hosts.address(node)
            identity = hosts.identity("agent", "--host", address, "--tenant", "alice")
            its = "".join(f"{core}," for core in (cores[number :: len(nodes)] if share else cores))
            agent = ("agent", "--manager", self.url, "--identity", identity, "--listen", f"{address}:0")
            hosts.daemon(node, *agent, "--cores", its, "--in-memory")
        self.client = hosts.identity("client", "--tenant", "alice")

    def kill_manager(self):
        self.manager.kill()
        self.manager.wait()

    def start_manager(self):
        """Starts the manager again, at its old address and with its old state."""
        self.manager, _ = self.hosts.daemon("manager", *self._manager, "--listen", self._listen)

    def program(self, script, *arguments, identity=None):
        """Starts a Python program on the client's host. Workers on the node import the tests' modules from the program's
        folder."""
        variables = {"HOTLEASE_IDENTITY": identity or self.client}
        command = [sys.executable, "-c", script, self.url, *map(str, arguments)]
        here = os.path.dirname(os.path.abspath(__file__))
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return self.hosts.start("client", *command, environment=variables, cwd=here, **streams)
