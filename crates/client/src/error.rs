//! Errors of the library, by what the caller can do about them.

use hotlease_fabric::memory::MemoryError;
use hotlease_fabric::runtime_dir::RuntimeDirError;
use hotlease_net::NetError;
use hotlease_wire::code::CodeError;
use hotlease_wire::frame::InvocationStatus;
use hotlease_wire::{Cause, EndReason, Rejection, RunCertainty};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

mod clauses;

use clauses::{advice, after_death, after_lease, did_you_mean, output_text, refused};

/// Error of a call of this library.
///
/// [`Error::ran`] says whether the function ran, [`Error::billed`] whether its time is on the lease's bill,
/// [`Error::retryable`] whether repeating the call is safe and may help.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No platform serves this socket.
    #[error("hotlease is not running (no process serves {socket}); start it with `hotlease up`")]
    NotRunning {
        /// Socket of the manager or the agent.
        socket: PathBuf,
    },
    /// A daemon on another host cannot be reached, or one side does not accept the other side.
    #[error("{0}")]
    Network(Arc<NetError>),
    /// There is no safe directory for the platform's sockets.
    #[error("{why}")]
    RuntimeDirectory {
        /// Reason why it is not safe.
        why: String,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// The bytes are not a usable function library.
    #[error("{name} is not a function library: {source}")]
    Code {
        /// The library.
        name: String,
        /// Reason why it is not usable.
        source: CodeError,
    },
    /// The library has no such function.
    #[error("{code} has no function `{name}`{}", did_you_mean(.similar))]
    NoSuchFunction {
        /// The requested name.
        name: String,
        /// The library.
        code: String,
        /// Names that may have been meant.
        similar: Vec<String>,
    },
    /// No transport leads to the worker.
    #[error("no way to the worker on {host}: {why}; `hotlease doctor` shows what the client's host has")]
    NoTransport {
        /// The worker's host.
        host: String,
        /// The transports that were tried, and the error of each.
        why: String,
    },
    /// The lease has no such slot.
    #[error("there is no slot {index}; the lease has {slots}, counted from 0")]
    NoSuchSlot {
        /// The requested slot.
        index: usize,
        /// Number of slots of the lease.
        slots: usize,
    },
    /// An option or argument makes no sense.
    #[error("bad option: {what}")]
    Options {
        /// The option, and what is wrong with it.
        what: String,
    },
    /// Manager, agent or worker refused; nothing was changed.
    #[error("{0}")]
    Refused(Rejection),
    /// Too few cores, places or GPUs are free; nothing was changed.
    #[error("{refusal}; held now: {holders}")]
    NoRoom {
        /// The refusal, with present figures.
        refusal: Rejection,
        /// Programs and users that hold the resources, and for how long, as far as listings show them to this client's
        /// user; also the total that is offered, if that is too little.
        holders: String,
    },
    /// The function returned an error of its own.
    #[error("the function returned error {code}{}", output_text("it says", .output))]
    Function {
        /// The function's error number.
        code: i32,
        /// The function's output.
        output: Vec<u8>,
    },
    /// The function ran, and its output is larger than the capacity that the caller offered.
    #[error(
        "the function's output of {produced} bytes is larger than the {capacity} bytes offered; pass a larger output, or set `output_bytes`"
    )]
    OutputTooLarge {
        /// Bytes that the function wanted to write.
        produced: u64,
        /// Capacity of the output in bytes.
        capacity: u64,
    },
    /// The function ran; the worker could not write its output to the caller's buffer over the fabric.
    #[error(
        "the function ran, but its output could not be written to the buffer over the fabric, which may hold a part of it"
    )]
    OutputLost,
    /// The input is larger than registered memory can be.
    #[error("the input of {size} bytes is over the limit of {limit}")]
    InputTooLarge {
        /// Size of the input.
        size: u64,
        /// Largest possible size.
        limit: u64,
    },
    /// An input or output has more parts of buffers than a request can name.
    #[error(
        "{parts} parts of buffers are more than the {limit} that one input or output can have; use fewer, larger ones"
    )]
    TooManyParts {
        /// Number of parts.
        parts: usize,
        /// Largest number of parts, given the size of ring entries.
        limit: usize,
    },
    /// Invocations in flight use all the memory that may be registered with the worker at a time.
    #[error(
        "a buffer of {size_bytes} bytes cannot be registered with the worker: invocations in flight use all {buffers} registered buffers ({bytes} bytes); wait for some of them, or lease with a larger `{option}`"
    )]
    BuffersInUse {
        /// Size of the buffer to be registered.
        size_bytes: u64,
        /// Number of registered buffers.
        buffers: usize,
        /// Total size of the registered buffers.
        bytes: u64,
        /// The option whose limit was reached.
        option: &'static str,
    },
    /// A buffer cannot be registered with the worker.
    #[error("a buffer of {size_bytes} bytes cannot be registered with the worker: {why}")]
    Unregistered {
        /// Size of the buffer.
        size_bytes: u64,
        /// Reason of the failure, and what helps.
        why: String,
    },
    /// The worker died.
    #[error(
        "{}{}; {ran}{}",
        .cause.with_name(.function.as_deref()),
        output_text("its last output", .output.as_bytes()),
        after_death(.cause, *.ran)
    )]
    WorkerDied {
        /// Cause of the death.
        cause: Cause,
        /// The name of the function that was running, if this client's library has that function.
        function: Option<String>,
        /// The end of the worker's printed output.
        output: String,
        /// Whether this invocation's function ran.
        ran: RunCertainty,
    },
    /// The lease ended.
    #[error("the lease has ended: {reason}; {ran}{}", after_lease(*.reason, *.ran))]
    LeaseEnded {
        /// Reason of the end.
        reason: EndReason,
        /// Whether this invocation's function ran.
        ran: RunCertainty,
    },
    /// No remaining party can report how the invocation ended.
    #[error("the outcome is unknown: {why}{}", advice(RunCertainty::Unknown))]
    OutcomeUnknown {
        /// Description of the event.
        why: String,
    },
    /// The invocation ran past its deadline.
    #[error("the invocation did not end within its {timeout:?}; {ran}{}", advice(*.ran))]
    Deadline {
        /// The time that the invocation had.
        timeout: Duration,
        /// Whether the function ran.
        ran: RunCertainty,
    },
    /// The slot did not run the invocation.
    #[error("the slot refused the invocation: {}; the function did not run", refused(*.status))]
    NotRun {
        /// Status in the slot's reply.
        status: InvocationStatus,
    },
    /// As many invocations are in flight as the channels have entries. Returned only by the `try_` calls.
    #[error(
        "as many invocations are in flight as the lease's slots allow; wait for some results, or lease with a larger `depth`"
    )]
    NoCredit,
    /// No slot had a core: the lease shares its cores, and other leases use them now.
    #[error("the shared core of every slot tried is in use; the function did not run; call again later")]
    NoCore,
    /// A peer broke the protocol; the channel to it is closed.
    #[error("a peer broke the protocol: {what}; install the same hotlease on both sides")]
    Protocol {
        /// The breach.
        what: String,
    },
    /// An operation of this process failed.
    #[error("cannot {what}: {source}")]
    Local {
        /// The operation.
        what: &'static str,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// Remote memory was taken back, or its node is gone: the bytes are lost, for good.
    #[error("the remote memory is lost: {why}; its bytes are gone: allocate another, and write them again")]
    MemoryLost {
        /// Reason of the loss.
        why: String,
    },
    /// This process cannot allocate or map memory.
    #[error("{0}")]
    Memory(Arc<MemoryError>),
}

impl Error {
    /// Whether the function of the failed invocation ran. `No` for errors that do not concern an invocation.
    pub fn ran(&self) -> RunCertainty {
        match self {
            Self::Function { .. } | Self::OutputTooLarge { .. } | Self::OutputLost => RunCertainty::Yes,
            Self::WorkerDied { ran, .. } | Self::LeaseEnded { ran, .. } | Self::Deadline { ran, .. } => *ran,
            // A malformed reply is still a reply: the worker that wrote it had the request.
            Self::OutcomeUnknown { .. } | Self::Protocol { .. } => RunCertainty::Unknown,
            _ => RunCertainty::No,
        }
    }

    /// Whether the invocation's compute time is on the lease's bill. A function that may have run is metered up to the
    /// moment it stopped; a function that did not run costs nothing beyond the slot's own time.
    pub fn billed(&self) -> bool {
        self.ran() != RunCertainty::No
    }

    /// Whether the same call may succeed if it is repeated, without the risk that it runs a function twice that must
    /// run once.
    pub fn retryable(&self) -> bool {
        self.ran() == RunCertainty::No
            && match self {
                Self::WorkerDied { .. }
                | Self::NoCredit
                | Self::NoCore
                | Self::BuffersInUse { .. }
                | Self::NotRunning { .. } => true,
                // The program released the lease on purpose, and the same call would fail for ever.
                Self::LeaseEnded { reason, .. } => *reason != EndReason::Released,
                Self::Network(error) => matches!(
                    **error,
                    NetError::Unresolved { .. }
                        | NetError::Unreachable { .. }
                        | NetError::Silent { .. }
                        | NetError::Closed { .. }
                ),
                Self::NotRun { status } => matches!(status, InvocationStatus::StaleEpoch | InvocationStatus::Draining),
                // The limit stays reached until a holder gives something back: the same call at once would fail again.
                Self::Refused(Rejection::TooMany { .. }) => false,
                Self::Refused(refusal) | Self::NoRoom { refusal, .. } => refusal.may_pass(),
                _ => false,
            }
    }

    /// The refusal, if manager, agent or worker refused.
    pub fn refusal(&self) -> Option<&Rejection> {
        match self {
            Self::Refused(refusal) | Self::NoRoom { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// Whether this process has reached its limit of open descriptors: it can allocate more buffers once others are
    /// dropped.
    pub fn lacks_descriptors(&self) -> bool {
        matches!(self, Self::Memory(error) if error.lacks_descriptors())
    }

    pub(crate) fn local(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Local {
            what,
            source: Arc::new(source),
        }
    }

    /// The error of an invocation that did not end within its timeout.
    pub(crate) fn deadline(timeout: Option<Duration>, ran: RunCertainty) -> Self {
        Self::Deadline {
            timeout: timeout.unwrap_or_default(),
            ran,
        }
    }

    /// The error of a request to `peer` that was not answered within `limit`.
    pub(crate) fn no_answer(peer: impl Into<String>, limit: Duration) -> Self {
        Self::Refused(Rejection::Timeout {
            what: peer.into(),
            after_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// The error of a task on the control thread that panicked.
    pub(crate) fn failed_task(error: &tokio::task::JoinError) -> Self {
        Self::protocol(format!("a task of the library failed: {error}"))
    }

    pub(crate) fn protocol(what: impl ToString) -> Self {
        Self::Protocol { what: what.to_string() }
    }
}

impl From<Rejection> for Error {
    fn from(refusal: Rejection) -> Self {
        Self::Refused(refusal)
    }
}

impl From<NetError> for Error {
    fn from(error: NetError) -> Self {
        match error {
            NetError::Refused(refusal) => Self::Refused(refusal),
            error => Self::Network(Arc::new(error)),
        }
    }
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Self {
        Self::Memory(Arc::new(error))
    }
}

impl From<RuntimeDirError> for Error {
    fn from(error: RuntimeDirError) -> Self {
        Self::RuntimeDirectory { why: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_says_what_to_do() {
        let died = Error::WorkerDied {
            cause: Cause::Signal {
                signal: 11,
                function: Some(12),
            },
            function: Some("blur".into()),
            output: "about to crash\n".into(),
            ran: RunCertainty::Unknown,
        };
        let text = died.to_string();
        for part in [
            "signal 11",
            "while running `blur`",
            "its last output: about to crash",
            "may have run",
            "correct it",
        ] {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
        assert!(died.billed() && !died.retryable());
        let queued = Error::LeaseEnded {
            reason: EndReason::Expired,
            ran: RunCertainty::No,
        };
        assert!(queued.retryable() && !queued.billed());
        assert!(queued.to_string().contains("safe to call again"));
        let over = Error::LeaseEnded {
            reason: EndReason::Released,
            ran: RunCertainty::No,
        };
        assert!(
            !over.retryable() && over.to_string().contains("allocate another"),
            "{over}"
        );
        let small = Error::WorkerDied {
            cause: Cause::OutputOverrun {
                function: None,
                capacity: 8,
            },
            function: None,
            output: String::new(),
            ran: RunCertainty::Unknown,
        };
        assert!(small.to_string().contains("output_bytes"), "{small}");
        let own = Error::Function {
            code: 42,
            output: b"no input".to_vec(),
        };
        assert_eq!(own.to_string(), "the function returned error 42; it says: no input");
    }

    /// The variants of an error in the source of its crate.
    fn variants(source: &str, name: &str) -> Vec<String> {
        let begin = source.find(&format!("pub enum {name} {{\n")).expect("the enum");
        let end = begin + source[begin..].find("\n}\n").expect("its end");
        let names = source[begin..end].lines().filter_map(|line| {
            let line = line.strip_prefix("    ")?;
            let name = line.split([' ', ',', '(']).next()?;
            name.starts_with(char::is_uppercase).then(|| name.to_owned())
        });
        names.collect()
    }

    #[test]
    fn the_page_of_errors_has_a_row_for_each_variant_and_none_for_others() {
        let mut known = variants(include_str!("error.rs"), "Error");
        known.retain(|name| !["Refused", "Network"].contains(&name.as_str()));
        let refusals = variants(include_str!("../../wire/src/rejection.rs"), "Rejection");
        let network = variants(include_str!("../../net/src/error.rs"), "NetError");
        assert!(known.len() > 10 && refusals.len() > 10 && network.len() > 5);
        known.extend(refusals.iter().map(|name| format!("Refused({name})")));
        known.extend(network.iter().map(|name| format!("Network({name})")));
        let of_others = [
            ("Comm", include_str!("../../comm/src/error.rs"), "Error"),
            ("Gang", include_str!("../../gang/src/error.rs"), "Error"),
            ("Image", include_str!("../../image/src/error.rs"), "ImageError"),
            ("Flow", include_str!("../../flow/src/event.rs"), "SubmitError<P>"),
            (
                "Checkpoint",
                include_str!("../../flow/src/checkpoint.rs"),
                "CheckpointError",
            ),
        ];
        for (short, source, name) in of_others {
            let names = variants(source, name);
            assert!(names.len() > 2, "{name}");
            known.extend(names.iter().map(|name| format!("{short}({name})")));
        }
        let page = include_str!("../../../docs/errors.md");
        // The rest of the page is about the Python package, whose own tests check it.
        let (page, _) = page
            .split_once("\n## Of the Python package\n")
            .expect("a section of Python's");
        let first = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let first = first.filter_map(|row| row.split(" |").next());
        let rows: Vec<&str> = first
            .flat_map(|names| names.split(", "))
            .map(|name| name.trim_matches('`'))
            .collect();
        for name in &known {
            let found = rows.iter().filter(|row| *row == name).count();
            assert_eq!(found, 1, "docs/errors.md has {found} rows for `{name}`");
        }
        for row in rows {
            assert!(
                known.iter().any(|name| name == row),
                "docs/errors.md has a row for `{row}`, which does not exist"
            );
        }
    }

    #[test]
    fn binary_output_stays_out_of_messages() {
        let error = Error::Function {
            code: 3,
            output: vec![0, 255, 1],
        };
        assert_eq!(error.to_string(), "the function returned error 3");
    }
}
