//! Outcome of a policy: use of the time of idle nodes, exact to the microsecond.
//!
//! ```text
//! idle    = starts + offered
//! offered = used + calls + interrupted + not begun      for each load
//! ```
//!
//! All times are of one core of each node. All cores of a node are used equally, because there are always more tasks
//! than cores. A task does not begin if it could not end before the pilot's time is over ("not begun"). A task that a
//! job interrupts is lost. If the task may be repeated, it runs again on another node, from its beginning; otherwise
//! its caller gets an error. In both cases its time on this node is wasted ("interrupted").

use super::parameters::{CALL, Micros, Policy, TASKS};
use super::periods::Period;
use rand::SeedableRng;
use rand::rngs::SmallRng;

/// Use of idle periods by a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub idle: Micros,
    /// Idle time before the first call: waiting for a pilot, and starting the platform.
    pub starts: Micros,
    /// Number of times that the platform got a node.
    pub grants: u64,
    /// Number of times that the platform had to give a node back to a job.
    pub preemptions: u64,
    /// Time for which jobs waited for nodes to be given back, summed over the nodes of each job.
    pub delay: Micros,
    pub loads: Vec<Load>,
}

/// Use of the offered time by tasks of one length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Load {
    pub task: Micros,
    pub used: Micros,
    /// Time between tasks.
    pub calls: Micros,
    /// Time spent on tasks that jobs interrupted.
    pub interrupted: Micros,
    /// Time before the end of a pilot that was too short for another task.
    pub not_begun: Micros,
    pub tasks: u64,
    pub tasks_interrupted: u64,
}

impl Outcome {
    pub fn offered(&self) -> Micros {
        self.idle - self.starts
    }
}

impl Load {
    /// Counts the tasks of a core that is offered for the time `offered`. Without a job, it would be offered for
    /// `time`.
    fn serve(&mut self, offered: Micros, time: Micros, call: Micros) {
        let each = self.task + call;
        let (done, rest) = (offered / each, offered % each);
        self.tasks += done;
        self.used += done * self.task;
        self.calls += done * call;
        if rest > 0 && done < time / each {
            self.interrupted += rest;
            self.tasks_interrupted += 1;
        } else {
            self.not_begun += rest;
        }
    }
}

/// Applies a policy to idle periods, for each load. The end of the trace counts as the beginning of a job.
pub fn play(periods: &[Period], policy: &Policy, seed: u64) -> Outcome {
    play_loads(periods, policy, &TASKS, CALL, seed)
}

fn play_loads(periods: &[Period], policy: &Policy, tasks: &[Micros], call: Micros, seed: u64) -> Outcome {
    let random = &mut SmallRng::seed_from_u64(seed);
    let mut outcome = Outcome {
        idle: 0,
        starts: 0,
        grants: 0,
        preemptions: 0,
        delay: 0,
        loads: tasks
            .iter()
            .map(|task| Load {
                task: *task,
                ..Load::default()
            })
            .collect(),
    };
    for period in periods {
        let length = period.length();
        outcome.idle += length;
        let mut at = 0;
        while at < length {
            let granted = at + policy.wait.draw(random);
            let start = policy.start.draw(random);
            if granted >= length {
                outcome.starts += length - at;
                break;
            }
            outcome.grants += 1;
            let expiry = policy.walltime.map_or(Micros::MAX, |walltime| granted + walltime);
            let end = expiry.min(length);
            let ready = (granted + start).min(end);
            outcome.starts += ready - at;
            if end < expiry {
                outcome.preemptions += 1;
                outcome.delay += policy.give_back.draw(random);
            }
            for load in &mut outcome.loads {
                load.serve(end - ready, expiry - ready, call);
            }
            at = end;
        }
    }
    outcome
}

#[cfg(test)]
#[path = "outcome_tests.rs"]
mod tests;
