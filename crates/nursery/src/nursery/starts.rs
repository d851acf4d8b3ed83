//! Making sandboxes, and assigning waiting starts to prepared sandboxes.

use super::forks::Zygote;
use super::{Nursery, PendingStart, REFILL_AFTER, Sandbox, SandboxStage, ZygoteRole, answer};
use crate::inside::{SandboxInit, View};
use crate::order::Reply;
use crate::policy::{MOUNTS_MAX, Users};
use crate::program;
use crate::root;
use crate::sandbox_process::SandboxProcess;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

/// Mounts of a program.
struct Trees {
    /// Path of each tree, and whether it may be written.
    targets: Vec<(OsString, bool)>,
    trees: Vec<OwnedFd>,
    /// Whether workers will be forked from the program.
    zygote: bool,
}

impl Nursery {
    /// Begins to make a sandbox. Its pid 1 says when it is prepared, a moment later.
    pub(super) fn make(&mut self, network: bool) -> Result<(), String> {
        let user = match self.by_root {
            true => {
                let Users { first, count } = self.policy.users;
                self.next_user = (self.next_user + 1) % count;
                (first + self.next_user, first + self.next_user)
            }
            false => self.own,
        };
        let inside = SandboxInit {
            view: &self.view,
            policy: &self.policy,
            filter: &self.filters[usize::from(network)],
            filter_with_storage: &self.filter_with_storage,
            filter_of_zygotes: &self.filter_of_zygotes,
            by_root: self.by_root,
            network,
        };
        let made = SandboxProcess::make(&inside, &mut self.groups, user).map_err(|error| error.to_string())?;
        self.sandboxes.push(Sandbox::preparing(made, ZygoteRole::Plain));
        Ok(())
    }

    /// Gives waiting starts, the oldest first, to sandboxes that are prepared for them.
    pub(super) fn serve_waiting(&mut self) {
        let mut next = 0;
        while let Some(start) = self.waiting.get(next) {
            let ready = self.sandboxes.iter().position(|sandbox| {
                sandbox.made.network == start.network
                    && matches!(
                        (&sandbox.role, &sandbox.stage),
                        (ZygoteRole::Plain, SandboxStage::Prepared)
                    )
                    && sandbox.failure.is_none()
            });
            match ready.and_then(|index| Some((index, self.waiting.remove(next)?))) {
                Some((index, start)) => {
                    self.start(index, start);
                    self.refill_at = Some(Instant::now() + REFILL_AFTER);
                }
                None => next += 1,
            }
        }
        // Sandboxes in preparation serve the first starts that wait; for the other starts, sandboxes are made at once.
        for network in [false, true] {
            let wants = |start: &PendingStart| start.network == network;
            while self.count_spares(network) < self.waiting.iter().filter(|start| wants(start)).count() {
                if let Err(what) = self.make(network)
                    && let Some(last) = self.waiting.iter().rposition(wants)
                    && let Some(start) = self.waiting.remove(last)
                {
                    answer(&start.reply, &Reply::Failed { what }, &[]);
                }
            }
        }
    }

    fn start(&mut self, index: usize, start: PendingStart) {
        let PendingStart {
            id,
            network: _,
            storage,
            reply,
            input,
            output,
            end,
            described,
        } = start;
        let user = self.sandboxes[index].made.user;
        let told = self
            .trees(&described, user)
            .and_then(|Trees { targets, trees, zygote }| {
                if zygote && storage {
                    return Err("a zygote belongs to no lease, so it has no access to storage".to_owned());
                }
                let failed = |error: io::Error| format!("telling a sandbox what to run: {error}");
                let paths = targets.iter().map(|(target, _)| target.into());
                let zygote = zygote.then(|| Zygote::new(paths.collect())).transpose();
                let (role, theirs) = match zygote.map_err(failed)? {
                    Some((zygote, theirs)) => (ZygoteRole::Zygote(zygote), Some(theirs)),
                    None => (ZygoteRole::Plain, None),
                };
                let fds = [&input, &output, &described].into_iter().chain(&theirs).chain(&trees);
                let fds: Vec<BorrowedFd<'_>> = fds.map(AsFd::as_fd).collect();
                let sandbox = &self.sandboxes[index];
                sandbox.made.start((targets, storage), &fds).map_err(failed)?;
                Ok(role)
            });
        let sandbox = &mut self.sandboxes[index];
        match told {
            Ok(role) => {
                sandbox.role = role;
                sandbox.stage = SandboxStage::Starting(reply, Instant::now());
                sandbox.id = Some(id);
                sandbox.end = Some(end);
            }
            // The sandbox is unchanged.
            Err(what) => answer(&reply, &Reply::Failed { what }, &[]),
        }
    }

    /// Opens the mounts of a program, without the mounts of the policy, for a sandbox of this user.
    fn trees(&self, described: &OwnedFd, user: (u32, u32)) -> Result<Trees, String> {
        let named = |error: io::Error| format!("reading what to run: {error}");
        let described = described
            .try_clone()
            .and_then(program::read_description)
            .map_err(named)?;
        if described.zygote && !matches!(self.view, View::Pieces(_)) {
            return Err("a container has no zygotes".into());
        }
        if described.mounts.len() + described.declared.len() > MOUNTS_MAX {
            return Err(format!("a program has at most {MOUNTS_MAX} mounts"));
        }
        let mut all = Vec::new();
        for mount in described.mounts {
            let named = |error: io::Error| format!("opening {}: {error}", mount.source.display());
            if let Some(fault) = mount.fault() {
                return Err(fault);
            }
            let tree = self.host.tree(&mount.source).map_err(named)?;
            root::restrict_mount(&tree, mount.writable).map_err(named)?;
            all.push((mount.target, mount.writable, tree));
        }
        for declared in described.declared {
            let named = |error: io::Error| format!("opening {}: {error}", declared.source().display());
            if let Some(fault) = declared.fault() {
                return Err(fault);
            }
            let by_root = self.by_root.then_some(user);
            let tree = self.host.declared(&declared, by_root).map_err(named)?;
            all.push((declared.target, declared.writable, tree));
        }
        // A mount inside of another mount must come after that mount.
        all.sort_by_key(|(target, ..)| target.components().count());
        let place = |(target, writable, tree): (PathBuf, bool, OwnedFd)| ((target.into(), writable), tree);
        let (targets, trees) = all.into_iter().map(place).unzip();
        Ok(Trees {
            targets,
            trees,
            zygote: described.zygote,
        })
    }
}
