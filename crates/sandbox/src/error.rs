//! Errors of starting a worker, and whether the next start would fail in the same way.

use crate::kind::Kind;
use crate::workload::Program;
use std::io;
use std::path::PathBuf;

/// Reason why a worker could not be started. No process is left.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The worker's program cannot be run.
    #[error(
        "the worker program {path} cannot be run: {source}; build it with `make build`, or name it in HOTLEASE_WORKER"
    )]
    Binary {
        /// Path that was tried.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// A program that a lease names cannot be run.
    #[error("the program {path} cannot be run on this node: {source}")]
    Program {
        /// Path in the request.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// This node cannot make sandboxes of this kind.
    #[error("no sandbox of kind {kind} can be made on this node: {why}")]
    Unavailable {
        /// Kind of sandbox.
        kind: Kind,
        /// Description of the missing part, and advice.
        why: String,
    },
    /// The sandbox was not made, or its program was not started.
    #[error("a sandbox could not be started: {what}")]
    Sandbox {
        /// The step that failed, and why.
        what: String,
    },
    /// The system refused a step.
    #[error("a worker process could not be started: {what}: {source}")]
    Start {
        /// The step.
        what: &'static str,
        /// Reason.
        source: io::Error,
    },
}

impl SandboxError {
    /// Whether the next start would fail in the same way. A refusal by the system may have a temporary cause.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Binary { .. } | Self::Program { .. } | Self::Unavailable { .. } => true,
            Self::Sandbox { .. } | Self::Start { .. } => false,
        }
    }

    /// Turns the error into [`SandboxError::Program`] if the sandbox takes the program from the host and the program
    /// does not exist there. Only this cause is known to be lasting.
    pub(crate) fn unless_missing(self, program: Option<&Program>) -> Self {
        match program {
            // A program in an image may exist only in the sandbox.
            Some(program) if program.held.is_nothing() && !program.path.exists() => Self::Program {
                path: program.path.clone(),
                source: nix::errno::Errno::ENOENT.into(),
            },
            _ => self,
        }
    }
}
