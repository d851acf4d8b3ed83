//! Cause of a worker's end: the one place where wait status, crash record and the agent's own kill become a [`Cause`].

use hotlease_fabric::usage::Crash;
use hotlease_sandbox::{Exit, ProcessEnd};
use hotlease_wire::{Cause, EndReason};

const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;

/// Reason for which the agent killed a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KillReason {
    /// Its lease has ended.
    LeaseEnded(EndReason),
    /// A function ran past its deadline.
    Deadline {
        /// Number of the function.
        function: u16,
        /// Time that it had, microseconds.
        timeout_us: u64,
    },
    /// It holds more memory than its lease allows.
    Memory,
    /// It does not carry out an order, or is in a state that its lease cannot use; the text says which.
    Unusable(&'static str),
}

/// Facts about a worker's end.
pub(crate) struct ExitEvidence<'a> {
    /// End of the process.
    pub exit: &'a Exit,
    /// Record that it wrote while dying.
    pub crash: Option<Crash>,
    /// The function that was running, if exactly one was.
    pub running: Option<u16>,
    /// Reason for which the agent killed it, if it did.
    pub killed: Option<&'a KillReason>,
    /// Whether its lease limits its memory.
    pub memory_limited: bool,
}

impl ExitEvidence<'_> {
    /// Cause of the end, and the output to show with it.
    pub fn verdict(&self) -> (Cause, String) {
        let output = self.exit.output.clone();
        if let (ProcessEnd::Signalled(SIGKILL), Some(killed)) = (self.exit.end, self.killed) {
            return match killed {
                KillReason::LeaseEnded(reason) => (Cause::LeaseEnded(*reason), output),
                KillReason::Deadline { function, timeout_us } => {
                    let function = Some(*function);
                    let timeout_us = *timeout_us;
                    (Cause::Deadline { function, timeout_us }, output)
                }
                KillReason::Memory => (Cause::OutOfMemory, output),
                KillReason::Unusable(why) => {
                    let function = self.running;
                    let cause = Cause::Signal {
                        signal: SIGKILL,
                        function,
                    };
                    (cause, format!("{output}(killed by the agent: {why})"))
                }
            };
        }
        (self.own_end(), output)
    }

    fn own_end(&self) -> Cause {
        let function = self.crash.and_then(|crash| crash.function).or(self.running);
        match self.exit.end {
            ProcessEnd::OutOfMemory => Cause::OutOfMemory,
            // No process can record its own SIGKILL. A monitor records it when its machine has run out of memory.
            ProcessEnd::Signalled(SIGKILL) if self.crash.is_some_and(|crash| crash.signal == SIGKILL) => {
                Cause::OutOfMemory
            }
            ProcessEnd::Exited(status) => Cause::Exit { status, function },
            ProcessEnd::Signalled(SIGABRT) if self.memory_limited && gave_up_allocating(&self.exit.output) => {
                Cause::OutOfMemory
            }
            ProcessEnd::Signalled(signal) => match self.crash.and_then(|crash| crash.overrun_capacity) {
                Some(capacity) => Cause::OutputOverrun { function, capacity },
                None => Cause::Signal { signal, function },
            },
        }
    }
}

/// Under a memory limit the kernel does not kill the worker: allocation fails, and C++ and Rust abort with this text.
fn gave_up_allocating(output: &str) -> bool {
    output.contains("std::bad_alloc") || output.contains("memory allocation of ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crash(signal: i32, overrun_capacity: Option<u64>) -> Option<Crash> {
        Some(Crash {
            slot: Some(0),
            signal,
            function: Some(3),
            invocation: None,
            overrun_capacity,
            exited: signal == 0,
        })
    }

    fn verdict(end: ProcessEnd, crash: Option<Crash>, killed: Option<&KillReason>) -> Cause {
        let exit = Exit {
            end,
            output: String::new(),
        };
        let evidence = ExitEvidence {
            exit: &exit,
            crash,
            running: Some(7),
            killed,
            memory_limited: false,
        };
        evidence.verdict().0
    }

    #[test]
    fn a_machine_without_memory_is_told_as_any_other_worker_without() {
        assert_eq!(
            verdict(ProcessEnd::Signalled(9), crash(9, None), None),
            Cause::OutOfMemory
        );
        let killed = verdict(ProcessEnd::Signalled(9), crash(11, None), None);
        assert!(matches!(killed, Cause::Signal { signal: 9, .. }), "{killed}");
    }

    #[test]
    fn the_crash_record_says_which_function_failed() {
        assert_eq!(
            verdict(ProcessEnd::Signalled(11), crash(11, None), None),
            Cause::Signal {
                signal: 11,
                function: Some(3)
            }
        );
        assert_eq!(
            verdict(ProcessEnd::Signalled(11), crash(11, Some(64)), None),
            Cause::OutputOverrun {
                function: Some(3),
                capacity: 64
            }
        );
        assert_eq!(
            verdict(ProcessEnd::Exited(4), crash(0, None), None),
            Cause::Exit {
                status: 4,
                function: Some(3)
            }
        );
        assert_eq!(
            verdict(ProcessEnd::Signalled(9), None, None),
            Cause::Signal {
                signal: 9,
                function: Some(7)
            },
            "without a record, the one that was running"
        );
        assert_eq!(verdict(ProcessEnd::OutOfMemory, None, None), Cause::OutOfMemory);
    }

    #[test]
    fn our_own_kill_is_told_with_its_reason_unless_the_worker_was_faster() {
        let deadline = KillReason::Deadline {
            function: 2,
            timeout_us: 1000,
        };
        assert_eq!(
            verdict(ProcessEnd::Signalled(9), None, Some(&deadline)),
            Cause::Deadline {
                function: Some(2),
                timeout_us: 1000
            }
        );
        assert_eq!(
            verdict(ProcessEnd::Signalled(11), crash(11, None), Some(&deadline)),
            Cause::Signal {
                signal: 11,
                function: Some(3)
            }
        );
        let ended = KillReason::LeaseEnded(EndReason::Expired);
        assert_eq!(
            verdict(ProcessEnd::Signalled(9), None, Some(&ended)),
            Cause::LeaseEnded(EndReason::Expired)
        );
    }

    #[test]
    fn a_failed_allocation_under_a_limit_is_out_of_memory() {
        let exit = Exit {
            end: ProcessEnd::Signalled(SIGABRT),
            output: "terminate called after throwing an instance of 'std::bad_alloc'".into(),
        };
        let evidence = |memory_limited| ExitEvidence {
            exit: &exit,
            crash: None,
            running: None,
            killed: None,
            memory_limited,
        };
        assert_eq!(evidence(true).verdict().0, Cause::OutOfMemory);
        assert!(matches!(evidence(false).verdict().0, Cause::Signal { .. }));
    }
}
