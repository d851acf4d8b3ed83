//! A platform for faults, and a client that calls all the time.

use hotlease_lease::ledger::covers;
use hotlease_tests::faults::caller::{Caller, Outcome, Steady, make};
use hotlease_tests::faults::ledger::{self, Bill};
use hotlease_tests::faults::parts::Parts;
use hotlease_tests::faults::tally::Tally;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::process::cores;
use hotlease_tests::wait::until_true;
use hotlease_wire::session::UsageTotals;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A platform with a client that calls all the time, across many deaths of daemons.
pub struct Scene {
    pub parts: Parts,
    pub tally: Arc<Tally>,
    caller: Option<Caller>,
    start: Instant,
}

impl Scene {
    /// A scene whose client calls as often as by default.
    pub fn new(seed: u64) -> Self {
        let how = Steady {
            seed,
            ..Steady::default()
        };
        Self::with(Parts::start(), &how)
    }

    /// Makes a scene whose client calls in the way that `how` describes.
    pub fn with(parts: Parts, how: &Steady) -> Self {
        let tally = Arc::new(Tally::new());
        let caller = Caller::start(parts.invoker().expect("a lease"), &tally, how);
        Self {
            parts,
            tally,
            caller: Some(caller),
            start: Instant::now(),
        }
    }

    /// The client that calls.
    pub fn caller(&self) -> &Caller {
        self.caller.as_ref().expect("it calls")
    }

    /// Ends the calls once a call was answered, and checks that every call's outcome was reported correctly, that
    /// nothing is over-billed, and
    /// that the usage reported at the end is billed.
    pub fn end(self) {
        self.end_with_bill();
    }

    /// Ends as [`Scene::end`]; returns the bill.
    pub fn end_with_bill(self) -> Bill {
        self.end_with_parts().0
    }

    /// Ends as [`Scene::end`]; returns the bill, and the daemons, which still run.
    pub fn end_with_parts(mut self) -> (Bill, Parts) {
        // A lane for which no run is left ends its scene at once.
        self.caller().told().until_success_after(self.start, LIMIT);
        let (_, invoker) = self.caller.take().expect("it calls").finish();
        let lease = invoker.lease().to_string();
        let told: Bill = invoker
            .deallocate()
            .ok()
            .map(|usage| (lease, usage))
            .into_iter()
            .collect();
        let bill = ledger::until_billed(&self.parts, &told);
        ledger::not_over_billed(&bill, self.tally.total(), cores().len() as u32, self.start);
        (bill, self.parts)
    }

    /// Ends as [`Scene::end`], but the ledger may lack up to `most` of the time; it must never have more. Returns the
    /// bill.
    pub fn end_with_time_lost(mut self, most: Duration) -> Bill {
        let (_, invoker) = self.caller.take().expect("it calls").finish();
        let lease = invoker.lease().to_string();
        let told = invoker.deallocate().expect("its usage");
        let only_calls = UsageTotals {
            invocations: told.invocations,
            ..UsageTotals::default()
        };
        let bill = ledger::until_billed(&self.parts, &[(lease.clone(), only_calls)].into());
        ledger::not_over_billed(&bill, self.tally.total(), cores().len() as u32, self.start);
        let lost = told.allocated_ns.saturating_sub(bill[&lease].allocated_ns);
        assert!(
            u128::from(lost) <= most.as_nanos() && covers(told, bill[&lease]),
            "lease {lease} used {told:?} and is billed {:?}",
            bill[&lease]
        );
        bill
    }
}

/// Makes a call that computes for longer than any test, on a lease of its own; the thread returns its outcome and
/// number.
pub fn long_call(parts: &Parts, tally: &Tally) -> Option<std::thread::JoinHandle<(Outcome, u64)>> {
    let invoker = parts.invoker().ok()?;
    let function = invoker.function("tally").expect("it is there").idempotent(false);
    let call = tally.call(60_000_000);
    let number = call.number;
    let thread = std::thread::spawn(move || {
        let outcome = make(&function, &call);
        drop((function, invoker));
        (outcome, number)
    });
    until_true("the function computes", LIMIT, || {
        tally.runs(number) == 1 || thread.is_finished()
    });
    Some(thread)
}
