//! Attempts in virtual machines, whose start costs more than most attempts do: many of them share one.
//!
//! Which of them has done something outside cannot be told then. So nothing of such a machine counts if anything was noticed outside, and
//! what has not come to its end there says nothing: in both cases attempts are made again, in a machine of their own each. Floods, and what
//! is to go on or stay behind, are made in machines of their own to begin with.

use super::judging::{Facts, Judgement, judge};
use super::trial::{DEADLINE, DEATH, Ground, Told, control_socket, drain};
use hotlease_escape::{Attempt, BEGUN, ENDED, themes};
use hotlease_sandbox::{End, Exit, Kind, Process};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// For a machine, to come as far as its first attempt. An emulated one on a machine that has other work is slow.
pub(super) const BOOT: Duration = Duration::from_secs(150);
/// What is printed is looked at this often: the last of it is kept, which is more than what attempts print meanwhile.
const LOOK: Duration = Duration::from_millis(10);

/// Whether this attempt can share a machine with others.
fn shares(attempt: &Attempt) -> bool {
    let leaves = |name: &str| name.starts_with("outlive-") || name.starts_with("leave-");
    !attempt.flood && !attempt.endless && !leaves(attempt.name) && meaningless(attempt).is_none()
}

/// Why this attempt says nothing of a machine.
pub(super) fn meaningless(attempt: &Attempt) -> Option<&'static str> {
    let counts_processors = ["processors", "flood-cpu"].contains(&attempt.name);
    counts_processors.then_some(
        "a machine's processors are threads outside, and what they are granted is not seen inside: the sandbox around it is tried in kind \
         namespace",
    )
}

/// Those of all attempts that can.
pub(super) fn sharing(is_chosen: impl Fn(&Attempt) -> bool) -> Vec<&'static Attempt> {
    let all = themes().iter().flat_map(|theme| theme.attempts);
    all.filter(|attempt| shares(attempt) && is_chosen(attempt))
        .collect()
}

/// Waits until a first attempt has begun, or the machine has ended.
pub(super) async fn until_begun(process: &Process) {
    let begin = Instant::now();
    while !process.is_gone() && !process.output().contains(BEGUN) && begin.elapsed() < BOOT {
        tokio::time::sleep(LOOK).await;
    }
}

/// What is known of the only attempt of a machine.
pub(super) fn told_of_one(exit: &Exit, overdue: bool) -> Told {
    let mut lines: Vec<&str> = exit.output.lines().collect();
    let status = lines
        .iter()
        .rposition(|line| line.starts_with(ENDED))
        .and_then(|at| {
            let status = lines[at].strip_prefix(ENDED)?.parse().ok()?;
            lines.truncate(at);
            Some(status)
        });
    Told {
        end: match status {
            Some(status) if !overdue => end_of(status),
            _ => exit.end,
        },
        output: lines.join("\n"),
    }
}

fn end_of(status: i32) -> End {
    match status {
        0.. => End::Exited(status),
        _ => End::Signalled(status.saturating_neg()),
    }
}

/// What is printed by several attempts, put together from what is kept of it at a time.
#[derive(Default)]
struct Listening {
    /// Which have ended, and what each has printed.
    told: BTreeMap<String, Told>,
    /// The one that began last.
    begun: Option<String>,
}

impl Listening {
    /// Hears all that is there; whether that is more than before.
    fn hear(&mut self, output: &str) -> bool {
        let before = (self.told.len(), self.begun.clone());
        let mut section: Option<(&str, Vec<&str>)> = None;
        // A line without its end may be half of one.
        let whole = output.rfind('\n').map_or("", |end| &output[..end]);
        for line in whole.lines() {
            if let Some(name) = line.strip_prefix(BEGUN) {
                self.begun = Some(name.to_owned());
                section = Some((name, Vec::new()));
            } else if let Some(status) = line.strip_prefix(ENDED) {
                if let (Some((name, lines)), Ok(status)) = (section.take(), status.parse()) {
                    let told = Told {
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

impl Ground {
    /// Makes these attempts, many in one machine; what is missing in the answer is to be made again.
    pub(super) async fn several(
        &mut self,
        attempts: &[&'static Attempt],
    ) -> anyhow::Result<BTreeMap<&'static str, Judgement>> {
        let mut judged = BTreeMap::new();
        let mut left = attempts;
        while !left.is_empty() {
            let Some(heard) = self.machine_of(left).await? else {
                // One of them got out.
                break;
            };
            for attempt in left {
                let Some(told) = heard.told.get(attempt.name) else {
                    continue;
                };
                let facts = Facts {
                    noticed: Vec::new(),
                    end: told.end,
                    overdue: false,
                    output: &told.output,
                };
                judged.insert(attempt.name, judge(attempt, &facts));
            }
            // Behind the one that the machine ended with.
            let is_last = |attempt: &&Attempt| Some(attempt.name) == heard.begun.as_deref();
            match left.iter().position(is_last) {
                Some(last) => left = &left[last + 1..],
                None => break,
            }
        }
        Ok(judged)
    }

    /// One machine for as many of these as it lives for; none if anything was noticed outside.
    async fn machine_of(&mut self, attempts: &[&'static Attempt]) -> anyhow::Result<Option<Listening>> {
        let (mut neighbour, around) = self.surround(Kind::MicroVm)?;
        let (ours, theirs) = control_socket()?;
        let names: Vec<&str> = attempts.iter().map(|attempt| attempt.name).collect();
        let process = self.start(&names, Kind::MicroVm, &around, theirs)?;
        until_begun(&process).await;
        let mut heard = Listening::default();
        let mut progress = Instant::now();
        while !process.is_gone() && progress.elapsed() < DEADLINE {
            if heard.hear(&process.output()) {
                progress = Instant::now();
            }
            tokio::time::sleep(LOOK).await;
        }
        process.kill();
        let is_gone = tokio::time::timeout(DEATH, process.exited()).await.is_ok();
        drain(&ours);
        let output = process.output();
        heard.hear(&output);
        drop(process);
        let outputs: Vec<&str> = heard.told.values().map(|told| told.output.as_str()).collect();
        let outputs = outputs.join("\n") + &output;
        let noticed = self.noticed(&around, &mut neighbour, &outputs, true).await;
        around.clear(neighbour);
        Ok((is_gone && noticed.is_empty()).then_some(heard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_attempts_print_is_put_together_from_its_ends() {
        let mut heard = Listening::default();
        assert!(heard.hear("begun one\ncontained: EPERM\nended 0\nbegun two\nsome"));
        assert!(!heard.hear("contained: EPERM\nended 0\nbegun two\nsome"));
        // The beginning is lost, and the middle of the third.
        assert!(heard.hear("two\nsomething\nended -9\nbegun three\nescaped: all\nended 1\nbegun fo"));
        assert!(heard.hear("hing\nbegun four\nuntried: no\nended 2\nbegun five\n"));
        let told = |name: &str| heard.told.get(name).map(|told| (told.end, told.output.as_str()));
        assert_eq!(told("one"), Some((End::Exited(0), "contained: EPERM")));
        assert_eq!(told("two"), None, "where it began was not seen");
        assert_eq!(told("three"), Some((End::Exited(1), "escaped: all")));
        assert_eq!(told("four"), Some((End::Exited(2), "untried: no")));
        assert_eq!((told("five"), heard.begun.as_deref()), (None, Some("five")));
    }

    #[test]
    fn the_end_of_the_only_attempt_is_its_own_and_not_the_machine_s() {
        let exit = |output: &str| Exit {
            end: End::Exited(0),
            output: output.into(),
        };
        let told = told_of_one(&exit("begun one\ncontained: EPERM\nended -31\n"), false);
        assert_eq!(
            (told.end, told.output.as_str()),
            (End::Signalled(31), "begun one\ncontained: EPERM")
        );
        let told = told_of_one(&exit("begun one\n"), false);
        assert_eq!(told.end, End::Exited(0), "the machine's");
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
