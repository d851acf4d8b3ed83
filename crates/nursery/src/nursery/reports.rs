//! Messages from sandboxes, and the ends of sandboxes.

use super::{Nursery, REFILL_AFTER, STEP_LIMIT, SandboxStage, ZygoteRole, answer};
use crate::message::receive;
use crate::order::{EndReport, Reply};
use crate::pid1_message::Pid1Report;
use std::fs;
use std::io::{self, Write};
use std::time::Instant;

impl Nursery {
    /// Handles one message from a sandbox's pid 1; returns whether there was one.
    pub(super) fn handle_report(&mut self, index: usize) -> bool {
        let sandbox = &mut self.sandboxes[index];
        let (word, fds) = match receive::<Pid1Report>(&sandbox.made.socket) {
            Ok(Some(word)) => word,
            // Nothing has arrived.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            // Pid 1 is ending. It is reaped when its pidfd reports the end.
            Ok(None) | Err(_) => {
                sandbox.made.kill();
                return false;
            }
        };
        match (word, std::mem::replace(&mut sandbox.stage, SandboxStage::Running)) {
            (Pid1Report::Prepared, SandboxStage::Preparing(_)) => {
                sandbox.stage = SandboxStage::Prepared;
                sandbox.on_prepared(fds, &mut self.groups, &self.policy);
                self.fork_ahead(index);
            }
            (Pid1Report::Started, SandboxStage::Preparing(_)) if matches!(sandbox.role, ZygoteRole::Nested(_)) => {
                sandbox.stage = SandboxStage::Prepared;
                let forked = match fds.into_iter().next() {
                    Some(program) => sandbox.on_forked(program),
                    None => Err("a forked worker did not send its process number".into()),
                };
                if let Err(what) = forked {
                    sandbox.failure = Some(what);
                    sandbox.made.kill();
                }
            }
            (Pid1Report::Started, SandboxStage::Starting(reply, _)) => {
                self.refill_at = Some(Instant::now() + REFILL_AFTER);
                sandbox.on_started(&reply, fds);
                self.note_fork(index);
            }
            (Pid1Report::Ended { status }, _) => {
                sandbox.status = Some(status);
                if let ZygoteRole::Zygote(_) = sandbox.role {
                    self.on_zygote_ended(index);
                }
            }
            (Pid1Report::Reaped { pid, status }, stage) => {
                sandbox.stage = stage;
                let id = sandbox.id;
                self.on_worker_ended(id, pid, status);
            }
            (Pid1Report::Failed { what }, stage) => {
                sandbox.failure = Some(what);
                sandbox.stage = stage;
                if let ZygoteRole::Nested(_) = sandbox.role {
                    // The watched pidfd may belong to another process than the process that reported this.
                    sandbox.made.kill();
                }
            }
            _ => sandbox.made.kill(),
        }
        true
    }

    /// Time of the next look for sandboxes in which the kernel has killed a process.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let mut stages = self.sandboxes.iter().map(|sandbox| &sandbox.stage);
        let runs = stages.any(|stage| matches!(stage, SandboxStage::Running));
        self.groups.next_look().filter(|_| runs)
    }

    /// Kills the sandboxes in which the kernel has killed a process for lack of memory: the other processes may wait
    /// for the killed process for ever.
    pub(super) fn kill_struck(&mut self) {
        if self.next_look().is_none_or(|at| at > Instant::now()) {
            return;
        }
        self.groups.note_look();
        let made = self.sandboxes.iter().map(|sandbox| &sandbox.made);
        let struck = made.filter(|made| made.group.read_oom_kill() == Some(true));
        struck.for_each(|made| made.kill());
    }

    /// Reaps a sandbox, removes what is left of it, and reports its end.
    pub(super) fn reap_sandbox(&mut self, index: usize) {
        let sandbox = self.sandboxes.swap_remove(index);
        sandbox.made.reap();
        let out_of_memory = sandbox.made.group.read_oom_kill();
        let mut group = sandbox.made.group;
        if !group.remove() {
            self.dying.push(group);
        }
        let why = || {
            let killed = "pid 1 of the sandbox was killed";
            sandbox.failure.clone().unwrap_or_else(|| killed.into())
        };
        match sandbox.stage {
            SandboxStage::Starting(reply, _) => answer(&reply, &Reply::Failed { what: why() }, &[]),
            // The request that has waited longest may have waited for this sandbox.
            SandboxStage::Preparing(_) => match &sandbox.role {
                ZygoteRole::Nested(forked) => {
                    self.fail_fork(forked.zygote, &why());
                    self.refill_at.get_or_insert(Instant::now() + STEP_LIMIT);
                }
                ZygoteRole::Plain | ZygoteRole::Zygote(_) => {
                    let network = sandbox.made.network;
                    let first = self.waiting.iter().position(|start| start.network == network);
                    if let Some(start) = first.and_then(|first| self.waiting.remove(first)) {
                        answer(&start.reply, &Reply::Failed { what: why() }, &[]);
                    }
                }
            },
            SandboxStage::Prepared => self.refill_at = Some(Instant::now() + STEP_LIMIT),
            SandboxStage::Running => {}
        }
        if let Some(end) = sandbox.end {
            let ended = EndReport {
                status: sandbox.status.unwrap_or(-libc::SIGKILL),
                out_of_memory,
            };
            // Failure is ignored: the agent has stopped listening.
            let _ = fs::File::from(end).write_all(&hotlease_wire::encode(&ended));
        }
        self.end_zygotes();
    }
}
