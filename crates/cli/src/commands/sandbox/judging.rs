//! Verdicts about attempts: from their own output, and first of all from evidence outside the sandbox.

use hotlease_escape::{Attempt, Evidence, Outcome};
use hotlease_sandbox::End;
use nix::sys::signal::Signal;
use serde::Serialize;

/// Result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// The attempt was stopped.
    Contained,
    /// The attempt got out.
    Escaped,
    /// The node lacks what the attempt needs, or also stops it outside of sandboxes.
    Untried,
    /// The attempt ended before it tried anything, which proves nothing.
    Failed,
}

/// A verdict with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) verdict: Verdict,
    pub(super) how: String,
}

/// Facts about an attempt that has ended.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    /// Effects that were noticed outside the sandbox.
    pub(super) noticed: Vec<String>,
    /// End of its process.
    pub(super) end: End,
    /// Whether it was killed at its deadline.
    pub(super) overdue: bool,
    /// The last part of its output.
    pub(super) output: &'a str,
}

pub(super) fn judge(attempt: &Attempt, facts: &Facts<'_>) -> Judgement {
    let of = |verdict, how: String| Judgement { verdict, how };
    if !facts.noticed.is_empty() {
        return of(Verdict::Escaped, facts.noticed.join("; "));
    }
    match Outcome::read(facts.output) {
        Some(Outcome::Escaped(got)) if attempt.evidence == Evidence::Said => of(Verdict::Escaped, got),
        Some(Outcome::Escaped(got)) => of(Verdict::Contained, format!("nobody outside noticed: {got}")),
        Some(Outcome::Contained(how)) => of(Verdict::Contained, how),
        Some(Outcome::Untried(why)) => of(Verdict::Untried, why),
        None if facts.overdue => of(Verdict::Contained, "killed at its deadline".into()),
        None => match facts.end {
            End::OutOfMemory => of(Verdict::Contained, "killed for want of memory".into()),
            End::Signalled(signal) => {
                let name = Signal::try_from(signal).map_or("a signal", Signal::as_str);
                // Other signals are the attempt's own fault, unless it uses instructions that the processor may
                // lack.
                let verdict = match name {
                    "SIGSYS" | "SIGKILL" | "SIGXFSZ" | "SIGXCPU" => Verdict::Contained,
                    "SIGSEGV" | "SIGILL" if attempt.needs.is_some() => Verdict::Contained,
                    _ => Verdict::Failed,
                };
                of(verdict, name.to_owned())
            }
            End::Exited(status) => {
                let said = facts.output.lines().last().unwrap_or("nothing");
                of(
                    Verdict::Failed,
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

    fn verdict(name: &str, noticed: &[&str], end: End, overdue: bool, output: &str) -> Verdict {
        let noticed = noticed.iter().map(|what| what.to_string()).collect();
        let facts = Facts {
            noticed,
            end,
            overdue,
            output,
        };
        judge(named(name), &facts).verdict
    }

    #[test]
    fn what_is_noticed_outside_counts_more_than_what_an_attempt_says() {
        let exit = End::Exited(0);
        let hurt = ["signal 10 came"];
        assert_eq!(
            verdict("kill-group", &hurt, exit, false, "contained: EPERM\n"),
            Verdict::Escaped
        );
        assert_eq!(
            verdict("kill-group", &hurt, End::Signalled(31), false, ""),
            Verdict::Escaped
        );
        // Its own claim of an escape is not evidence.
        assert_eq!(
            verdict("kill-group", &[], exit, false, "escaped: sent\n"),
            Verdict::Contained
        );
        assert_eq!(
            verdict("file-read", &[], exit, false, "escaped: no secret\n"),
            Verdict::Contained
        );
        // Its own claim counts if only the kernel's answer to it can be evidence.
        assert_eq!(
            verdict("no-filter", &[], exit, false, "escaped: open\n"),
            Verdict::Escaped
        );
    }

    #[test]
    fn what_never_ran_proves_nothing() {
        for end in [
            End::Exited(127),
            End::Exited(0),
            End::Signalled(6),
            End::Signalled(11),
        ] {
            assert_eq!(
                verdict("no-filter", &[], end, false, ""),
                Verdict::Failed,
                "{end:?}"
            );
        }
        for end in [End::Signalled(31), End::Signalled(9), End::OutOfMemory] {
            assert_eq!(
                verdict("no-filter", &[], end, false, ""),
                Verdict::Contained,
                "{end:?}"
            );
        }
        assert_eq!(
            verdict("outlive-stopped", &[], End::Signalled(9), true, ""),
            Verdict::Contained
        );
        assert_eq!(
            verdict("i386-calls", &[], End::Signalled(11), false, ""),
            Verdict::Contained
        );
    }
}
