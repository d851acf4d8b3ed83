//! Tests of every algorithm of every operation, run in memory and compared with a plain reference.
//!
//! `HOTLEASE_SEED=N` gives other interleavings and other numbers; a failed test prints its seed.

mod bounds;
mod cases;
mod executor;
mod operations;
mod planted;
mod reference;

use crate::areas::Areas;
use crate::collective::{Collective, CollectiveCall};
use crate::schedule::{Rank, Schedule};
use executor::World;

/// The calls of all ranks of one collective, and the elements that they use.
struct Case<'a> {
    calls: Vec<CollectiveCall<'a>>,
    recipe: super::Recipe,
    elements: cases::Elements,
}

impl Case<'_> {
    fn schedules(&self) -> Vec<Schedule> {
        let build = |call: &CollectiveCall| {
            self.recipe
                .build(call)
                .unwrap_or_else(|error| panic!("{self}: {error}"))
        };
        self.calls.iter().map(build).collect()
    }

    /// Builds all schedules, runs them, and compares the output of each rank with the expected output.
    fn run(&self, seed: u64) {
        let schedules = self.schedules();
        if let Err(why) = self.run_schedules(&schedules, seed) {
            panic!("{self}: {why}; HOTLEASE_SEED={}", cases::base_seed());
        }
    }

    /// Starts one rank only when the other ranks can do no more; no other rank may have finished by then.
    fn run_late(&self, late: usize) {
        let schedules = self.schedules();
        let (inputs, mut outputs) = self.elements.buffers(&self.calls, 0);
        let world = World {
            schedules: &schedules,
            inputs: &inputs,
            outputs: &mut outputs,
            element: self.elements.size(),
            reduction: None,
        };
        world
            .run(cases::base_seed(), Some(late))
            .unwrap_or_else(|why| panic!("{self}: {why}"));
    }

    /// Checks that all ranks have the same result, where the result depends on the order of evaluation.
    fn run_alike(&self, seed: u64) {
        let schedules = self.schedules();
        let (inputs, mut outputs) = self.elements.buffers(&self.calls, seed);
        let world = World {
            schedules: &schedules,
            inputs: &inputs,
            outputs: &mut outputs,
            element: self.elements.size(),
            reduction: self.elements.reduction(),
        };
        world.run(seed, None).unwrap_or_else(|why| panic!("{self}: {why}"));
        assert!(
            outputs.windows(2).all(|pair| pair[0] == pair[1]),
            "{self}: ranks have different bits"
        );
    }

    /// Runs the schedules and returns the outputs of all ranks, which must equal the expected outputs.
    fn run_schedules(&self, schedules: &[Schedule], seed: u64) -> Result<Vec<Vec<u8>>, String> {
        for (call, schedule) in self.calls.iter().zip(schedules) {
            schedule.check(call.rank, call.ranks, call.input(), call.output())?;
        }
        let (inputs, mut outputs) = self.elements.buffers(&self.calls, seed);
        let expected = reference::outputs(&self.calls, &self.elements, &inputs, &outputs);
        let world = World {
            schedules,
            inputs: &inputs,
            outputs: &mut outputs,
            element: self.elements.size(),
            reduction: self.elements.reduction(),
        };
        world.run(seed, None)?;
        for (call, (got, expected)) in self.calls.iter().zip(outputs.iter().zip(&expected)) {
            self.compare(call, got, expected)?;
        }
        Ok(outputs)
    }

    fn compare(&self, call: &CollectiveCall, got: &[u8], expected: &[u8]) -> Result<(), String> {
        let size = self.elements.size();
        // In place, the input of a reduce-scatter may be overwritten; only the beginning is the result.
        let counts = match call.collective {
            Collective::ReduceScatter { blocks, .. } => blocks.count(call.rank as usize) * size,
            _ => expected.len(),
        };
        let (got, expected) = (&got[..counts], &expected[..counts]);
        let wrong = got
            .chunks(size)
            .zip(expected.chunks(size))
            .position(|(got, expected)| got != expected);
        let Some(element) = wrong else { return Ok(()) };
        let at = element * size..(element + 1) * size;
        Err(format!(
            "element {element} of rank {} is {:02x?} and should be {:02x?}",
            call.rank,
            &got[at.clone()],
            &expected[at]
        ))
    }
}

impl std::fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_place: Vec<Rank> = self
            .calls
            .iter()
            .filter(|call| call.in_place)
            .map(|call| call.rank)
            .collect();
        write!(
            f,
            "{:?} of {:?} by {} ranks",
            self.calls[0].collective,
            self.elements,
            self.calls.len()
        )?;
        write!(
            f,
            " with {:?}, in place at {in_place:?}, nodes {:?}",
            self.recipe, self.calls[0].nodes
        )
    }
}
