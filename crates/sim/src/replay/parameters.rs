//! Parameters of the replay: policies with their costs, loads, and the generated site. Times are in microseconds.

use rand::RngExt;
use rand::rngs::SmallRng;

/// Time in microseconds.
pub type Micros = u64;

pub const MILLISECOND: Micros = 1_000;
pub const SECOND: Micros = 1_000 * MILLISECOND;
pub const MINUTE: Micros = 60 * SECOND;
pub const HOUR: Micros = 60 * MINUTE;
pub const DAY: Micros = 24 * HOUR;

/// Lengths of tasks. A load consists of tasks of one length, and always has more tasks than there are cores.
pub const TASKS: [Micros; 5] = [MILLISECOND, 100 * MILLISECOND, 10 * SECOND, MINUTE, 10 * MINUTE];

/// Time of a core that a call costs beside its task: the round trip of a hot call of 64 bytes to another host, over
/// `tcp;ofi_rxm` (docs/performance.md). Calls in flight would hide most of it.
pub const CALL: Micros = 15;

/// Cores of a node in the XC50 partition of Piz Daint, to which three of four nodes belong; the other nodes have 36
/// cores.
pub const CORES: u64 = 12;

/// Median of the idle periods of Piz Daint's nodes. It cannot be computed from the samples, which only count idle
/// nodes. Published reports give five to six minutes.
pub const MEDIAN_IDLE: Micros = 330 * SECOND;

/// Longest step between two samples that is accepted; a longer step is shortened. At the change to summer time, the
/// clock of the trace jumps by an hour.
pub const STEP_MAX: Micros = 10 * MINUTE;

/// Distribution of a cost, given by some percentiles. Between these it is linear, which overestimates the mean of a
/// skewed cost, so that no policy looks better than measured.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    pub least: Micros,
    pub median: Micros,
    pub p99: Micros,
    pub most: Micros,
}

impl Cost {
    pub const fn always(time: Micros) -> Self {
        Self {
            least: time,
            median: time,
            p99: time,
            most: time,
        }
    }

    /// Uniform distribution over a range.
    pub const fn uniform(least: Micros, most: Micros) -> Self {
        let width = most - least;
        Self {
            least,
            median: least + width / 2,
            p99: least + width * 99 / 100,
            most,
        }
    }

    /// Draws a cost.
    pub fn draw(&self, random: &mut SmallRng) -> Micros {
        const ALL: u64 = 1_000_000;
        const MEDIAN: u64 = ALL / 2;
        const P99: u64 = ALL / 100 * 99;
        if self.least == self.most {
            return self.least;
        }
        let rank = random.random_range(0..ALL);
        let (from, to, rank, ranks) = match rank {
            0..MEDIAN => (self.least, self.median, rank, MEDIAN),
            MEDIAN..P99 => (self.median, self.p99, rank - MEDIAN, P99 - MEDIAN),
            _ => (self.p99, self.most, rank - P99, ALL - P99),
        };
        from + (to - from) * rank / ranks
    }
}

/// Policy: how the platform gets idle nodes, and gives them back.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    pub name: &'static str,
    /// Time from the moment that a node is idle, or that the last pilot on it has ended, until the platform has the
    /// node.
    pub wait: Cost,
    /// Time from the end of `wait` until the first call.
    pub start: Cost,
    /// Time after which the batch system ends a pilot; `None` if there are no pilots.
    pub walltime: Option<Micros>,
    /// Time from the batch system's decision that a job gets the node until the node is free. The job waits until then.
    pub give_back: Cost,
}

/// The agent stays on the node, and the batch system does not account for it. It takes the node in the epilog and
/// yields the node in the prolog. Measured in 300 rounds on two cores that were busy with Python tasks, with
/// `hotlease-node` run as a process: retake to first call of a new executor 31 ms, p99 1.94 s, longest 2.7 s; yield 5.0
/// ms, p99 9.1, longest 9.7.
pub const PROLOG: Policy = Policy {
    name: "prolog",
    wait: Cost::always(0),
    start: Cost {
        least: 31 * MILLISECOND,
        median: 31 * MILLISECOND,
        p99: 1_940 * MILLISECOND,
        most: 2_700 * MILLISECOND,
    },
    walltime: None,
    give_back: Cost {
        least: 5 * MILLISECOND,
        median: 5 * MILLISECOND,
        p99: 9_100,
        most: 9_700,
    },
};

/// A pilot is a job of low priority that the batch system preempts. The queue always contains enough pilots, and any
/// number of them can start at once.
/// - Wait: an 8-core job starts 0.3 to 3.0 s after its submission on an idle node, measured with Slurm 22.05 on
///   loopback. No backfill cycle is added (see [`VARIANTS`]).
/// - Start: first result of a program where no platform runs, 57 ms at best, 71 ms in the median (docs/performance.md);
///   the longest is assumed to be 1 s, the project's own limit.
/// - Give back: a preempted pilot delays the job by 1.0 to 4.0 s if it is a step and ends at SIGTERM. This, too, was
///   measured with that Slurm.
const fn pilot(name: &'static str, walltime: Micros) -> Policy {
    Policy {
        name,
        wait: Cost::uniform(300 * MILLISECOND, 3 * SECOND),
        start: Cost {
            least: 57 * MILLISECOND,
            median: 71 * MILLISECOND,
            p99: SECOND,
            most: SECOND,
        },
        walltime: Some(walltime),
        give_back: Cost::uniform(SECOND, 4 * SECOND),
    }
}

pub const POLICIES: [Policy; 4] = [
    PROLOG,
    pilot("pilot-2min", 2 * MINUTE),
    pilot("pilot-10min", 10 * MINUTE),
    pilot("pilot-60min", HOUR),
];

/// Policies with one changed cost, to show how much the outcome depends on this cost.
pub const VARIANTS: [Policy; 3] = [
    // Each retake takes as long as the longest measured retake.
    Policy {
        name: "prolog, slow",
        start: Cost::always(2_700 * MILLISECOND),
        ..PROLOG
    },
    // Only the backfill scheduler looks at pilots, every 30 s (Slurm's default for `bf_interval`).
    Policy {
        name: "pilot-10min, backfill",
        wait: Cost::uniform(300 * MILLISECOND, 33 * SECOND),
        ..pilot("", 10 * MINUTE)
    },
    // A plain batch script and a grace time: jobs were 32 to 55 s late.
    Policy {
        name: "pilot-10min, script",
        give_back: Cost::uniform(32 * SECOND, 55 * SECOND),
        ..pilot("", 10 * MINUTE)
    },
];

/// Generated site: jobs that arrive at random, and wait in one queue with backfill.
#[derive(Debug, Clone, Copy)]
pub struct Site {
    pub nodes: u32,
    /// Time until the load of the site is stationary; not part of the trace.
    pub filling: Micros,
    pub length: Micros,
    /// Node time of the submitted jobs, in percent of the site's node time.
    pub load_percent: u32,
    /// Largest number of nodes of a job; the number is distributed log-uniformly.
    pub nodes_max: u32,
    /// Range of the run time of a job, which is distributed log-uniformly (as many jobs between 1 and 10 minutes as
    /// between 10 and 100).
    pub runtime_min: Micros,
    pub runtime_max: Micros,
    /// A job's requested time is up to this many times its run time, but at most `runtime_max`.
    pub overestimate_max: u32,
    /// Number of jobs of the queue that backfill considers.
    pub backfill_depth: usize,
    /// Time between the samples from which the idle periods are inferred, to compare them with the true periods.
    pub sample_step: Micros,
}

pub const SITE: Site = Site {
    nodes: 1024,
    filling: 5 * DAY,
    length: 30 * DAY,
    load_percent: 90,
    nodes_max: 256,
    runtime_min: 30 * SECOND,
    runtime_max: DAY,
    overestimate_max: 4,
    backfill_depth: 100,
    sample_step: 100 * SECOND,
};
