//! Generated site: jobs arrive at random, and start in order of arrival, with EASY backfill.

use super::parameters::{Micros, Site};
use super::periods::{Period, exponential};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeSet, VecDeque};

/// Job of a batch system.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    pub submitted: Micros,
    pub nodes: u32,
    pub runtime: Micros,
    /// Time that its user asked for. The scheduler uses only this time, because it cannot know the job's real length.
    pub limit: Micros,
}

/// Draws the jobs of a site, in order of submission.
pub fn generate(site: &Site, seed: u64) -> Vec<Job> {
    let random = &mut SmallRng::seed_from_u64(seed);
    let (shortest, longest) = (site.runtime_min as f64, site.runtime_max as f64);
    let widest = f64::from(site.nodes_max);
    let mean_node_time = (widest - 1.0) / widest.ln() * (longest - shortest) / (longest / shortest).ln();
    let mean_gap = mean_node_time * 100.0 / f64::from(site.nodes * site.load_percent);
    let mut jobs = Vec::new();
    let mut submitted = 0;
    loop {
        submitted += exponential(mean_gap as Micros, random);
        if submitted >= site.filling + site.length {
            return jobs;
        }
        let runtime = log_uniform(shortest, longest, random) as Micros;
        let limit = runtime * random.random_range(100..=100 * u64::from(site.overestimate_max)) / 100;
        jobs.push(Job {
            submitted,
            nodes: log_uniform(1.0, widest, random).round() as u32,
            runtime,
            limit: limit.clamp(runtime, site.runtime_max.max(runtime)),
        });
    }
}

fn log_uniform(least: f64, most: f64, random: &mut SmallRng) -> f64 {
    (least.ln() + random.random::<f64>() * (most / least).ln()).exp()
}

/// Runs jobs on the nodes of a site until `end`, and returns the idle periods of the nodes. Jobs are in order of
/// submission. A job that is wider than the site never starts.
pub fn schedule(jobs: &[Job], nodes: u32, backfill_depth: usize, end: Micros) -> Vec<Period> {
    let mut scheduler = Scheduler {
        idle: (0..nodes).collect(),
        idle_since: vec![0; nodes as usize],
        running: Vec::new(),
        queue: VecDeque::new(),
        backfill_depth,
        periods: Vec::new(),
    };
    let mut arrivals = jobs.iter().copied().filter(|job| job.nodes <= nodes).peekable();
    loop {
        let arrival = arrivals.peek().map(|job| job.submitted);
        let ending = scheduler.running.iter().map(|run| run.end).min();
        let Some(now) = arrival.into_iter().chain(ending).min().filter(|now| *now < end) else {
            break;
        };
        scheduler.finish(now);
        while let Some(job) = arrivals.next_if(|job| job.submitted <= now) {
            scheduler.queue.push_back(job);
        }
        scheduler.start(now);
    }
    for node in scheduler.idle {
        let begin = scheduler.idle_since[node as usize];
        scheduler.periods.push(Period { begin, end });
    }
    scheduler.periods
}

struct Run {
    end: Micros,
    /// Latest end, by the job's limit.
    limit: Micros,
    nodes: Vec<u32>,
}

struct Scheduler {
    idle: BTreeSet<u32>,
    idle_since: Vec<Micros>,
    running: Vec<Run>,
    queue: VecDeque<Job>,
    backfill_depth: usize,
    periods: Vec<Period>,
}

impl Scheduler {
    fn finish(&mut self, now: Micros) {
        for run in self.running.extract_if(.., |run| run.end <= now) {
            for node in run.nodes {
                self.idle_since[node as usize] = now;
                self.idle.insert(node);
            }
        }
    }

    /// Starts jobs in order until a job does not fit. Then starts later jobs that do not delay this job.
    fn start(&mut self, now: Micros) {
        let first = loop {
            match self.queue.front().copied() {
                None => return,
                Some(first) if first.nodes as usize > self.idle.len() => break first,
                Some(first) => {
                    self.queue.pop_front();
                    self.run(first, now);
                }
            }
        };
        let (shadow, mut spare) = self.reserve(first.nodes as usize, now);
        let mut place = 1;
        while place < self.queue.len().min(self.backfill_depth) {
            let job = self.queue[place];
            let nodes = job.nodes as usize;
            let is_short = now + job.limit <= shadow;
            if nodes > self.idle.len() || (!is_short && nodes > spare) {
                place += 1;
                continue;
            }
            if !is_short {
                spare -= nodes;
            }
            self.queue.remove(place);
            self.run(job, now);
        }
    }

    /// Returns the latest time at which `nodes` nodes will be idle, and the number of further nodes that will be idle
    /// then.
    fn reserve(&self, nodes: usize, now: Micros) -> (Micros, usize) {
        let mut ends: Vec<_> = self.running.iter().map(|run| (run.limit, run.nodes.len())).collect();
        ends.sort_unstable();
        let (mut shadow, mut idle) = (now, self.idle.len());
        for (limit, count) in ends {
            if idle >= nodes {
                break;
            }
            (shadow, idle) = (limit, idle + count);
        }
        (shadow, idle - nodes)
    }

    fn run(&mut self, job: Job, now: Micros) {
        let nodes: Vec<u32> = self.idle.iter().copied().take(job.nodes as usize).collect();
        for node in &nodes {
            self.idle.remove(node);
            let begin = self.idle_since[*node as usize];
            if begin < now {
                self.periods.push(Period { begin, end: now });
            }
        }
        let (end, limit) = (now + job.runtime, now + job.limit);
        self.running.push(Run { end, limit, nodes });
    }
}

#[cfg(test)]
#[path = "jobs_tests.rs"]
mod tests;
