//! Random histories: the promises hold in every order of events.

use super::tests::{SECOND, gone, grant, id, up};
use super::*;
use hotlease_wire::batch::JobShare;
use hotlease_wire::ids::{JobId, SlotIndex};
use hotlease_wire::session::SlotPlace;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{HashMap, HashSet};

/// Cores and GPUs of a worker.
type HeldCores = (Vec<u32>, Vec<u32>);

/// The world around the book: facts with which the book must agree.
#[derive(Default)]
struct World {
    /// Workers with a process: (lease, worker, epoch) to cores and GPUs.
    living: HashMap<(LeaseId, u16, u32), HeldCores>,
    started: HashSet<(LeaseId, u16, u32)>,
    /// A dead worker whose death is reported to the book in this step. The book may still order to kill it.
    reported: Option<(LeaseId, u16, u32)>,
    epochs: HashSet<u32>,
    grant_epoch: HashMap<LeaseId, u32>,
    ended: HashSet<LeaseId>,
    sessions: HashMap<LeaseId, Vec<u64>>,
}

impl World {
    fn carry_out(&mut self, actions: Vec<BookAction>) {
        for action in actions {
            match action {
                BookAction::StartWorker {
                    lease,
                    worker,
                    epoch,
                    cores,
                    gpus,
                } => {
                    let first = *self.grant_epoch.entry(lease).or_insert(epoch.0);
                    if self.epochs.insert(epoch.0) {
                        assert!(first <= epoch.0, "epoch {epoch} of {lease} is older than its grant");
                    } else {
                        assert_eq!(first, epoch.0, "epoch {epoch} was used before");
                    }
                    assert!(
                        self.started.insert((lease, worker.0, epoch.0)),
                        "{lease}/{worker} started twice in epoch {epoch}"
                    );
                    for (other, (held, devices)) in &self.living {
                        assert!(
                            held.iter().all(|core| !cores.contains(core)),
                            "{lease}/{worker} got a core of {other:?}"
                        );
                        assert!(
                            devices.iter().all(|gpu| !gpus.contains(gpu)),
                            "{lease}/{worker} got a GPU of {other:?}"
                        );
                    }
                    self.living.insert((lease, worker.0, epoch.0), (cores, gpus));
                }
                BookAction::KillWorker {
                    lease, worker, epoch, ..
                } => {
                    let key = (lease, worker.0, epoch.0);
                    assert!(
                        self.living.contains_key(&key) || self.reported == Some(key),
                        "{key:?} is to be killed and does not live"
                    );
                }
                BookAction::ReportWorkerDeath { lease, sessions, .. } => {
                    let expected = self.sessions.get(&lease).map_or(0, Vec::len);
                    assert_eq!(sessions.len(), expected, "every session is told");
                }
                BookAction::LeaseEnded { lease, .. } => {
                    assert!(self.ended.insert(lease), "{lease} ended twice");
                    let survivor = self.living.keys().find(|key| key.0 == lease);
                    assert_eq!(survivor, None, "{lease} ended before its workers");
                    self.sessions.remove(&lease);
                }
                BookAction::DelegationEnded { lease, sessions, .. } => {
                    assert!(!self.ended.contains(&lease), "{lease} lends although it is over");
                    assert!(sessions.is_empty(), "no peer has attached");
                }
                BookAction::MoveWorker { .. } => panic!("no lease of this world shares cores"),
                BookAction::Drained => {
                    assert!(self.living.is_empty(), "drained with {:?} alive", self.living);
                }
            }
        }
    }
}

fn check_invariants(book: &LeaseBook, now: Duration) {
    let mut held = HashSet::new();
    for lease in book.leases() {
        for core in lease.cores() {
            assert!(held.insert(core), "core {core} is in two leases");
        }
        if lease.is_active() {
            let mut lent = lease.delegations.values();
            assert!(lent.all(|lent| lent.until > now), "{} lends for too long", lease.id);
            assert!(lease.ends_at() > now, "{} outlives its expiry", lease.id);
        }
    }
    // A batch job may have cores on which a lease is still ending: these are not offered.
    let offered = held.iter().filter(|core| book.cores.offered_set().contains(core));
    assert_eq!(
        offered.count() as u32 + book.free_cores(),
        book.offered_cores(),
        "a core was lost or made"
    );
    let gpus: Vec<u32> = book.leases().flat_map(|lease| lease.gpus()).collect();
    let different: HashSet<_> = gpus.iter().collect();
    assert_eq!(gpus.len(), different.len(), "a GPU is in two leases");
    let offered = gpus.iter().filter(|gpu| book.gpus.is_offered(**gpu));
    assert_eq!(
        offered.count() as u32 + book.free_gpus(),
        book.offered_gpus(),
        "a GPU was lost or made"
    );
    for (job, share) in book.jobs() {
        let on_it = book.leases().filter(|lease| jobs::is_on(share, lease));
        let ending = on_it.map(|lease| !lease.is_active()).collect::<Vec<_>>();
        assert!(
            ending.iter().all(|ending| *ending),
            "a lease goes on with what job {job} has"
        );
        assert_eq!(book.has_room_for(job), ending.is_empty());
        let cores = book.cores.offered_set();
        match share {
            JobShare::Node => assert_eq!(cores.len(), 0, "job {job} has all cores"),
            JobShare::Part { cores: of_job, .. } => assert!(cores.is_disjoint(of_job), "job {job} has {of_job:?}"),
        }
    }
}

#[test]
fn random_histories_keep_every_promise() {
    let seed: u64 = match std::env::var("HOTLEASE_SEED") {
        Ok(text) => text.parse().expect("HOTLEASE_SEED is a number"),
        Err(_) => rand::random(),
    };
    eprintln!("run this history again with HOTLEASE_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for _history in 0..20 {
        let mut book = LeaseBook::new(0..random.random_range(1..12), 0).with_gpus(random.random_range(0..6));
        let mut world = World::default();
        let mut now = Duration::ZERO;
        let mut leases = 0_u64;
        let mut sessions = 0_u64;
        for _event in 0..2000 {
            now += Duration::from_millis(random.random_range(0..200));
            let lease = id(random.random_range(leases.saturating_sub(8)..=leases));
            let event = match random.random_range(0..13) {
                0 => {
                    leases += 1;
                    let ttl = Duration::from_millis(random.random_range(100..3000));
                    let spec = LeaseSpec {
                        gpus: random.random_range(0..3),
                        ..LeaseSpec::exclusive(random.random_range(1..4), random.random_range(1..4))
                    };
                    grant(leases, LeaseRequest::new("uid:1000", spec, ttl))
                }
                1 => {
                    sessions += 1;
                    let epoch = book.lease(lease).map_or(Epoch(1), |lease| lease.epoch);
                    BookEvent::Attach {
                        session: SessionId(sessions),
                        lease,
                        epoch,
                        tenant: "uid:1000".into(),
                        until: now + SECOND,
                    }
                }
                2 => match world.sessions.get_mut(&lease).and_then(Vec::pop) {
                    Some(session) => BookEvent::SessionClosed {
                        session: SessionId(session),
                        lease,
                    },
                    None => BookEvent::Tick,
                },
                3 => BookEvent::Renew { lease },
                4 => BookEvent::End {
                    lease,
                    reason: EndReason::Released,
                },
                5 => BookEvent::Replace {
                    lease,
                    worker: WorkerIndex(random.random_range(0..4)),
                },
                9 if random.random_bool(0.1) => BookEvent::Drain {
                    until: now + Duration::from_millis(random.random_range(0..1000)),
                },
                9 => BookEvent::Resume,
                10 => BookEvent::Delegate {
                    lease,
                    places: [SlotPlace {
                        worker: WorkerIndex(random.random_range(0..4)),
                        slot: SlotIndex(random.random_range(0..4)),
                    }]
                    .into(),
                    until: now + Duration::from_millis(random.random_range(0..2000)),
                },
                11 => BookEvent::Revoke {
                    lease,
                    delegation: random.random_range(0..4),
                },
                12 => {
                    let job = JobId(random.random_range(1..4));
                    let some = |random: &mut StdRng| (0..3).map(|_| random.random_range(0..12)).collect();
                    match random.random_range(0..5) {
                        0 => BookEvent::BeginJob {
                            job,
                            share: JobShare::Part {
                                cores: some(&mut random),
                                gpus: some(&mut random),
                                memory_bytes: 0,
                            },
                        },
                        1 => BookEvent::BeginJob {
                            job,
                            share: JobShare::Node,
                        },
                        _ => BookEvent::EndJob { job },
                    }
                }
                // A living worker comes up or dies; it may be a worker that is to be killed.
                choice => {
                    let mut living: Vec<_> = world.living.keys().copied().collect();
                    living.sort_unstable();
                    match living.len() {
                        0 => BookEvent::Tick,
                        count => {
                            let (lease, worker, epoch) = living[random.random_range(0..count)];
                            if choice == 6 {
                                up(lease, worker, Epoch(epoch))
                            } else {
                                world.living.remove(&(lease, worker, epoch));
                                gone(lease, worker, Epoch(epoch))
                            }
                        }
                    }
                }
            };
            world.reported = match &event {
                BookEvent::WorkerGone {
                    lease, worker, epoch, ..
                } => Some((*lease, worker.0, epoch.0)),
                _ => None,
            };
            let attached = match &event {
                BookEvent::Attach { session, lease, .. } => Some((*session, *lease)),
                _ => None,
            };
            let step = book.step(event, now);
            if let (Some((session, lease)), None) = (attached, &step.refusal) {
                world.sessions.entry(lease).or_default().push(session.0);
            }
            world.carry_out(step.actions);
            check_invariants(&book, now);
        }
        // After any history, stopping and the death of all workers leaves nothing behind.
        let step = book.step(BookEvent::Stop, now);
        world.carry_out(step.actions);
        for (lease, worker, epoch) in world.living.keys().copied().collect::<Vec<_>>() {
            world.living.remove(&(lease, worker, epoch));
            let step = book.step(gone(lease, worker, Epoch(epoch)), now);
            world.carry_out(step.actions);
        }
        assert_eq!(
            (book.leases().count(), book.free_cores(), book.free_gpus()),
            (0, book.offered_cores(), book.offered_gpus())
        );
        assert_eq!(world.ended.len(), world.grant_epoch.len(), "every lease ended");
    }
}
