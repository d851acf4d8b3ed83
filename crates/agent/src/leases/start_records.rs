//! Record of how leases began, for later queries: why no interpreter waited for a lease, and the durations of its
//! start. Bounded: programs and ended leases of long ago are forgotten.

use crate::workers::forecast::WaitInterval;
use hotlease_lease::agent::ENDED_MAX;
use hotlease_sandbox::{KeepAlive, Kind, Program};
use hotlease_wire::grpc::LeaseStart;
use hotlease_wire::ids::LeaseId;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Largest number of programs that are remembered.
const PROGRAMS_MAX: usize = 256;

/// Record of how leases began.
#[derive(Default)]
pub(crate) struct StartRecords(Mutex<StartTable>);

#[derive(Default)]
struct StartTable {
    /// Programs in the order of their last leases, the latest at the end.
    programs: VecDeque<KnownProgram>,
    ended: VecDeque<(LeaseId, LeaseStart)>,
}

/// A program that a tenant had a lease for.
struct KnownProgram {
    tenant: String,
    sandbox: Kind,
    program: Arc<Program>,
    /// End of its last lease: the time, how many spares were to wait for the next lease, and when.
    left: Option<(Instant, usize, WaitInterval)>,
    /// Number of spares that were taken since that end.
    taken: usize,
}

impl StartTable {
    /// Finds a program, and marks it as the program that ran last.
    fn known(&mut self, tenant: &str, sandbox: Kind, program: &Arc<Program>) -> Option<&mut KnownProgram> {
        let is =
            |known: &KnownProgram| known.tenant == tenant && known.sandbox == sandbox && *known.program == **program;
        let at = self.programs.iter().position(is)?;
        let known = self.programs.remove(at)?;
        self.programs.push_back(known);
        self.programs.back_mut()
    }
}

impl StartRecords {
    fn table(&self) -> MutexGuard<'_, StartTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a spare of this program was taken.
    pub fn record_taken(&self, tenant: &str, sandbox: Kind, program: &Arc<Program>) {
        if let Some(known) = self.table().known(tenant, sandbox, program) {
            known.taken += 1;
        }
    }

    /// Reason why there was no spare, for the client; remembers the program. `limit`: largest number of spares.
    pub fn record_missed(&self, tenant: &str, sandbox: Kind, program: &Arc<Program>, limit: usize) -> String {
        let mut table = self.table();
        let Some(known) = table.known(tenant, sandbox, program) else {
            if table.programs.len() == PROGRAMS_MAX {
                table.programs.pop_front();
            }
            table.programs.push_back(KnownProgram {
                tenant: tenant.to_owned(),
                sandbox,
                // The entry must not keep an image mounted.
                program: Arc::new(Program {
                    held: KeepAlive::default(),
                    ..(**program).clone()
                }),
                left: None,
                taken: 0,
            });
            return "the first lease of this tenant for this program, as far as the node remembers".into();
        };
        known.why(limit, Instant::now())
    }

    /// Records that a lease of this program has ended, and that this many spares should wait for the next lease.
    pub fn record_left(
        &self,
        tenant: &str,
        sandbox: Kind,
        program: &Arc<Program>,
        (spares, stay): (usize, WaitInterval),
    ) {
        if let Some(known) = self.table().known(tenant, sandbox, program) {
            (known.left, known.taken) = (Some((Instant::now(), spares, stay)), 0);
        }
    }

    /// Stores the record of an ended lease, for as long as the book stores its end.
    pub fn keep(&self, lease: LeaseId, start: LeaseStart) {
        let mut table = self.table();
        if table.ended.len() == ENDED_MAX {
            table.ended.pop_front();
        }
        table.ended.push_back((lease, start));
    }

    /// Record of how an ended lease began.
    pub fn of_ended(&self, lease: LeaseId) -> Option<LeaseStart> {
        let table = self.table();
        let found = table.ended.iter().rev().find(|(id, _)| *id == lease);
        found.map(|(_, start)| start.clone())
    }
}

impl KnownProgram {
    fn why(&self, limit: usize, now: Instant) -> String {
        let (ago, left, stay) = match self.left {
            _ if limit == 0 => return "the node keeps no spare interpreters".into(),
            None => {
                return "no spare interpreter yet: they are started when a lease of this tenant for this program ends"
                    .into();
            }
            Some((at, left, stay)) => (now.duration_since(at), left.min(limit), stay),
        };
        let ended = format!(
            "the last lease of this tenant for this program ended {:.0} s ago",
            ago.as_secs_f64()
        );
        let (from, until) = (stay.from.as_secs(), stay.until.as_secs());
        if ago > stay.until {
            return format!("no spare interpreter: {ended}; they are kept {until} s");
        }
        if ago < stay.from {
            return format!(
                "no spare interpreter: {ended}; by the times between its leases the next one is expected {from} to {until} s after that"
            );
        }
        if self.taken >= left {
            return format!("all spares were taken: {ended} and left {left}");
        }
        format!("no spare interpreter: {ended}, and its spares are not started yet, or had to make room for others")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const STAY: WaitInterval = WaitInterval {
        from: Duration::ZERO,
        until: Duration::from_secs(60),
    };

    fn program(word: &str) -> Arc<Program> {
        Arc::new(Program {
            path: word.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: "/".into(),
            mounts: Vec::new(),
            held: KeepAlive::default(),
        })
    }

    #[test]
    fn a_missing_spare_has_its_reason() {
        let starts = StartRecords::default();
        let (this, kind) = (program("a"), Kind::Process);
        let why = |limit| starts.record_missed("ann", kind, &this, limit);
        assert!(why(2).starts_with("the first lease"));
        assert!(why(2).starts_with("no spare interpreter yet"), "one runs");
        starts.record_left("ann", kind, &this, (1, STAY));
        assert!(why(2).contains("not started yet"), "{}", why(2));
        starts.record_taken("ann", kind, &this);
        assert_eq!(
            why(2),
            "all spares were taken: the last lease of this tenant for this program ended 0 s ago and left 1"
        );
        assert_eq!(why(0), "the node keeps no spare interpreters");
        let others = [
            starts.record_missed("bob", kind, &this, 2),
            starts.record_missed("ann", Kind::Namespace, &this, 2),
            starts.record_missed("ann", kind, &program("b"), 2),
        ];
        assert!(
            others.iter().all(|why| why.starts_with("the first lease")),
            "{others:?}"
        );
    }

    #[test]
    fn a_spare_that_no_lease_took_in_time_is_named_with_both_times() {
        let known = KnownProgram {
            tenant: String::new(),
            sandbox: Kind::Process,
            program: program("a"),
            left: Some((Instant::now(), 1, STAY)),
            taken: 0,
        };
        let later = Instant::now() + Duration::from_secs(83);
        assert_eq!(
            known.why(1, later),
            "no spare interpreter: the last lease of this tenant for this program ended 83 s ago; they are kept 60 s"
        );
        let late = WaitInterval {
            from: Duration::from_secs(260),
            until: Duration::from_secs(340),
        };
        let known = KnownProgram {
            left: Some((Instant::now(), 1, late)),
            ..known
        };
        assert_eq!(
            known.why(1, later),
            "no spare interpreter: the last lease of this tenant for this program ended 83 s ago; by the times between its leases the next one is expected 260 to 340 s after that"
        );
    }

    #[test]
    fn programs_that_are_remembered_are_bounded_and_the_last_ones() {
        let starts = StartRecords::default();
        for number in 0..=PROGRAMS_MAX {
            starts.record_missed("ann", Kind::Process, &program(&number.to_string()), 1);
        }
        assert_eq!(starts.table().programs.len(), PROGRAMS_MAX);
        let last = program(&PROGRAMS_MAX.to_string());
        assert!(
            starts
                .record_missed("ann", Kind::Process, &last, 1)
                .starts_with("no spare")
        );
        assert!(
            starts
                .record_missed("ann", Kind::Process, &program("0"), 1)
                .starts_with("the first")
        );
    }
}
