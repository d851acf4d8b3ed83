"""Bare Debian 12 with systemd, in a container."""

import ast
import collections
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from guide.page import ROOT, is_error, is_shown

BARE = ROOT / "target/bare"
BASE = ROOT / "target/bare.base"
BUILT = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
# Files that `pip wheel` needs in the release folder.
PACKAGED = ["lib_core.so", "hotlease", "hotlease-lab", "hotlease-worker", "hotlease-nursery", "hotlease-machine"]
PACKAGES = "systemd,systemd-sysv,dbus,iproute2,procps,ca-certificates,postgresql,passwd"
MIRROR = "http://deb.debian.org/debian"
FUNCTIONS = "/usr/local/lib/hotlease/libhotlease_bench_functions.so"
CALL = f"echo hello | hotlease run --wait 30s {FUNCTIONS} echo | grep hello"
# Attempts that succeed in a sandbox of an ordinary user without control groups of version 2, as the page says.
UNLIMITED = {"processors", "flood-memory", "flood-memory-children", "flood-memory-files"}
# Succeeds there only if enough processors are idle meanwhile.
UNLIMITED_IF_IDLE = {"flood-cpu"}
VERSION_2 = os.path.exists("/sys/fs/cgroup/cgroup.controllers")


def is_without_limits(command, printed):
    """Whether a test of sandboxes fails only because there are no control groups."""
    escaped = set(re.findall(r"^(\S+) +ESCAPED ", printed, re.M))
    is_test = "hotlease sandbox test" in command and "\nthis host cannot hold a limit: memory" in printed
    is_known = UNLIMITED <= escaped <= UNLIMITED | UNLIMITED_IF_IDLE
    return is_test and not VERSION_2 and is_known and " and 0 could not be made" in printed


def pip_configuration():
    """Configuration of pip on this host, for the container: its file, and the mounts that it needs."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], text=True, capture_output=True).stdout
    options, binds = {}, []
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        value = ast.literal_eval(value)
        if value.startswith("/") and os.path.exists(value):
            binds.append(f"--bind-ro={os.path.realpath(value)}:/host{value}")
            value = f"/host{value}"
        options[name.rpartition(".")[2]] = value
    return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in options.items()), dict.fromkeys(binds)


class Machine:
    """A container that was booted."""

    def __init__(self):
        if not BASE.exists():
            made = BASE.with_suffix(".new")
            shutil.rmtree(made, ignore_errors=True)
            subprocess.run(
                ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", made, MIRROR], check=True
            )
            made.rename(BASE)
        shutil.rmtree(BARE, ignore_errors=True)
        subprocess.run(["cp", "-a", BASE, BARE], check=True)
        checkout = BARE / "root/checkout"
        (checkout / "target/release").mkdir(parents=True)
        files = "git ls-files -z --cached --others --exclude-standard"
        copy = f"{files} | tar -c --null --files-from=- | tar -x -C {checkout}"
        subprocess.run(["bash", "-c", copy], cwd=ROOT, check=True)
        for name in PACKAGED:
            shutil.copy(BUILT / name, checkout / "target/release")
        configuration, binds = pip_configuration()
        (BARE / "etc/pip.conf").write_text(configuration)
        # Otherwise init takes the name that debootstrap has copied from this host.
        (BARE / "etc/hostname").write_text("bare\n")
        # The second of the managers in the example does not run.
        (BARE / "etc/hosts").write_text(
            "127.0.0.1 localhost\n127.0.1.1 bare manager.example.org node1.example.org\n"
            "127.0.1.2 manager2.example.org\n"
        )
        self.exports = collections.defaultdict(dict)
        self.failed = []
        command = ["systemd-nspawn", "-D", BARE, "--boot", "--register=no", "--keep-unit", "--hostname=bare"]
        # All rights of root on a real machine: sandboxes are made of namespaces, mounts and keyrings.
        command += ["--capability=all", *binds]
        environment = {**os.environ, "SYSTEMD_SECCOMP": "0", "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1"}
        log = open(ROOT / "target/bare.log", "wb")
        self.container = subprocess.Popen(
            [*command, "--resolv-conf=copy-host"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
        self.init = None
        for _ in range(600):
            children = subprocess.run(["pgrep", "-P", str(self.container.pid)], text=True, capture_output=True).stdout
            self.init = children.split()[0] if children else None
            if self.init and self.enter("root", "systemctl is-system-running").stdout.strip() in (
                "running",
                "degraded",
            ):
                return self.uncover()
            time.sleep(0.1)
        self.end()
        sys.exit("the container does not boot: see target/bare.log")

    def uncover(self):
        """Makes what a real machine has and a container hides: a /proc without mounts in it, which the kernel requires
        before a user namespace may mount its own /proc, and FUSE, for all users as udev makes it."""
        for command in (
            "awk '$5 ~ \"^/proc/\" { print $5 }' /proc/self/mountinfo | tac | xargs --no-run-if-empty umount",
            "[ -e /dev/fuse ] || mknod -m 666 /dev/fuse c 10 229",
        ):
            done = self.enter("root", command)
            if done.returncode != 0:
                self.end()
                sys.exit(f"the container cannot be made like a machine: {done.stdout}")

    def enter(self, user, command):
        environment = "".join(f"export {name}={value}; " for name, value in self.exports[user].items())
        folder = "~/checkout" if user == "root" else "~"
        shell = ["runuser", "-u", user, "--", "env", "-i", f"HOME={self.home(user)}"]
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        if command.endswith(" &"):
            # Without output: this script would wait until the output is closed.
            command = f"({command.removesuffix(' &')}) >>~/background.log 2>&1 &"
        return subprocess.run(
            ["nsenter", "-t", self.init, "-m", "-u", "-i", "-n", "-p", *shell, path, "bash", "-c",
             f"cd {folder}; {environment}{command}"],
            text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900,
        )

    @staticmethod
    def home(user):
        """Home directory of a user."""
        home = {"root": "root", "hotlease": "var/lib/hotlease"}.get(user, f"home/{user}")
        return f"/{home}"

    def run(self, user, command, said=None, shown=()):
        """Runs one command, and checks that its result is the one that the page shows."""
        print(f"{user}: {said or command}", flush=True)
        if command.startswith("export "):
            words = command.removeprefix("export ").split()
            self.exports[user].update(word.split("=", 1) for word in words)
            return
        done = self.enter(user, command)
        lines = done.stdout.splitlines()
        lines = lines if len(lines) <= 60 else [*lines[:30], "[...]", *lines[-30:]]
        print("".join(f"    {line}\n" for line in lines), end="", flush=True)
        wrong = []
        may_fail = any(map(is_error, shown)) or is_without_limits(command, done.stdout)
        if (done.returncode != 0) != may_fail:
            wrong.append(f"exit status {done.returncode}")
        if not is_shown(shown, done.stdout):
            wrong.append("it does not print what the page shows")
        if wrong:
            print(f"    FAILED: {' and '.join(wrong)}", flush=True)
            self.failed.append(f"{user}: {command}")

    def write(self, user, name, text, mode=0o644):
        """Writes a file into the home directory of a user."""
        print(f"{user}: (writes {name})", flush=True)
        folder = BARE / self.home(user)[1:]
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        (folder / name).chmod(mode)
        owner = folder.stat()
        os.chown(folder / name, owner.st_uid, owner.st_gid)

    def until(self, user, command):
        """Waits at most a minute until a command succeeds; after that it counts as failed."""
        print(f"{user}: (until) {command}", flush=True)
        end = time.monotonic() + 60
        while (done := self.enter(user, command)).returncode != 0:
            if time.monotonic() > end:
                print(f"    FAILED: not within a minute\n    {done.stdout}", flush=True)
                self.failed.append(f"{user}: (until) {command}")
                return
            time.sleep(0.2)

    def install(self):
        print("root: make install PREFIX=/usr/local (what was built outside)", flush=True)
        subprocess.run([ROOT / "bindings/install", "/usr/local", BARE], check=True, stdout=subprocess.DEVNULL)

    def end(self):
        # The init of a container takes this signal for a power button.
        if self.init:
            os.kill(int(self.init), signal.SIGRTMIN + 4)
        try:
            self.container.wait(60)
        except subprocess.TimeoutExpired:
            self.container.kill()
