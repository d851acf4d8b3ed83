//! Messages from sandboxes, and their ends.

use super::{Nursery, REFILL_AFTER, Role, STEP_LIMIT, Stage, answer};
use crate::inside::Word;
use crate::message::receive;
use crate::order::{Ended, Reply};
use std::fs;
use std::io::{self, Write};
use std::time::Instant;

impl Nursery {
    /// Handles one message from a sandbox's pid 1; returns whether there was one.
    pub(super) fn hear(&mut self, index: usize) -> bool {
        let sandbox = &mut self.sandboxes[index];
        let (word, fds) = match receive::<Word>(&sandbox.made.socket) {
            Ok(Some(word)) => word,
            // No message: nothing has arrived, or pid 1 is ending, and is reaped when its pidfd reports the end.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Ok(None) | Err(_) => {
                sandbox.made.kill();
                return false;
            }
        };
        match (word, std::mem::replace(&mut sandbox.stage, Stage::Running)) {
            (Word::Prepared, Stage::Preparing(_)) => {
                sandbox.stage = Stage::Prepared;
                sandbox.prepared(fds, &mut self.groups, &self.policy);
                self.fork_ahead(index);
            }
            (Word::Started, Stage::Preparing(_)) if matches!(sandbox.role, Role::Nested(_)) => {
                sandbox.stage = Stage::Prepared;
                let forked = match fds.into_iter().next() {
                    Some(program) => sandbox.forked(program),
                    None => Err("a fork did not say who it is".into()),
                };
                if let Err(what) = forked {
                    sandbox.failure = Some(what);
                    sandbox.made.kill();
                }
            }
            (Word::Started, Stage::Starting(reply, _)) => {
                self.refill_at = Some(Instant::now() + REFILL_AFTER);
                sandbox.started(&reply, fds);
                self.note_fork(index);
            }
            (Word::Ended { status }, _) => {
                sandbox.status = Some(status);
                if let Role::Zygote(_) = sandbox.role {
                    self.zygote_ended(index);
                }
            }
            (Word::Reaped { pid, status }, stage) => {
                sandbox.stage = stage;
                let id = sandbox.id;
                self.worker_ended(id, pid, status);
            }
            (Word::Failed { what }, stage) => {
                sandbox.failure = Some(what);
                sandbox.stage = stage;
                if let Role::Nested(_) = sandbox.role {
                    // The process that reported this may not be the one whose pidfd is watched.
                    sandbox.made.kill();
                }
            }
            _ => sandbox.made.kill(),
        }
        true
    }

    /// Reaps a sandbox, removes what is left of it, and reports its end.
    pub(super) fn bury(&mut self, index: usize) {
        let sandbox = self.sandboxes.swap_remove(index);
        sandbox.made.reap();
        let out_of_memory = sandbox.made.group.out_of_memory();
        let mut group = sandbox.made.group;
        if !group.remove() {
            self.dying.push(group);
        }
        let why = || {
            let killed = "pid 1 of the sandbox was killed";
            sandbox.failure.clone().unwrap_or_else(|| killed.into())
        };
        match sandbox.stage {
            Stage::Starting(reply, _) => answer(&reply, &Reply::Failed { what: why() }, &[]),
            // The request that has waited longest may have waited for this sandbox.
            Stage::Preparing(_) => match &sandbox.role {
                Role::Nested(forked) => self.fail_fork(forked.of, &why()),
                Role::Plain | Role::Zygote(_) => {
                    let network = sandbox.made.network;
                    let first = self.waiting.iter().position(|start| start.network == network);
                    if let Some(start) = first.and_then(|first| self.waiting.remove(first)) {
                        answer(&start.reply, &Reply::Failed { what: why() }, &[]);
                    }
                }
            },
            Stage::Prepared => self.refill_at = Some(Instant::now() + STEP_LIMIT),
            Stage::Running => {}
        }
        if let Some(end) = sandbox.end {
            let ended = Ended {
                status: sandbox.status.unwrap_or(-libc::SIGKILL),
                out_of_memory,
            };
            // Failure is ignored: the agent has stopped listening.
            let _ = fs::File::from(end).write_all(&hotlease_wire::encode(&ended));
        }
        self.end_zygotes();
    }
}
