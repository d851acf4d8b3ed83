//! Attempts in virtual machines. Starting a machine costs more than most attempts, so many attempts share one.
//!
//! If several attempts share a machine, it is unknown which of them caused an effect outside. So if any effect was
//! noticed outside, no result of this machine counts. An attempt that did not end in the machine has no result. In both
//! cases the attempts are repeated, each in its own machine. Floods, and attempts that do not end by themselves or
//! leave something behind, get their own machines from the start.

use super::judgement::{AttemptFacts, Judgement, judge};
use super::trial::{AttemptExit, DEADLINE, DEATH, TestSetup, can_close, control_socket};
use hotlease_escape::{Attempt, BEGUN, ENDED, themes};
use hotlease_sandbox::{Exit, Kind, Process, ProcessEnd};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Longest time until a machine's first attempt begins. An emulated machine on a busy node is slow.
pub(super) const BOOT: Duration = Duration::from_secs(150);
/// Interval at which the output is read. Only the last part of the output is kept, which is more than attempts print in
/// this time.
const LOOK: Duration = Duration::from_millis(10);

/// Whether this attempt can share a machine with other attempts.
fn can_share(attempt: &Attempt) -> bool {
    let leaves = |name: &str| name.starts_with("outlive-") || name.starts_with("leave-");
    !attempt.flood && !attempt.endless && !leaves(attempt.name) && exclusion_reason(attempt).is_none()
}

/// Reason why this attempt proves nothing about a machine. Returns `None` if it can prove something.
pub(super) fn exclusion_reason(attempt: &Attempt) -> Option<&'static str> {
    let counts_processors = ["processors", "flood-cpu"].contains(&attempt.name);
    counts_processors.then_some(
        "a machine's processors are threads outside, and what they are granted is not seen inside: the sandbox around it is tried in kind \
         namespace",
    )
}

/// All chosen attempts that can share a machine.
pub(super) fn sharing(is_chosen: impl Fn(&Attempt) -> bool) -> Vec<&'static Attempt> {
    let all = themes().iter().flat_map(|theme| theme.attempts);
    all.filter(|attempt| can_share(attempt) && is_chosen(attempt)).collect()
}

/// Waits until the first attempt has begun, or the machine has ended.
pub(super) async fn until_begun(process: &Process) {
    let begin = Instant::now();
    while !process.is_gone() && !process.output().contains(BEGUN) && begin.elapsed() < BOOT {
        tokio::time::sleep(LOOK).await;
    }
}

/// End and output of a machine's only attempt.
pub(super) fn exit_of_only_attempt(exit: &Exit, overdue: bool) -> AttemptExit {
    let mut lines: Vec<&str> = exit.output.lines().collect();
    let status = lines.iter().rposition(|line| line.starts_with(ENDED)).and_then(|at| {
        let status = lines[at].strip_prefix(ENDED)?.parse().ok()?;
        lines.truncate(at);
        Some(status)
    });
    AttemptExit {
        end: match status {
            Some(status) if !overdue => end_of(status),
            _ => exit.end,
        },
        output: lines.join("\n"),
    }
}

fn end_of(status: i32) -> ProcessEnd {
    match status {
        0.. => ProcessEnd::Exited(status),
        _ => ProcessEnd::Signalled(status.saturating_neg()),
    }
}

/// Output of several attempts, assembled from the parts of the output that were kept at different times.
#[derive(Default)]
struct OutputAssembly {
    /// Attempts that have ended, with their output.
    told: BTreeMap<String, AttemptExit>,
    /// Attempt that began last.
    begun: Option<String>,
}

impl OutputAssembly {
    /// Reads the present output. Returns whether an attempt has begun or ended since the last call.
    fn add_output(&mut self, output: &str) -> bool {
        let before = (self.told.len(), self.begun.clone());
        let mut section: Option<(&str, Vec<&str>)> = None;
        // A line without its end may be incomplete.
        let whole = output.rfind('\n').map_or("", |end| &output[..end]);
        for line in whole.lines() {
            if let Some(name) = line.strip_prefix(BEGUN) {
                self.begun = Some(name.to_owned());
                section = Some((name, Vec::new()));
            } else if let Some(status) = line.strip_prefix(ENDED) {
                if let (Some((name, lines)), Ok(status)) = (section.take(), status.parse()) {
                    let told = AttemptExit {
                        end: end_of(status),
                        output: lines.join("\n"),
                    };
                    self.told.insert(name.to_owned(), told);
                }
            } else if let Some((_, lines)) = &mut section {
                lines.push(line);
            }
        }
        before != (self.told.len(), self.begun.clone())
    }
}

impl TestSetup {
    /// Makes these attempts, many in one machine. Attempts that are missing from the result must be repeated.
    pub(super) async fn make_several(
        &mut self,
        attempts: &[&'static Attempt],
    ) -> anyhow::Result<BTreeMap<&'static str, Judgement>> {
        let mut judged = BTreeMap::new();
        let mut left = attempts;
        while !left.is_empty() {
            let Some(heard) = self.run_in_machine(left).await? else {
                // One of the attempts got out of the machine.
                break;
            };
            for attempt in left {
                let Some(told) = heard.told.get(attempt.name) else {
                    continue;
                };
                let facts = AttemptFacts {
                    noticed: Vec::new(),
                    end: told.end,
                    overdue: false,
                    output: &told.output,
                };
                judged.insert(attempt.name, judge(attempt, &facts));
            }
            // Continues with the attempts that follow the last one in this machine.
            let is_last = |attempt: &&Attempt| Some(attempt.name) == heard.begun.as_deref();
            match left.iter().position(is_last) {
                Some(last) => left = &left[last + 1..],
                None => break,
            }
        }
        Ok(judged)
    }

    /// Makes these attempts in one machine until all are done or the machine ends. Returns `None` if anything was
    /// noticed outside.
    async fn run_in_machine(&mut self, attempts: &[&'static Attempt]) -> anyhow::Result<Option<OutputAssembly>> {
        let (mut neighbour, around) = self.surround(Kind::MicroVm)?;
        let (ours, theirs) = control_socket()?;
        let names: Vec<&str> = attempts.iter().map(|attempt| attempt.name).collect();
        let process = self.start(&names, Kind::MicroVm, &around, theirs)?;
        until_begun(&process).await;
        let mut heard = OutputAssembly::default();
        let mut progress = Instant::now();
        while !process.is_gone() && progress.elapsed() < DEADLINE {
            if heard.add_output(&process.output()) {
                progress = Instant::now();
            }
            tokio::time::sleep(LOOK).await;
        }
        process.kill();
        let is_gone = tokio::time::timeout(DEATH, process.exited()).await.is_ok();
        can_close(ours).await;
        let output = process.output();
        heard.add_output(&output);
        drop(process);
        let outputs: Vec<&str> = heard.told.values().map(|told| told.output.as_str()).collect();
        let outputs = outputs.join("\n") + &output;
        let noticed = self.collect_evidence(&around, &mut neighbour, &outputs, true).await;
        around.clear(neighbour);
        Ok((is_gone && noticed.is_empty()).then_some(heard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_several_attempts_is_assembled_from_its_ends() {
        let mut heard = OutputAssembly::default();
        assert!(heard.add_output("begun one\ncontained: EPERM\nended 0\nbegun two\nsome"));
        assert!(!heard.add_output("contained: EPERM\nended 0\nbegun two\nsome"));
        // The beginning of the output and the middle of the third attempt's output are lost.
        assert!(heard.add_output("two\nsomething\nended -9\nbegun three\nescaped: all\nended 1\nbegun fo"));
        assert!(heard.add_output("hing\nbegun four\nuntried: no\nended 2\nbegun five\n"));
        let told = |name: &str| heard.told.get(name).map(|told| (told.end, told.output.as_str()));
        assert_eq!(told("one"), Some((ProcessEnd::Exited(0), "contained: EPERM")));
        assert_eq!(told("two"), None, "where it began was not seen");
        assert_eq!(told("three"), Some((ProcessEnd::Exited(1), "escaped: all")));
        assert_eq!(told("four"), Some((ProcessEnd::Exited(2), "untried: no")));
        assert_eq!((told("five"), heard.begun.as_deref()), (None, Some("five")));
    }

    #[test]
    fn the_end_of_the_only_attempt_is_its_own_and_not_the_machine_s() {
        let exit = |output: &str| Exit {
            end: ProcessEnd::Exited(0),
            output: output.into(),
        };
        let told = exit_of_only_attempt(&exit("begun one\ncontained: EPERM\nended -31\n"), false);
        assert_eq!(
            (told.end, told.output.as_str()),
            (ProcessEnd::Signalled(31), "begun one\ncontained: EPERM")
        );
        let told = exit_of_only_attempt(&exit("begun one\n"), false);
        assert_eq!(told.end, ProcessEnd::Exited(0), "the machine's");
    }

    #[test]
    fn floods_and_what_stays_have_machines_of_their_own() {
        let sharing = sharing(|_| true);
        assert!(sharing.len() > 60, "{}", sharing.len());
        assert!(
            !sharing
                .iter()
                .any(|attempt| attempt.flood || attempt.endless || attempt.name.contains("outlive"))
        );
    }
}
