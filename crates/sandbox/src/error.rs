//! Why there is no worker, and whether the next one would fail alike.

use crate::kind::Kind;
use crate::launcher::Program;
use std::io;
use std::path::PathBuf;

/// Why there is no worker. None was started.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// There is no program for workers.
    #[error(
        "the worker program {path} cannot be run: {source}; build it with `make build`, or name it in HOTLEASE_WORKER"
    )]
    Binary {
        /// What was tried.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A program that a lease names.
    #[error("the program {path} cannot be run on this node: {source}")]
    Program {
        /// What was named.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// This machine cannot make such sandboxes.
    #[error("no sandbox of kind {kind} can be made on this node: {why}")]
    Unavailable {
        /// Which kind.
        kind: Kind,
        /// What is missing, and what to do about it.
        why: String,
    },
    /// A sandbox was not made, or its program not started in it.
    #[error("a sandbox could not be started: {what}")]
    Sandbox {
        /// Which step, and why.
        what: String,
    },
    /// The system refused.
    #[error("a worker process could not be started: {what}: {source}")]
    Start {
        /// Which step.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl SandboxError {
    /// Whether the next start would fail alike. Where the system refused, something may be short only now.
    pub fn lasts(&self) -> bool {
        match self {
            Self::Binary { .. } | Self::Program { .. } | Self::Unavailable { .. } => true,
            Self::Sandbox { .. } | Self::Start { .. } => false,
        }
    }

    /// Of a program that is shown in its sandbox as the host has it: the one reason that is known to last.
    pub(crate) fn unless_missing(self, program: Option<&Program>) -> Self {
        match program {
            // What is in an image may be in the sandbox only.
            Some(program) if program.held.is_nothing() && !program.path.exists() => Self::Program {
                path: program.path.clone(),
                source: nix::errno::Errno::ENOENT.into(),
            },
            _ => self,
        }
    }
}
