"""Follows docs/slurm.md: what a user does in a job, from Python and from outside, and what an operator does."""

import re
import subprocess
import tempfile

from guide import cluster
from guide.machine import FUNCTIONS
from guide.page import ROOT, blocks, commands

PAGE = "docs/slurm.md"
# Has an account at Slurm, and none at the site of docs/operating.md.
USER = "bob"
USERS = {"# ": "root", "hotlease$ ": "hotlease", "$ ": USER}
PROGRAM = f"""import hotlease

with hotlease.Executor({cluster.CORES}, at_least={cluster.CORES}) as executor:
    print("program.py:", sum(executor.map(abs, range(-100, 0))))
"""
# Stands for an MPI program.
RANKS = """#!/usr/bin/env python
import os
import hotlease

with hotlease.Executor(1) as executor:
    print("rank", os.environ["SLURM_PROCID"], "has", executor.submit(abs, -1).result(), "worker")
"""
# If docs/sandboxes.md was followed before, workers of other hosts' clients need the network.
ECHO = f"echo hello | hotlease run --network {FUNCTIONS} echo | grep hello"
CALL = ECHO.replace("--network", "--network --wait 30s")
IS_EMPTY = "[ -z \"$(squeue -h)\" ]"
LOG = "journalctl --no-pager -o cat -t hotlease-node"


def section(heading, *languages):
    """Lines of each code block of a section, which must have blocks of these languages."""
    print(f"\n== {heading}")
    found = [(language, lines) for _, language, lines in blocks(PAGE, heading)]
    if tuple(language for language, _ in found) != languages:
        raise SystemExit(f'{PAGE}, "{heading}": other code blocks than scripts/guide/slurm.py follows')
    return [lines for _, lines in found]


def as_here(text):
    """The page's text, with the container's values instead of the reader's."""
    text = text.replace("Executor(32)", f"Executor({cluster.CORES})").replace(", 32 cores", f", {cluster.CORES} cores")
    # The site's manager has the usual port.
    text = text.replace(":7070", ":7170")
    return re.sub(r"\bjob \d+|again in \S+", lambda match: f"{match[0].rpartition(' ')[0]} ...", text)


def run(machine, lines):
    """Runs the commands of a console block."""
    for prompt, command, shown in commands(lines):
        machine.run(USERS[prompt], as_here(command), shown=[as_here(line) for line in shown])


def prepare(machine):
    """Slurm, and hotlease in the home directory of its user."""
    cluster.install(machine)
    machine.run("root", f"useradd --create-home --shell /bin/bash {USER}")
    machine.run("root", "apt-get install --yes --no-install-recommends python3-venv python3-pip")
    wheel = "HOTLEASE_BUILT=$PWD/target/release python3 -m pip wheel --no-deps --wheel-dir /usr/local/share/hotlease ."
    machine.run("root", f"ls /usr/local/share/hotlease/hotlease-*.whl || {wheel}")
    machine.run(USER, "python3 -m venv ~/env && ~/env/bin/pip install --quiet /usr/local/share/hotlease/hotlease-*.whl")
    machine.run(USER, f"export PATH={machine.home(USER)}/env/bin:/usr/bin:/bin")


def in_a_job(machine):
    """Runs the batch script, and then the commands in the shell of `salloc`; checks that nothing is left of either."""
    script, session = section("For users: in a job of your own", "sh", "console")
    machine.write(USER, "job.sh", as_here("\n".join(script) + "\n"))
    machine.write(USER, "program.py", PROGRAM)
    machine.write(USER, "ranks", RANKS, 0o755)
    machine.run(USER, "sbatch --wait --output=job.out job.sh")
    shown = [f"hotlease serves job ...: {cluster.NODES} nodes, {cluster.CORES} cores, manager ...", "..."]
    shown += ["... serving ..."] * cluster.NODES
    machine.run(USER, "cat job.out", shown=[*shown, "...", "program.py: 5050"])
    for rank in range(cluster.NODES):
        machine.run(USER, f"grep 'rank {rank} has 1 worker' job.out")
    (_, salloc, _), (_, srun, serves), (_, python, result) = commands(session)
    # Inside the shell of `salloc`: the step in the background, and once it says that it is ready, the program.
    step = f"{srun.removesuffix(' &')} >step.out 2>&1 &"
    ready = "until grep -s '^hotlease serves' step.out; do sleep 0.1; done"
    typed = "\n".join([salloc + " bash <<'END'", step, ready, "cat step.out", python, "END"])
    machine.run(USER, as_here(typed), shown=[as_here(line) for line in ["...", *serves, *result]])
    machine.until(USER, IS_EMPTY)
    machine.run(USER, "! pgrep -u $(id -u) -l hotlease")
    machine.run(USER, "[ -z \"$(ls ~/.local/state/hotlease/jobs)\" ]")


def operators(machine):
    """A node is given back to jobs, first without a policy and then with the example of one."""
    agent, configuration, check, policy = section("For operators", "console", "", "console", "console")
    run(machine, agent)
    machine.write("root", "lines", "\n".join(configuration) + "\n")
    machine.run("root", "cat ~/lines >>/etc/slurm/slurm.conf && scontrol reconfigure")
    machine.until("root", cluster.IS_IDLE)
    give_back(machine)
    run(machine, check)
    run(machine, policy)
    give_back(machine)


def give_back(machine):
    """A lease runs, a job starts and has the node, the job ends, and a call works again."""
    machine.run("alice", CALL)
    machine.run("alice", f"{ECHO.replace('--network', '--network --repeat 1000000000')} &")
    machine.until("alice", "hotlease leases | grep active")
    machine.run(USER, "sbatch --output=/dev/null --wrap 'sleep 1000'")
    machine.until(USER, "squeue -h -t running | grep .")
    job = "$(squeue -h -o %A)"
    # Slurm may list a job as running while its prolog runs.
    noted = f"{LOG} | grep \"^job {job}: \""
    machine.until("root", noted)
    machine.run("root", noted, shown=["job ...: the node is free after ... ms; leases that ended: 1"])
    machine.run("alice", f"! ({ECHO})")
    machine.run("hotlease", f"HOTLEASE_RUNTIME_DIR=/run/hotlease-agent hotlease node status | grep ' {USER} '")
    machine.run(USER, f"scancel {job}")
    machine.until(USER, IS_EMPTY)
    machine.run("alice", CALL)
    machine.run("root", f"{LOG} | tail -n 1", shown=["job ...: the agent uses the node again"])


def from_python(machine):
    """The program that gets nodes by itself."""
    [program] = section("For users, from Python", "python")
    machine.write(USER, "cluster.py", "\n".join(program) + "\n")
    machine.run(USER, "python cluster.py", shown=["5050"])
    machine.until(USER, IS_EMPTY)


def from_outside(machine):
    """A client that waits gets a node; then a site that has no such partition rejects the job."""
    identities, daemons, call, rejected = section("For users, from outside", *["console"] * 4)
    compile_text(machine)
    run(machine, identities)
    run(machine, daemons)
    add = next(command for _, command, _ in commands(daemons) if "alloc add" in command)
    machine.run(USER, add.replace("alloc add", "alloc dry-run"), shown=["...", "...sbatch..."])
    listing = call.index("$ hotlease alloc ls")
    run(machine, call[:listing])
    # The allocator asks Slurm each 10 s.
    machine.until(USER, "hotlease alloc ls | grep running")
    run(machine, call[listing:])
    # No client waits and no job runs; then the site rejects the next job.
    machine.run(USER, "hotlease alloc scale slurm --max-nodes 0")
    machine.until(USER, f"{IS_EMPTY} && hotlease alloc ls | grep -E '^slurm +slurm +0 +0 +0 '")
    machine.run("root", "scontrol delete PartitionName=low")
    machine.run(USER, "hotlease alloc scale slurm --max-nodes 8")
    machine.run(USER, "echo hello | hotlease run --wait 1min libtext.so upper &")
    machine.until(USER, "hotlease alloc ls | grep rejected")
    run(machine, rejected)
    machine.run(USER, "hotlease alloc log")
    machine.run(USER, "hotlease alloc rm slurm")


def compile_text(machine):
    """libtext.so, as docs/functions.md makes it; the container has no compiler."""
    [source] = (lines for _, _, lines in blocks("docs/functions.md") if "HOTLEASE_FUNCTION(upper);" in lines)
    with tempfile.TemporaryDirectory() as folder:
        command = "cc -shared -fPIC -O2 -fvisibility=hidden -Wl,-z,defs -xc -".split()
        made = [*command, f"-I{ROOT}/include", "-o", f"{folder}/libtext.so"]
        subprocess.run(made, input="\n".join(source), text=True, check=True)
        with open(f"{folder}/libtext.so", "rb") as library:
            machine.write(USER, "libtext.so", library.read(), 0o755)


def follow(machine):
    """Follows the whole page."""
    print(f"\n=== {PAGE}")
    prepare(machine)
    in_a_job(machine)
    operators(machine)
    from_python(machine)
    from_outside(machine)
