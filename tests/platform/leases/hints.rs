//! Hints to the holders of leases that another client finds no room.

use hotlease_client::{Code, Invoker, LeaseOptions, Placement, Rejection, Spread};
use hotlease_tests::library::library;
use hotlease_tests::nodes::Nodes;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::wait::until_true;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A lease, and the number of hints that it has received.
struct Holder {
    _invoker: Invoker,
    hints: Arc<AtomicU32>,
}

impl Holder {
    fn of(nodes: &Nodes, options: LeaseOptions) -> Self {
        let invoker = nodes.invoker("behaved", options);
        let hints = Arc::new(AtomicU32::new(0));
        let counted = hints.clone();
        invoker.on_room_wanted(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        Self {
            _invoker: invoker,
            hints,
        }
    }

    fn hints(&self) -> u32 {
        self.hints.load(Ordering::Relaxed)
    }
}

#[track_caller]
fn refused(options: LeaseOptions) -> Rejection {
    let code = Code::open(library("behaved")).expect("a library");
    let error = Invoker::allocate(&code, options).expect_err("there is no room");
    error.refusal().unwrap_or_else(|| panic!("{error}")).clone()
}

#[test]
fn holders_are_asked_for_room_only_where_their_end_would_make_it() {
    let nodes = Nodes::start_with(1, &["--unseen-gpus", "--gpus", "1", "--direct", "2"]);
    let one = || nodes.lease_options();
    let plain = Holder::of(&nodes, one());
    let with_gpu = Holder::of(&nodes, LeaseOptions { gpus: 1, ..one() });
    // More than the node has.
    for (placement, spread) in [
        (Placement::Managed, Spread::AllOrNothing),
        (Placement::Direct, Spread::OneAgent),
    ] {
        refused(LeaseOptions {
            workers: 5,
            spread,
            placement,
            ..one()
        });
    }
    assert_eq!((plain.hints(), with_gpu.hints()), (0, 0), "of no use");
    until_true("the holder of the GPU is told", LIMIT, || {
        let refusal = refused(LeaseOptions { gpus: 1, ..one() });
        assert!(matches!(refusal, Rejection::NoGpus { .. }), "{refusal:?}");
        with_gpu.hints() > 0
    });
    assert_eq!(plain.hints(), 0, "it holds no GPU");
    until_true("all are told", LIMIT, || {
        refused(one());
        plain.hints() > 0
    });
}

#[test]
fn holders_of_memory_are_told_that_memory_is_wanted() {
    let nodes = Nodes::start(1);
    let memory_bytes = nodes.manager().agents().expect("the manager serves")[0].memory_bytes;
    let with_memory = |memory_bytes| LeaseOptions {
        memory_bytes,
        ..nodes.lease_options()
    };
    let holder = Holder::of(&nodes, with_memory(memory_bytes - (1 << 20)));
    let too_much = refused(with_memory(memory_bytes + 1));
    assert!(matches!(too_much, Rejection::TooMany { .. }), "{too_much:?}");
    assert_eq!(holder.hints(), 0, "of no use");
    until_true("the holder is told", LIMIT, || {
        let refusal = refused(with_memory(256 << 20));
        assert!(matches!(refusal, Rejection::TooMany { .. }), "{refusal:?}");
        holder.hints() > 0
    });
}
