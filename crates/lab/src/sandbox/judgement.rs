//! Verdicts about attempts. Evidence outside the sandbox decides first, then the attempt's own output.

use hotlease_escape::{Attempt, AttemptOutcome, Evidence};
use hotlease_sandbox::ProcessEnd;
use nix::sys::signal::Signal;
use serde::Serialize;

/// Result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum AttemptVerdict {
    /// The attempt was stopped.
    Contained,
    /// The attempt got out.
    Escaped,
    /// The node lacks something that the attempt needs, or stops the attempt even outside of sandboxes.
    Untried,
    /// The attempt ended before it tried anything, which proves nothing.
    Failed,
}

/// A verdict with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) verdict: AttemptVerdict,
    pub(super) reason: String,
}

/// Facts about an attempt that has ended.
#[derive(Debug)]
pub(super) struct AttemptFacts<'a> {
    /// Effects that were noticed outside the sandbox.
    pub(super) noticed: Vec<String>,
    /// End of the attempt's process.
    pub(super) end: ProcessEnd,
    /// Whether the attempt was killed at its deadline.
    pub(super) overdue: bool,
    /// The last part of its output.
    pub(super) output: &'a str,
}

pub(super) fn judge(attempt: &Attempt, facts: &AttemptFacts<'_>) -> Judgement {
    let judgement = |verdict, reason: String| Judgement { verdict, reason };
    if !facts.noticed.is_empty() {
        return judgement(AttemptVerdict::Escaped, facts.noticed.join("; "));
    }
    match AttemptOutcome::read(facts.output) {
        Some(AttemptOutcome::Escaped(got)) if attempt.evidence == Evidence::OwnClaim => {
            judgement(AttemptVerdict::Escaped, got)
        }
        Some(AttemptOutcome::Escaped(got)) => judgement(
            AttemptVerdict::Contained,
            format!("the neighbour outside did not notice: {got}"),
        ),
        Some(AttemptOutcome::Contained(how)) => judgement(AttemptVerdict::Contained, how),
        Some(AttemptOutcome::Untried(why)) => judgement(AttemptVerdict::Untried, why),
        None if facts.overdue => judgement(AttemptVerdict::Contained, "killed at its deadline".into()),
        None => match facts.end {
            ProcessEnd::OutOfMemory => judgement(AttemptVerdict::Contained, "killed for want of memory".into()),
            ProcessEnd::Signalled(signal) => {
                let name = Signal::try_from(signal).map_or("a signal", Signal::as_str);
                // Other signals are the attempt's own fault, unless it uses instructions that the processor may
                // lack.
                let verdict = match name {
                    "SIGSYS" | "SIGKILL" | "SIGXFSZ" | "SIGXCPU" => AttemptVerdict::Contained,
                    "SIGSEGV" | "SIGILL" if attempt.needs.is_some() => AttemptVerdict::Contained,
                    _ => AttemptVerdict::Failed,
                };
                judgement(verdict, name.to_owned())
            }
            ProcessEnd::Exited(status) => {
                let said = facts.output.lines().last().unwrap_or("nothing");
                judgement(
                    AttemptVerdict::Failed,
                    format!("exit status {status}, and it said: {said}"),
                )
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_escape::themes;

    fn named(name: &str) -> &'static Attempt {
        let mut attempts = themes().iter().flat_map(|theme| theme.attempts);
        attempts.find(|attempt| attempt.name == name).expect("an attempt")
    }

    fn verdict(name: &str, noticed: &[&str], end: ProcessEnd, overdue: bool, output: &str) -> AttemptVerdict {
        let noticed = noticed.iter().map(|what| what.to_string()).collect();
        let facts = AttemptFacts {
            noticed,
            end,
            overdue,
            output,
        };
        judge(named(name), &facts).verdict
    }

    #[test]
    fn harm_seen_outside_overrules_what_an_attempt_says() {
        let exit = ProcessEnd::Exited(0);
        let hurt = ["signal 10 came"];
        assert_eq!(
            verdict("kill-group", &hurt, exit, false, "contained: EPERM\n"),
            AttemptVerdict::Escaped
        );
        assert_eq!(
            verdict("kill-group", &hurt, ProcessEnd::Signalled(31), false, ""),
            AttemptVerdict::Escaped
        );
        // The attempt's own claim of an escape is not evidence.
        assert_eq!(
            verdict("kill-group", &[], exit, false, "escaped: sent\n"),
            AttemptVerdict::Contained
        );
        assert_eq!(
            verdict("file-read", &[], exit, false, "escaped: no secret\n"),
            AttemptVerdict::Contained
        );
        // The attempt's own claim counts if the only possible evidence is the kernel's answer to the attempt.
        assert_eq!(
            verdict("no-filter", &[], exit, false, "escaped: open\n"),
            AttemptVerdict::Escaped
        );
    }

    #[test]
    fn an_attempt_that_never_ran_proves_nothing() {
        for end in [
            ProcessEnd::Exited(127),
            ProcessEnd::Exited(0),
            ProcessEnd::Signalled(6),
            ProcessEnd::Signalled(11),
        ] {
            assert_eq!(
                verdict("no-filter", &[], end, false, ""),
                AttemptVerdict::Failed,
                "{end:?}"
            );
        }
        for end in [
            ProcessEnd::Signalled(31),
            ProcessEnd::Signalled(9),
            ProcessEnd::OutOfMemory,
        ] {
            assert_eq!(
                verdict("no-filter", &[], end, false, ""),
                AttemptVerdict::Contained,
                "{end:?}"
            );
        }
        assert_eq!(
            verdict("outlive-stopped", &[], ProcessEnd::Signalled(9), true, ""),
            AttemptVerdict::Contained
        );
        assert_eq!(
            verdict("i386-calls", &[], ProcessEnd::Signalled(11), false, ""),
            AttemptVerdict::Contained
        );
    }
}
