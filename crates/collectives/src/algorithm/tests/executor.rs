//! Runs the schedules of all ranks in one thread. A seed decides which rank continues, and whether a message is copied
//! at once or stays at its sender until the receiver is ready (so that a send may wait for its receive).

use super::Areas;
use crate::operator::Reduction;
use crate::schedule::{AreaSpan, Rank, Round, Schedule, Step};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{HashMap, VecDeque};

/// All ranks of one collective, with their buffers.
pub struct World<'a> {
    pub schedules: &'a [Schedule],
    pub inputs: &'a [Vec<u8>],
    pub outputs: &'a mut [Vec<u8>],
    pub element: usize,
    pub reduction: Option<Reduction>,
}

enum Message {
    Copied(Vec<u8>),
    /// Still at its sender, which waits.
    AtSender(AreaSpan),
}

struct Object {
    bytes: Vec<u8>,
    readers: u32,
}

#[derive(Default)]
struct ExecutorState {
    round: usize,
    posted: bool,
    /// Receives and fetches of this round that are not done.
    incoming: Vec<Step>,
    /// Number of messages that receivers have not yet copied from this rank.
    outgoing: usize,
    scratch: Vec<u8>,
}

struct Run<'a> {
    world: World<'a>,
    random: SmallRng,
    states: Vec<ExecutorState>,
    messages: HashMap<(Rank, Rank), VecDeque<Message>>,
    objects: HashMap<(Rank, u32), Object>,
    runnable: Vec<usize>,
    queued: Vec<bool>,
    held: Option<usize>,
}

impl World<'_> {
    /// Runs all ranks to their end. If a rank is `held`, it begins only when no other rank can continue; no other rank
    /// may have finished by then.
    ///
    /// # Errors
    ///
    /// A deadlock, with what each rank waits for; a message of unexpected length; a message or object that no rank has
    /// received; a rank that finished before the held rank began.
    pub fn run(self, seed: u64, held: Option<usize>) -> Result<(), String> {
        let ranks = self.schedules.len();
        let random = SmallRng::seed_from_u64(seed);
        let scratch = |schedule: &Schedule| {
            // Arbitrary content, so that a read before a write is detected.
            (0..schedule.scratch * self.element)
                .map(|place| (place as u64 ^ seed) as u8 | 0x81)
                .collect()
        };
        let states = self
            .schedules
            .iter()
            .map(|schedule| ExecutorState {
                scratch: scratch(schedule),
                ..ExecutorState::default()
            })
            .collect();
        let mut run = Run {
            world: self,
            random,
            states,
            messages: HashMap::new(),
            objects: HashMap::new(),
            runnable: (0..ranks).filter(|rank| Some(*rank) != held).collect(),
            queued: vec![true; ranks],
            held,
        };
        run.finish()
    }
}

impl Run<'_> {
    fn finish(&mut self) -> Result<(), String> {
        loop {
            while !self.runnable.is_empty() {
                let place = self.random.random_range(0..self.runnable.len());
                let rank = self.runnable.swap_remove(place);
                self.queued[rank] = false;
                // The rank makes a few steps, so that other ranks run in between.
                for _ in 0..self.random.random_range(1..4) {
                    if !self.step(rank)? {
                        break;
                    }
                    if self.queued[rank] {
                        break;
                    }
                }
                if self.may_go_on(rank) {
                    self.wake(rank);
                }
            }
            let Some(held) = self.held.take() else { break };
            if let Some(early) = (0..self.states.len()).find(|rank| *rank != held && self.finished(*rank)) {
                return Err(format!("rank {early} has finished before rank {held} began"));
            }
            self.queued[held] = false;
            self.wake(held);
        }
        let stuck: Vec<String> = (0..self.states.len())
            .filter(|rank| !self.finished(*rank))
            .map(|rank| self.waits(rank))
            .collect();
        if !stuck.is_empty() {
            return Err(format!("deadlock: {}", stuck.join("; ")));
        }
        if let Some((from, to)) = self
            .messages
            .iter()
            .find(|(_, queue)| !queue.is_empty())
            .map(|(pair, _)| pair)
        {
            return Err(format!("a message of rank {from} to rank {to} was not taken"));
        }
        match self.objects.iter().next() {
            Some(((of, key), object)) => Err(format!("object {key} of rank {of} has {} readers left", object.readers)),
            None => Ok(()),
        }
    }

    fn finished(&self, rank: usize) -> bool {
        self.states[rank].round == self.world.schedules[rank].rounds.len()
    }

    fn waits(&self, rank: usize) -> String {
        let state = &self.states[rank];
        let what: Vec<String> = state
            .incoming
            .iter()
            .map(|step| match step {
                Step::Receive { from, .. } => format!("a message of rank {from}"),
                Step::Fetch { of, key, .. } => format!("object {key} of rank {of}"),
                other => format!("{other:?}"),
            })
            .collect();
        let takers = if state.outgoing > 0 {
            format!(" and {} takers", state.outgoing)
        } else {
            String::new()
        };
        format!(
            "rank {rank} in round {} waits for {}{takers}",
            state.round,
            what.join(", ")
        )
    }

    fn wake(&mut self, rank: usize) {
        if !self.queued[rank] && !self.finished(rank) {
            self.queued[rank] = true;
            self.runnable.push(rank);
        }
    }

    /// Returns whether a rank could do something now.
    fn may_go_on(&self, rank: usize) -> bool {
        let state = &self.states[rank];
        !self.finished(rank)
            && (!state.posted
                || (state.incoming.is_empty() && state.outgoing == 0)
                || state.incoming.iter().any(|step| self.is_there(rank, step)))
    }

    fn is_there(&self, rank: usize, step: &Step) -> bool {
        match *step {
            Step::Receive { from, .. } => self
                .messages
                .get(&(from, rank as Rank))
                .is_some_and(|queue| !queue.is_empty()),
            Step::Fetch { of, key, .. } => self.objects.contains_key(&(of, key)),
            _ => false,
        }
    }

    fn areas(&mut self, rank: usize) -> Areas<'_> {
        Areas {
            input: &self.world.inputs[rank],
            output: &mut self.world.outputs[rank],
            scratch: &mut self.states[rank].scratch,
            element: self.world.element,
        }
    }

    /// Does one step of a rank; returns `false` if no step is possible.
    fn step(&mut self, rank: usize) -> Result<bool, String> {
        if self.finished(rank) {
            return Ok(false);
        }
        let schedules = self.world.schedules;
        let round = &schedules[rank].rounds[self.states[rank].round];
        if !self.states[rank].posted {
            self.post(rank, round)?;
            return Ok(true);
        }
        let there: Vec<usize> = (0..self.states[rank].incoming.len())
            .filter(|place| self.is_there(rank, &self.states[rank].incoming[*place]))
            .collect();
        if !there.is_empty() {
            let chosen = self.states[rank].incoming[there[self.random.random_range(0..there.len())]];
            // Messages of one sender arrive in order: each goes to the first receive that expects one from this sender.
            let same = |step: &Step| match (step, &chosen) {
                (Step::Receive { from, .. }, Step::Receive { from: chosen, .. }) => from == chosen,
                (step, chosen) => *step == *chosen,
            };
            let place = self.states[rank]
                .incoming
                .iter()
                .position(same)
                .expect("it is one of them");
            let step = self.states[rank].incoming.remove(place);
            self.take(rank, step)?;
            return Ok(true);
        }
        if !self.states[rank].incoming.is_empty() || self.states[rank].outgoing > 0 {
            return Ok(false);
        }
        let reduction = self.world.reduction.clone();
        for step in &round.local {
            self.areas(rank).local(step, reduction.as_ref());
        }
        self.states[rank].round += 1;
        self.states[rank].posted = false;
        Ok(true)
    }

    fn post(&mut self, rank: usize, round: &Round) -> Result<(), String> {
        self.states[rank].posted = true;
        for step in &round.transfers {
            match *step {
                Step::Send { to, from } => {
                    let message = if self.random.random_bool(0.5) {
                        Message::Copied(self.areas(rank).read(from).to_vec())
                    } else {
                        self.states[rank].outgoing += 1;
                        Message::AtSender(from)
                    };
                    self.messages.entry((rank as Rank, to)).or_default().push_back(message);
                    self.wake(to as usize);
                }
                Step::Publish { key, from, readers } => {
                    let bytes = self.areas(rank).read(from).to_vec();
                    if self
                        .objects
                        .insert((rank as Rank, key), Object { bytes, readers })
                        .is_some()
                    {
                        return Err(format!("rank {rank} publishes two objects under key {key}"));
                    }
                    for reader in 0..self.states.len() {
                        self.wake(reader);
                    }
                }
                incoming => self.states[rank].incoming.push(incoming),
            }
        }
        Ok(())
    }

    fn take(&mut self, rank: usize, step: Step) -> Result<(), String> {
        let (peer, into, bytes) = match step {
            Step::Receive { from, into } => {
                let message = self
                    .messages
                    .get_mut(&(from, rank as Rank))
                    .and_then(VecDeque::pop_front);
                let bytes = match message.expect("it is there") {
                    Message::Copied(bytes) => bytes,
                    Message::AtSender(span) => {
                        let sender = from as usize;
                        self.states[sender].outgoing -= 1;
                        self.wake(sender);
                        self.areas(sender).read(span).to_vec()
                    }
                };
                (from, into, bytes)
            }
            Step::Fetch { of, key, into } => {
                let object = self.objects.get_mut(&(of, key)).expect("it is there");
                object.readers -= 1;
                let bytes = object.bytes.clone();
                if object.readers == 0 {
                    self.objects.remove(&(of, key));
                }
                (of, into, bytes)
            }
            other => return Err(format!("{other:?} is taken")),
        };
        let mut areas = self.areas(rank);
        let place = areas.write(into);
        if place.len() != bytes.len() {
            return Err(format!(
                "rank {peer} sends rank {rank} {} bytes for {into}",
                bytes.len()
            ));
        }
        place.copy_from_slice(&bytes);
        Ok(())
    }
}
