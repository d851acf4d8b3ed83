"""Slurm in the container: a controller and four nodes, all on its one host."""

import os

NODES = 4
CPUS = 8
# Cores that the agents of all nodes offer: no more than the host has.
CORES = NODES * min(CPUS, len(os.sched_getaffinity(0)))
# Ports that no other Slurm has: the container has the network of this host.
PORT = 26817
PACKAGES = "slurmctld slurmd slurm-client munge"
CONFIGURATION = f"""ClusterName=bare
SlurmctldHost=bare(127.0.1.1)
SlurmctldPort={PORT}
SlurmUser=slurm
SlurmdUser=root
CommunicationParameters=NoCtldInAddrAny
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
NodeName=n[0-{NODES - 1}] NodeHostname=bare NodeAddr=127.0.1.1 Port=[{PORT + 1}-{PORT + NODES}] CPUs={CPUS} RealMemory=32000
PartitionName=main Nodes=ALL Default=YES
PartitionName=low Nodes=ALL
"""
IS_IDLE = f"[ $(sinfo -h -N -p main -t idle -o %N | wc -l) = {NODES} ]"


def install(machine):
    """Installs Slurm, and waits until its nodes are idle."""
    machine.run("root", f"DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends {PACKAGES}")
    machine.write("root", "slurm.conf", CONFIGURATION)
    machine.run("root", "install -D -m 0644 ~/slurm.conf /etc/slurm/slurm.conf")
    machine.run("root", "install -d -o slurm /var/lib/slurm /var/lib/slurm/slurmctld")
    machine.run("root", "systemctl restart munge slurmctld")
    for node in range(NODES):
        machine.run("root", f"systemd-run --quiet --unit=slurmd-n{node} -p KillMode=process slurmd -D -N n{node}")
    machine.until("root", IS_IDLE)
