//! Workers forked from zygotes: the nursery makes sandboxes within zygotes' sandboxes, and orders forks into them.

use super::nesting;
use super::{Nursery, PendingFork, REFILL_AFTER, SANDBOXES_MAX, Sandbox, SandboxStage, ZygoteRole, answer};
use crate::cgroup::Groups;
use crate::inside::SandboxInit;
use crate::kernel;
use crate::message::send;
use crate::order::Reply;
use crate::pid1_message::Pid1Order;
use crate::policy::Policy;
use crate::root::Host;
use crate::zygote;
use crate::zygote::ZygoteNamespaces;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, Shutdown, SockFlag, SockType, shutdown, socketpair};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

/// State of a sandbox whose program is a zygote, from which workers are forked.
pub(super) struct Zygote {
    /// Socket for orders. The nursery never waits for it: a tenant's code is at the other end.
    orders: OwnedFd,
    /// Paths of the zygote's mounts, which its workers get, too.
    targets: Vec<PathBuf>,
    /// Namespaces in which its workers' sandboxes are made; `None` before it has started.
    parent: Option<ZygoteNamespaces>,
    /// Whether the zygote lives. If not, its sandbox ends with its last worker.
    lives: bool,
    /// Whether a requested fork has succeeded. After that the next fork is made ahead; before that, the zygote may
    /// still be busy with its imports.
    has_forked: bool,
}

/// State of a sandbox for one fork, nested in the sandbox of its zygote.
pub(super) struct ForkedSandbox {
    /// Number of the zygote's sandbox.
    pub zygote: u64,
    /// Namespaces that the fork enters; empty once the fork was ordered.
    pub namespaces: Vec<OwnedFd>,
    /// Pid of the worker in the zygote's sandbox.
    worker: Option<i32>,
    /// Socket at which the fork waits for its streams, once the fork was ordered.
    go: Option<OwnedFd>,
    /// A pidfd of the worker, once it is confined and in its group.
    program: Option<OwnedFd>,
    /// Input and output for the worker, if a request for it has already arrived.
    streams: Option<(OwnedFd, OwnedFd)>,
}

impl ForkedSandbox {
    /// A sandbox whose fork was not ordered yet.
    fn new(zygote: u64) -> Self {
        Self {
            zygote,
            namespaces: Vec::new(),
            worker: None,
            go: None,
            program: None,
            streams: None,
        }
    }
}

impl Zygote {
    /// Makes the state of a zygote that is about to start; also returns the zygote's end of the socket for orders.
    pub fn new(targets: Vec<PathBuf>) -> io::Result<(Self, OwnedFd)> {
        let kind = SockType::SeqPacket;
        let (orders, theirs) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)?;
        fcntl(&orders, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        only_send(&orders)?;
        let zygote = Self {
            orders,
            targets,
            parent: None,
            lives: true,
            has_forked: false,
        };
        Ok((zygote, theirs))
    }
}

impl Sandbox {
    /// Handles [`Pid1Report::Prepared`](crate::pid1_message::Pid1Report::Prepared), which came with these descriptors.
    pub(super) fn on_prepared(&mut self, mut fds: Vec<OwnedFd>, groups: &mut Groups, policy: &Policy) {
        let ZygoteRole::Nested(forked) = &mut self.role else {
            return;
        };
        if fds.is_empty() {
            return self.made.kill();
        }
        let pidfd = fds.remove(0);
        forked.namespaces = fds;
        let Some(&pid) = pids(&pidfd).as_ref().and_then(|pids| pids.first()) else {
            return self.made.kill();
        };
        self.made.set_pid_1(pidfd, pid);
        if self.failure.is_some() {
            // The sandbox was given up meanwhile.
            return self.made.kill();
        }
        match groups.make(pid, policy.processes, policy.memory_bytes) {
            Ok(group) => self.made.group = group,
            Err(error) => {
                self.failure = Some(format!("limiting it by a control group: {error}"));
                self.made.kill();
            }
        }
    }

    /// Handles [`Pid1Report::Started`](crate::pid1_message::Pid1Report::Started), which came with these descriptors.
    pub(super) fn on_started(&mut self, reply: &OwnedFd, fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        let Some(program) = fds.next() else {
            return self.made.kill();
        };
        let mut killed_with = self.made.pidfd.as_fd();
        let mut listener = None;
        match &mut self.role {
            ZygoteRole::Plain => listener = fds.next(),
            ZygoteRole::Zygote(zygote) => {
                zygote.parent = ZygoteNamespaces::from_fds(fds.collect());
                killed_with = program.as_fd();
            }
            ZygoteRole::Nested(_) => {
                let done = self.on_forked(program).and_then(|()| self.release_fork());
                if let Err(what) = done {
                    self.made.kill();
                    return answer(reply, &Reply::Failed { what }, &[]);
                }
                return self.answer_started(reply);
            }
        }
        let told = [killed_with, program.as_fd()].into_iter();
        let told: Vec<_> = told.chain(listener.as_ref().map(AsFd::as_fd)).collect();
        answer(reply, &Reply::Started, &told);
    }

    /// Moves a confined fork into its group, where it waits.
    pub(super) fn on_forked(&mut self, program: OwnedFd) -> Result<(), String> {
        let ZygoteRole::Nested(forked) = &mut self.role else {
            return Err("a fork arrived in a sandbox that expects none".into());
        };
        // Until now the fork was in the zygote's group, whose limits are the same.
        if let Some(pids) = pids(&program).filter(|pids| pids.len() > 2) {
            forked.worker = pids.get(pids.len() - 2).copied();
            let joined = self.made.group.join(pids[0]);
            joined.map_err(|error| format!("moving a fork of a zygote into its control group: {error}"))?;
        }
        forked.program = Some(program);
        Ok(())
    }

    /// Tells the waiting fork to run, and gives it its input and output.
    fn release_fork(&mut self) -> Result<(), String> {
        let ZygoteRole::Nested(forked) = &mut self.role else {
            return Err("no fork waits there".into());
        };
        let (Some(go), Some((input, output))) = (forked.go.take(), forked.streams.take()) else {
            return Err("no fork waits there".into());
        };
        let told = send(&go, &zygote::ForkRequest::Go, &[input.as_fd(), output.as_fd()]);
        told.map_err(|error| format!("the fork that waited has died: {error}"))
    }

    fn answer_started(&self, reply: &OwnedFd) {
        if let ZygoteRole::Nested(ForkedSandbox {
            program: Some(program), ..
        }) = &self.role
        {
            answer(reply, &Reply::Started, &[self.made.pidfd.as_fd(), program.as_fd()]);
        }
    }

    fn zygote(&self, id: u64) -> Option<&Zygote> {
        match &self.role {
            ZygoteRole::Zygote(zygote) if self.id == Some(id) => Some(zygote),
            _ => None,
        }
    }

    fn is_of(&self, zygote: u64) -> bool {
        matches!(&self.role, ZygoteRole::Nested(forked) if forked.zygote == zygote)
    }

    /// Whether this sandbox is prepared, or being prepared, for a fork of this zygote, and has no fork yet.
    fn is_spare_of(&self, zygote: u64) -> bool {
        let waits = matches!(self.stage, SandboxStage::Preparing(_) | SandboxStage::Prepared);
        self.is_of(zygote) && waits && self.failure.is_none()
    }
}

/// Makes the kernel refuse messages to a socket that only sends. A tenant could put descriptors into such messages. The
/// nursery would close them together with the socket, and this could take any time that the tenant chooses.
fn only_send(socket: &OwnedFd) -> io::Result<()> {
    Ok(shutdown(socket.as_raw_fd(), Shutdown::Read)?)
}

/// Pids of a process, from the nursery's namespace inwards; `None` if it is gone.
fn pids(pidfd: &OwnedFd) -> Option<Vec<i32>> {
    let path = Host::path(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()));
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let pids: Result<Vec<i32>, _> = line.split_whitespace().map(str::parse).collect();
    pids.ok()
}

impl Nursery {
    /// Queues a requested fork; fails it at once if its zygote is gone, or there are too many sandboxes.
    pub(super) fn fork(&mut self, fork: PendingFork) {
        let what = if self.sandboxes.len() + self.forks.len() >= SANDBOXES_MAX {
            format!("there are {SANDBOXES_MAX} sandboxes already")
        } else if !self.is_alive(fork.zygote) {
            "the zygote is gone".into()
        } else {
            return self.forks.push_back(fork);
        };
        answer(&fork.reply, &Reply::Failed { what }, &[]);
    }

    fn is_alive(&self, zygote: u64) -> bool {
        let found = self.sandboxes.iter().find_map(|sandbox| sandbox.zygote(zygote));
        found.is_some_and(|zygote| zygote.lives && zygote.parent.is_some())
    }

    /// Fails the first fork that waits for this zygote.
    pub(super) fn fail_fork(&mut self, zygote: u64, what: &str) {
        let first = self.forks.iter().position(|fork| fork.zygote == zygote);
        if let Some(fork) = first.and_then(|index| self.forks.remove(index)) {
            let what = what.to_owned();
            answer(&fork.reply, &Reply::Failed { what }, &[]);
        }
    }

    /// Gives waiting forks to sandboxes that are prepared for them.
    pub(super) fn serve_forks(&mut self) {
        let mut waiting = std::mem::take(&mut self.forks);
        while let Some(fork) = waiting.pop_front() {
            let ready =
                |sandbox: &Sandbox| sandbox.is_spare_of(fork.zygote) && matches!(sandbox.stage, SandboxStage::Prepared);
            match self.sandboxes.iter().position(ready) {
                Some(index) => self.fork_into(index, fork),
                None => self.forks.push_back(fork),
            }
        }
        // Sandboxes in preparation serve the first forks that wait; for the other forks, sandboxes are made at once.
        let mut zygotes: Vec<u64> = self.forks.iter().map(|fork| fork.zygote).collect();
        zygotes.sort_unstable();
        zygotes.dedup();
        for zygote in zygotes {
            loop {
                let wanted = self.forks.iter().filter(|fork| fork.zygote == zygote).count();
                if self.spare_of(zygote) >= wanted {
                    break;
                }
                if let Err(what) = self.nest(zygote) {
                    self.fail_fork(zygote, &what);
                }
            }
        }
    }

    fn spare_of(&self, zygote: u64) -> usize {
        let spare = self.sandboxes.iter().filter(|sandbox| sandbox.is_spare_of(zygote));
        spare.count()
    }

    /// Begins to make a spare nested sandbox for one zygote that is alive and has no spare; returns whether it began.
    pub(super) fn refill_nested(&mut self) -> bool {
        let lacking = self.sandboxes.iter().find_map(|sandbox| {
            let id = sandbox.id?;
            (sandbox.zygote(id)?.lives && self.is_alive(id) && self.spare_of(id) == 0).then_some(id)
        });
        // A failure is reported when a fork is requested: `serve_forks` tries again then, and its reply has the error.
        lacking.is_some_and(|zygote| self.sandboxes.len() < SANDBOXES_MAX && self.nest(zygote).is_ok())
    }

    /// Begins to make a sandbox nested in the sandbox of a zygote.
    fn nest(&mut self, id: u64) -> Result<(), String> {
        let inside = SandboxInit {
            view: &self.view,
            policy: &self.policy,
            filter: &self.filters[0],
            filter_with_storage: &self.filter_with_storage,
            filter_of_zygotes: &self.filter_of_zygotes,
            by_root: self.by_root,
            network: false,
        };
        let gone = || "the zygote is gone".to_owned();
        let found = self.sandboxes.iter().find_map(|sandbox| {
            let zygote = sandbox.zygote(id).filter(|zygote| zygote.lives)?;
            Some((zygote, sandbox.made.user))
        });
        let (zygote, user) = found.ok_or_else(gone)?;
        let parent = zygote.parent.as_ref().ok_or_else(gone)?;
        let made = nesting::nest(&inside, parent, &zygote.targets, user);
        let made = made.map_err(|error| error.to_string())?;
        self.sandboxes
            .push(Sandbox::preparing(made, ZygoteRole::Nested(ForkedSandbox::new(id))));
        Ok(())
    }

    /// Reaps helpers: processes that took part in making sandboxes.
    pub(super) fn reap_helpers(&self) {
        while let Ok(Some(pid)) = kernel::find_dead_child() {
            if self.sandboxes.iter().any(|sandbox| sandbox.made.is_of(pid)) {
                return;
            }
            if kernel::wait_for(pid).is_err() {
                return;
            }
        }
    }

    /// Assigns a requested fork to a prepared sandbox. A fork that was made ahead is released; otherwise a fork is
    /// ordered now.
    fn fork_into(&mut self, index: usize, fork: PendingFork) {
        let PendingFork {
            id,
            zygote: _,
            reply,
            input,
            output,
            end,
        } = fork;
        let sandbox = &mut self.sandboxes[index];
        sandbox.id = Some(id);
        sandbox.end = Some(end);
        let mut waits = false;
        if let ZygoteRole::Nested(forked) = &mut sandbox.role {
            waits = forked.program.is_some();
            forked.streams = Some((input, output));
        }
        let told = match waits {
            true => sandbox.release_fork(),
            false => self
                .order_fork(index)
                .map_err(|error| format!("telling a zygote to fork: {error}")),
        };
        let sandbox = &mut self.sandboxes[index];
        match told {
            Ok(()) if waits => {
                sandbox.stage = SandboxStage::Running;
                sandbox.answer_started(&reply);
            }
            Ok(()) => sandbox.stage = SandboxStage::Starting(reply, Instant::now()),
            Err(what) => {
                sandbox.failure = Some(what.clone());
                sandbox.made.kill();
                answer(&reply, &Reply::Failed { what }, &[]);
            }
        }
        self.refill_at = Some(Instant::now() + REFILL_AFTER);
    }

    /// Orders a fork ahead into a prepared sandbox, if its zygote has forked before.
    pub(super) fn fork_ahead(&mut self, index: usize) {
        let sandbox = &self.sandboxes[index];
        let (ZygoteRole::Nested(forked), SandboxStage::Prepared, None) =
            (&sandbox.role, &sandbox.stage, &sandbox.failure)
        else {
            return;
        };
        let mut all = self.sandboxes.iter();
        let has_forked = all.find_map(|sandbox| sandbox.zygote(forked.zygote).map(|zygote| zygote.has_forked));
        if has_forked != Some(true) || forked.go.is_some() {
            return;
        }
        match self.order_fork(index) {
            Ok(()) => self.sandboxes[index].stage = SandboxStage::Preparing(Instant::now()),
            Err(error) => {
                let sandbox = &mut self.sandboxes[index];
                sandbox.failure = Some(format!("telling a zygote to fork: {error}"));
                sandbox.made.kill();
            }
        }
    }

    /// Notes that the zygote of this sandbox has forked on request.
    pub(super) fn note_fork(&mut self, index: usize) {
        let ZygoteRole::Nested(ForkedSandbox { zygote: number, .. }) = self.sandboxes[index].role else {
            return;
        };
        for sandbox in &mut self.sandboxes {
            if let (ZygoteRole::Zygote(zygote), Some(id)) = (&mut sandbox.role, sandbox.id)
                && id == number
            {
                zygote.has_forked = true;
            }
        }
    }

    /// Orders the zygote to fork into a sandbox, and tells pid 1 of that sandbox to expect the fork.
    fn order_fork(&mut self, index: usize) -> io::Result<()> {
        let (report, reporting) = io::pipe()?;
        let kind = SockType::SeqPacket;
        let (go, waiting) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)?;
        fcntl(&go, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        only_send(&go)?;
        let sandbox = &mut self.sandboxes[index];
        let ZygoteRole::Nested(forked) = &mut sandbox.role else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // Even if the order fails, no other process is forked into these namespaces.
        let namespaces = std::mem::take(&mut forked.namespaces);
        forked.go = Some(go);
        let number = forked.zygote;
        let mounts = self.policy.mounts.iter().filter(|mount| mount.writable);
        let order = zygote::ForkOrder {
            writable: mounts.map(|mount| mount.target.clone()).collect(),
        };
        let fds = [waiting.as_fd(), reporting.as_fd()];
        let fds = fds.into_iter().chain(namespaces.iter().map(AsFd::as_fd));
        let fds: Vec<BorrowedFd<'_>> = fds.collect();
        let found = self.sandboxes.iter().find_map(|sandbox| sandbox.zygote(number));
        let zygote = found.ok_or(io::ErrorKind::NotConnected)?;
        send(&zygote.orders, &order, &fds)?;
        drop(fds);
        drop((reporting, waiting));
        send(
            &self.sandboxes[index].made.socket,
            &Pid1Order::Forking,
            &[report.as_fd()],
        )
    }

    /// Handles the end of a zygote, whose workers continue to run.
    pub(super) fn on_zygote_ended(&mut self, index: usize) {
        let sandbox = &mut self.sandboxes[index];
        if let ZygoteRole::Zygote(zygote) = &mut sandbox.role {
            zygote.lives = false;
        }
        let Some(id) = sandbox.id else { return };
        while self.forks.iter().any(|fork| fork.zygote == id) {
            self.fail_fork(id, "the zygote has died");
        }
        let spare = self.sandboxes.iter_mut().filter(|sandbox| sandbox.is_spare_of(id));
        spare.for_each(|sandbox| {
            sandbox.failure = Some("the zygote has died".into());
            sandbox.made.kill();
        });
        self.end_zygotes();
    }

    /// Handles the end of a worker, as reported by its parent: pid 1 of the zygote's sandbox.
    pub(super) fn on_worker_ended(&mut self, zygote: Option<u64>, pid: i32, status: i32) {
        for sandbox in &mut self.sandboxes {
            if let ZygoteRole::Nested(forked) = &sandbox.role
                && Some(forked.zygote) == zygote
                && forked.worker == Some(pid)
            {
                sandbox.status = Some(status);
                sandbox.made.kill();
            }
        }
    }

    /// Kills the sandboxes of dead zygotes that have no worker left.
    pub(super) fn end_zygotes(&self) {
        self.ending_zygotes().for_each(|sandbox| sandbox.made.kill());
    }

    /// Sandboxes of dead zygotes without workers. The kernel lets them end only once this process has reaped the
    /// helpers in them.
    pub(super) fn ending_zygotes(&self) -> impl Iterator<Item = &Sandbox> {
        self.sandboxes
            .iter()
            .filter(|sandbox| match (&sandbox.role, sandbox.id) {
                (ZygoteRole::Zygote(zygote), Some(id)) => {
                    !zygote.lives && !self.sandboxes.iter().any(|other| other.is_of(id))
                }
                _ => false,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zygote::ForkRequest;

    #[test]
    fn a_zygote_cannot_send_descriptors_to_the_nursery() {
        let (zygote, theirs) = Zygote::new(Vec::new()).expect("a socket");
        let refused = send(&theirs, &ForkRequest::Go, &[zygote.orders.as_fd()]);
        assert_eq!(refused.expect_err("taken").kind(), io::ErrorKind::BrokenPipe);
        send(&zygote.orders, &ForkRequest::Go, &[]).expect("it is still told");
    }
}
