//! Simulation of a collective: the schedules of all ranks run on a model of their links.
//!
//! A rank is a processor with two ports, one for output and one for input. A message of `m` bytes occupies each port
//! for `g + m G`, and arrives `L + m G` after its start; the reductions and copies of a round follow the round's last
//! message. This model is LogGP without the processor's overhead `o`, which is part of `L` here; with `g = L` it is the
//! alpha-beta model of single-ported nodes.
//!
//! Alexandrov, Ionescu, Schauser, Scheiman: LogGP (1995); Hoefler, Schneider, Lumsdaine: LogGOPSim (2010).

mod transit;

use crate::algorithm::SchedulePart;
use crate::error::Error;
use crate::schedule::{Rank, Round, Step};
use foldhash::{HashMap, HashMapExt};
use std::collections::VecDeque;
use std::ops::Range;
use transit::{Arrival, Transit};

/// Cost of a link between two ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LinkCost {
    /// Time from the start of an empty message at the sender to its end at the receiver (`L`, or alpha).
    pub latency_s: f64,
    /// Time from the end of one message of a rank to the start of the rank's next message (`g`).
    pub message_s: f64,
    /// Time for each byte (`G`, or beta).
    pub byte_s: f64,
}

/// Cost of a store. A field that is 0 costs nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StoreCost {
    /// Time from the start of a write until the object can be read.
    pub write_s: f64,
    /// Time of a read, whether or not the object exists.
    pub read_s: f64,
    /// Time for each byte that one rank writes or reads.
    pub byte_s: f64,
    /// Time for each byte that all ranks together write: a store of one server has one port. The sum of these times is
    /// a lower bound of the time of the whole collective.
    pub shared_write_byte_s: f64,
    /// Time for each byte that all ranks together read. The sum of these times is also a lower bound.
    pub shared_read_byte_s: f64,
    /// Time for each object that all ranks together write: a store accepts a limited number of objects in a second. The
    /// sum of these times is also a lower bound.
    pub shared_write_s: f64,
    /// Time for each read of all ranks together, successful or not. The sum of these times is also a lower bound.
    pub shared_read_s: f64,
    /// Sleep of a reader before it asks again for an object that does not exist yet; doubled each time. It is 0 if the
    /// store lets the reader wait.
    pub poll_first_s: f64,
    /// Longest sleep of a reader.
    pub poll_most_s: f64,
}

impl StoreCost {
    /// Lower bound of the time of a collective with these writes and reads.
    fn lower_bound(&self, outcome: &SimulationResult) -> f64 {
        let reads = (outcome.reads + outcome.polls) as f64;
        let ports = [
            outcome.bytes as f64 * self.shared_write_byte_s,
            outcome.bytes_read as f64 * self.shared_read_byte_s,
            outcome.writes as f64 * self.shared_write_s,
            reads * self.shared_read_s,
        ];
        self.write_s + self.read_s + ports.into_iter().fold(0.0, f64::max)
    }

    /// Number of failed reads of an object that will exist after `wait` seconds, and the time at which the successful
    /// read starts.
    fn polls(&self, wait: f64) -> (u64, f64) {
        let (mut polls, mut asked_at, mut sleep) = (0, 0.0, self.poll_first_s);
        if self.poll_first_s <= 0.0 {
            return (0, wait.max(0.0));
        }
        let most = self.poll_most_s.max(self.poll_first_s);
        while asked_at < wait {
            let period = self.read_s + sleep;
            let times = if sleep < most {
                1.0
            } else {
                ((wait - asked_at) / period).ceil()
            };
            polls += times as u64;
            asked_at += times * period;
            sleep = (2.0 * sleep).min(most);
        }
        (polls, asked_at)
    }
}

/// Costs of all resources.
pub struct Costs<'a> {
    /// Link between a sender and a receiver.
    pub link: &'a dyn Fn(Rank, Rank) -> LinkCost,
    /// Store, for links that go through a store.
    pub store: StoreCost,
    /// Time to reduce a byte (gamma).
    pub reduce_byte_s: f64,
    /// Time to copy a byte.
    pub copy_byte_s: f64,
}

/// Simulated cost of a collective.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SimulationResult {
    /// Time from the common start of all ranks until the last rank had finished.
    pub seconds: f64,
    /// Messages of all ranks.
    pub messages: u64,
    /// Bytes of all messages, or of all objects written.
    pub bytes: u64,
    /// Largest number of bytes that one rank sent or wrote.
    pub bytes_of_one_max: u64,
    /// Objects written.
    pub writes: u64,
    /// Objects read.
    pub reads: u64,
    /// Bytes of all objects read.
    pub bytes_read: u64,
    /// Reads of objects that did not exist yet.
    pub polls: u64,
    /// Largest number of rounds of one rank.
    pub rounds_max: usize,
}

/// Largest number of rounds, of all ranks together, that are in memory at a time: about 200 MB.
const ROUNDS_AT_ONCE: usize = 2_000_000;

/// Runs the schedules of all ranks on a model; an element has `element` bytes.
///
/// `build(rank, rounds)` returns some rounds of a rank, as [`Recipe::build_part`](crate::Recipe::build_part) does: the
/// schedules of a ring of 10,000 ranks do not fit in any memory, so each schedule is built in several pieces. `build`
/// must return the same rounds each time.
///
/// ```
/// use hotlease_collectives::cost::{Costs, LinkCost, StoreCost, simulate};
/// use hotlease_collectives::{Algorithm, Collective, CollectiveCall, Datatype, Operator, Recipe};
///
/// let link = LinkCost { latency_s: 10e-6, message_s: 0.0, byte_s: 1e-9 };
/// let costs = Costs { link: &|_, _| link, store: StoreCost::default(), reduce_byte_s: 0.0, copy_byte_s: 0.0 };
/// let recipe = Recipe::from(Algorithm::RecursiveDoubling);
/// let sum = Collective::Allreduce { count: 1000, operator: &Operator::Sum };
/// let outcome = simulate(1024, 8, &costs, |rank, rounds| {
///     recipe.build_part(&CollectiveCall::new(sum, Datatype::F64, rank, 1024), rounds)
/// })?;
/// assert!((outcome.seconds - 10.0 * 18e-6).abs() < 1e-9, "ten steps of alpha + n beta");
/// # Ok::<(), hotlease_collectives::Error>(())
/// ```
///
/// # Errors
///
/// Errors of `build`, or [`Error::SimulationStuck`] if ranks wait for messages that no rank sends.
pub fn simulate(
    ranks: Rank,
    element: usize,
    costs: &Costs,
    build: impl FnMut(Rank, Range<usize>) -> Result<SchedulePart, Error>,
) -> Result<SimulationResult, Error> {
    let window = (ROUNDS_AT_ONCE / (ranks as usize).max(1)).max(1);
    Simulation::new(ranks, element, costs, build, window).run()
}

/// One step of a schedule, in compact form. The local work of a round is one event, the last event of the round.
#[derive(Clone, Copy)]
enum Event {
    Send { to: Rank, bytes: u64 },
    Receive { from: Rank },
    Publish { key: u32, readers: u32, bytes: u64 },
    Fetch { of: Rank, key: u32 },
    Compute { seconds: f64 },
}

#[derive(Clone, Copy)]
struct StoredObject {
    /// Earliest time at which the object can be read, seconds.
    readable: f64,
    bytes: u64,
    /// Number of reads that have not been made yet.
    readers: u32,
}

/// State of a rank. All times are seconds from the common start.
#[derive(Default)]
struct RankState {
    /// Start of the current round.
    now: f64,
    /// Time at which the output port becomes free.
    out_free: f64,
    /// Time at which the input port becomes free.
    in_free: f64,
    /// Events, not processed yet, of the rounds that were built.
    events: VecDeque<Event>,
    /// Index of the next round to build.
    built: usize,
    /// Whether there are rounds after `built`.
    more: bool,
    /// Number of rounds that were built.
    rounds: usize,
    finished: bool,
    /// Arrivals of the current round.
    arrivals: Vec<Arrival>,
    /// Time at which everything that the rank has sent or written has left it.
    out_done: f64,
    /// Bytes sent and written.
    bytes: u64,
    /// The sender, or the publisher and key, that the rank waits for.
    waits: Option<(Rank, Option<u32>)>,
}

struct Simulation<'a, B> {
    element: usize,
    costs: &'a Costs<'a>,
    build: B,
    /// Number of rounds of a rank that are built at a time.
    window: usize,
    states: Vec<RankState>,
    under_way: Transit,
    objects: HashMap<(Rank, u32), StoredObject>,
    readers: HashMap<(Rank, u32), Vec<Rank>>,
    runnable: Vec<Rank>,
    outcome: SimulationResult,
}

impl<'a, B: FnMut(Rank, Range<usize>) -> Result<SchedulePart, Error>> Simulation<'a, B> {
    fn new(ranks: Rank, element: usize, costs: &'a Costs<'a>, build: B, window: usize) -> Self {
        Simulation {
            element,
            costs,
            build,
            window,
            states: (0..ranks)
                .map(|_| RankState {
                    more: true,
                    ..RankState::default()
                })
                .collect(),
            under_way: Transit::default(),
            objects: HashMap::new(),
            readers: HashMap::new(),
            runnable: (0..ranks).rev().collect(),
            outcome: SimulationResult::default(),
        }
    }

    fn run(mut self) -> Result<SimulationResult, Error> {
        while let Some(rank) = self.runnable.pop() {
            while self.advance(rank)? {}
        }
        if let Some(rank) = self.states.iter().position(|state| !state.finished) {
            let why = match self.states[rank].waits {
                Some((peer, None)) => format!("rank {rank} waits for a message of rank {peer}"),
                Some((peer, Some(key))) => format!("rank {rank} waits for object {key} of rank {peer}"),
                None => format!("rank {rank} has not begun"),
            };
            return Err(Error::SimulationStuck { why });
        }
        let left = self
            .under_way
            .any()
            .map(|(from, to)| format!("a message of rank {from} to rank {to}"));
        let unread = self
            .objects
            .keys()
            .next()
            .map(|(of, key)| format!("object {key} of rank {of}"));
        if let Some(what) = left.or(unread) {
            return Err(Error::SimulationStuck {
                why: format!("{what} is not received by any rank"),
            });
        }
        for state in &self.states {
            self.outcome.seconds = self.outcome.seconds.max(state.now);
            self.outcome.bytes_of_one_max = self.outcome.bytes_of_one_max.max(state.bytes);
            self.outcome.bytes += state.bytes;
            self.outcome.rounds_max = self.outcome.rounds_max.max(state.rounds);
        }
        if self.outcome.writes > 0 {
            let least = self.costs.store.lower_bound(&self.outcome);
            self.outcome.seconds = self.outcome.seconds.max(least);
        }
        Ok(self.outcome)
    }

    /// Processes the next event of a rank; returns `false` if the rank has to wait or has finished.
    fn advance(&mut self, rank: Rank) -> Result<bool, Error> {
        let place = rank as usize;
        if self.states[place].events.is_empty() && !self.refill(rank)? {
            self.states[place].finished = true;
            return Ok(false);
        }
        let Some(event) = self.states[place].events.front().copied() else {
            return Ok(false);
        };
        match event {
            Event::Send { to, bytes } => self.send(rank, to, bytes),
            Event::Publish { key, readers, bytes } => self.publish(rank, key, readers, bytes),
            Event::Receive { from } => {
                let Some(arrival) = self.under_way.take(from, rank) else {
                    self.states[place].waits = Some((from, None));
                    return Ok(false);
                };
                self.states[place].arrivals.push(arrival);
            }
            Event::Fetch { of, key } => {
                if !self.fetch(rank, of, key) {
                    self.states[place].waits = Some((of, Some(key)));
                    self.readers.entry((of, key)).or_default().push(rank);
                    return Ok(false);
                }
            }
            Event::Compute { seconds } => self.states[place].end_round(seconds),
        }
        self.states[place].events.pop_front();
        self.states[place].waits = None;
        Ok(true)
    }

    fn send(&mut self, rank: Rank, to: Rank, bytes: u64) {
        let cost = (self.costs.link)(rank, to);
        let transfer = bytes as f64 * cost.byte_s;
        let occupies = transfer + cost.message_s;
        let state = &mut self.states[rank as usize];
        let start = state.now.max(state.out_free);
        state.out_free = start + occupies;
        state.out_done = state.out_done.max(state.out_free);
        state.bytes += bytes;
        self.outcome.messages += 1;
        let arrival = Arrival {
            at: start + cost.latency_s + transfer,
            occupies,
        };
        self.under_way.put(rank, to, arrival);
        if self.states[to as usize].waits == Some((rank, None)) {
            self.states[to as usize].waits = None;
            self.runnable.push(to);
        }
    }

    fn publish(&mut self, rank: Rank, key: u32, readers: u32, bytes: u64) {
        let store = self.costs.store;
        let state = &mut self.states[rank as usize];
        let start = state.now.max(state.out_free);
        state.out_free = start + bytes as f64 * store.byte_s;
        let readable = state.out_free + store.write_s;
        state.out_done = state.out_done.max(readable);
        state.bytes += bytes;
        self.outcome.writes += 1;
        self.objects.insert(
            (rank, key),
            StoredObject {
                readable,
                bytes,
                readers,
            },
        );
        self.runnable
            .extend(self.readers.remove(&(rank, key)).unwrap_or_default());
    }

    fn fetch(&mut self, rank: Rank, of: Rank, key: u32) -> bool {
        let Some(object) = self.objects.get_mut(&(of, key)) else {
            return false;
        };
        let store = self.costs.store;
        let transfer = object.bytes as f64 * store.byte_s;
        let state = &mut self.states[rank as usize];
        let (polls, asked_after) = store.polls(object.readable - state.now);
        let at = state.now + asked_after + store.read_s + transfer;
        state.arrivals.push(Arrival { at, occupies: transfer });
        self.outcome.reads += 1;
        self.outcome.bytes_read += object.bytes;
        self.outcome.polls += polls;
        object.readers -= 1;
        if object.readers == 0 {
            self.objects.remove(&(of, key));
        }
        true
    }

    /// Builds the next rounds of a rank, and adds their events; returns `false` if there are no more.
    fn refill(&mut self, rank: Rank) -> Result<bool, Error> {
        while self.states[rank as usize].more {
            let begin = self.states[rank as usize].built;
            let part = (self.build)(rank, begin..begin + self.window)?;
            let state = &mut self.states[rank as usize];
            (state.built, state.more) = (begin + self.window, part.has_more);
            state.rounds += part.schedule.rounds.len();
            for round in &part.schedule.rounds {
                push_events(&mut state.events, round, self.element as u64, self.costs);
            }
            if !state.events.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl RankState {
    /// Processes the arrivals of this round in order of time, then the local work.
    fn end_round(&mut self, seconds: f64) {
        self.arrivals.sort_by(|a, b| a.at.total_cmp(&b.at));
        let mut end = self.now.max(self.out_done);
        for Arrival { at, occupies } in self.arrivals.drain(..) {
            self.in_free = at.max(self.in_free + occupies);
            end = end.max(self.in_free);
        }
        self.now = end + seconds;
    }
}

fn push_events(events: &mut VecDeque<Event>, round: &Round, element: u64, costs: &Costs) {
    let bytes = |count: usize| count as u64 * element;
    // Sends and writes do not wait for receives and reads.
    for step in &round.transfers {
        match *step {
            Step::Send { to, from } => events.push_back(Event::Send {
                to,
                bytes: bytes(from.count),
            }),
            Step::Publish { key, from, readers } => {
                events.push_back(Event::Publish {
                    key,
                    readers,
                    bytes: bytes(from.count),
                });
            }
            _ => {}
        }
    }
    for step in &round.transfers {
        match *step {
            Step::Receive { from, .. } => events.push_back(Event::Receive { from }),
            Step::Fetch { of, key, .. } => events.push_back(Event::Fetch { of, key }),
            _ => {}
        }
    }
    let seconds = round.local.iter().map(|step| match *step {
        Step::Copy { into, .. } => bytes(into.count) as f64 * costs.copy_byte_s,
        Step::Reduce { into, .. } => bytes(into.count) as f64 * costs.reduce_byte_s,
        _ => 0.0,
    });
    events.push_back(Event::Compute { seconds: seconds.sum() });
}

#[cfg(test)]
mod tests;
