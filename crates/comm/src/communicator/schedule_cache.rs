//! Cache of the schedules of repeated collectives.

use foldhash::HashMap;
use hotlease_collectives::{Blocks, Collective, CollectiveCall, Operation, Rank, Schedule};
use std::sync::Arc;

/// Maximum number of cached schedules of a communicator: programs call a few collectives, in loops.
const SCHEDULES_MAX: usize = 64;
/// Maximum number of steps of a cached schedule: a longer schedule takes far longer to run than to build.
const STEPS_MAX: usize = 8192;

/// Key of a schedule: everything that the schedule of a communicator depends on. A collective whose blocks have
/// individual lengths has no key, because these lengths are many numbers: its schedule is built each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    operation: Operation,
    root: Option<Rank>,
    count: usize,
    element: usize,
    in_place: bool,
    commutes: bool,
}

impl Key {
    pub(super) fn of(call: &CollectiveCall<'_>) -> Option<Self> {
        let collective = &call.collective;
        let count = match *collective {
            Collective::Barrier => 0,
            Collective::Broadcast { count, .. }
            | Collective::Reduce { count, .. }
            | Collective::Allreduce { count, .. }
            | Collective::Scan { count, .. }
            | Collective::Exscan { count, .. }
            | Collective::Alltoall { count } => count,
            Collective::Gather { blocks, .. }
            | Collective::Scatter { blocks, .. }
            | Collective::Allgather { blocks }
            | Collective::ReduceScatter { blocks, .. } => match blocks {
                Blocks::Equal(count) => count,
                Blocks::Each { .. } => return None,
            },
            Collective::Gatherv { .. } | Collective::Scatterv { .. } | Collective::Alltoallv { .. } => {
                return None;
            }
        };
        Some(Self {
            operation: collective.operation(),
            root: collective.root(),
            count,
            element: call.datatype.size(),
            in_place: call.in_place,
            commutes: collective.commutes(),
        })
    }
}

/// Cache of the schedules of repeated collectives.
#[derive(Default)]
pub(super) struct ScheduleCache {
    kept: HashMap<Key, (Arc<Schedule>, u64)>,
    /// Increases with each use.
    clock: u64,
}

impl ScheduleCache {
    pub(super) fn get(&mut self, key: &Key) -> Option<Arc<Schedule>> {
        self.clock += 1;
        let (schedule, used) = self.kept.get_mut(key)?;
        *used = self.clock;
        Some(Arc::clone(schedule))
    }

    /// Caches a schedule. If the cache is full, the schedule replaces the least recently used one.
    pub(super) fn keep(&mut self, key: Key, schedule: &Arc<Schedule>) {
        let rounds = schedule.rounds.iter();
        let steps: usize = rounds.map(|round| round.transfers.len() + round.local.len()).sum();
        if steps > STEPS_MAX {
            return;
        }
        if self.kept.len() >= SCHEDULES_MAX {
            let oldest = self.kept.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.kept.remove(&oldest);
            }
        }
        self.kept.insert(key, (Arc::clone(schedule), self.clock));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_collectives::{Algorithm, Datatype, Operator, Recipe};

    fn key(count: usize) -> Key {
        let operator = &Operator::Sum;
        let call = CollectiveCall::new(Collective::Allreduce { count, operator }, Datatype::U64, 0, 2);
        Key::of(&call).expect("it is a few numbers")
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_used_schedules() {
        let mut schedules = ScheduleCache::default();
        let call = CollectiveCall::new(
            Collective::Allreduce {
                count: 1,
                operator: &Operator::Sum,
            },
            Datatype::U64,
            0,
            2,
        );
        let schedule = Arc::new(
            Recipe::from(Algorithm::RecursiveDoubling)
                .build(&call)
                .expect("two ranks"),
        );
        for count in 0..10 * SCHEDULES_MAX {
            schedules.keep(key(count), &schedule);
            assert!(schedules.get(&key(0)).is_some(), "it is in use, after {count} others");
            assert!(schedules.kept.len() <= SCHEDULES_MAX);
        }
        assert!(schedules.get(&key(1)).is_none(), "it was not used for long");
    }

    #[test]
    fn each_parameter_of_a_schedule_changes_its_key() {
        let call = CollectiveCall::new(
            Collective::Reduce {
                root: 0,
                count: 5,
                operator: &Operator::Sum,
            },
            Datatype::U64,
            1,
            4,
        );
        let key = |call: &CollectiveCall<'_>| Key::of(call).expect("it is a few numbers");
        let ordered = Operator::User {
            function: Arc::new(|_, _, _| ()),
            commutes: false,
        };
        let others = [
            CollectiveCall { in_place: true, ..call },
            CollectiveCall {
                collective: call.collective.with_operator(&ordered),
                ..call
            },
            // The algorithm depends on the number of bytes.
            CollectiveCall {
                datatype: Datatype::U32,
                ..call
            },
            CollectiveCall {
                collective: Collective::Reduce {
                    root: 1,
                    count: 5,
                    operator: &Operator::Sum,
                },
                ..call
            },
            CollectiveCall {
                collective: Collective::Reduce {
                    root: 0,
                    count: 6,
                    operator: &Operator::Sum,
                },
                ..call
            },
            CollectiveCall {
                collective: Collective::Broadcast { root: 0, count: 5 },
                ..call
            },
        ];
        for other in others {
            assert_ne!(key(&call), key(&other), "{other:?}");
        }
        let blocks = Blocks::Each {
            counts: &[1, 2],
            displacements: &[0, 1],
        };
        let each = CollectiveCall::new(Collective::Allgather { blocks }, Datatype::U64, 0, 2);
        assert_eq!(Key::of(&each), None);
    }
}
