//! Task of a job step: Slurm's data about the task and its node.

use hotlease_agent::CoreChoice;
use hotlease_net::job::{JOB_VARIABLE, JobFolder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

/// Steps from this number on are no steps of `srun`: the batch script, and the shell of `salloc`.
const SPECIAL_STEPS: u32 = 0xffff_fff0;
/// Largest number of characters of a node's name in the path of its runtime directory, whose sockets must not have long
/// paths.
const NODE_CHARS_MAX: usize = 40;

/// A task of a job step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands::up) struct JobTask {
    /// Number of the job.
    pub(super) job: String,
    /// Job and step, as `scancel` takes them.
    pub(super) step: String,
    /// Identifies the step among all steps, also the steps of earlier runs of a job with this number.
    pub(super) step_id: String,
    /// Name of the node.
    pub(super) node: String,
    /// Number of the node in the step.
    node_index: usize,
    /// Number of nodes of the step.
    pub(super) nodes: usize,
    /// Number of the task in the step, and on its node.
    pub(super) rank: u32,
    pub(super) local_rank: u32,
    /// Processors that the step has on the node.
    cpus: Option<usize>,
    /// Memory that the job has on the node.
    pub(super) memory_bytes: Option<u64>,
}

impl JobTask {
    /// The task of a job that runs this process; `None` if no task does.
    pub(super) fn of_environment() -> Option<Self> {
        Self::of_variables(|name| std::env::var(name).ok())
    }

    fn of_variables(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let number = |name: &str| variable(name)?.parse::<u32>().ok();
        let job = variable(JOB_VARIABLE)?;
        let step = number("SLURM_STEP_ID").filter(|step| *step < SPECIAL_STEPS)?;
        let step = format!("{job}.{step}");
        // A job can be launched several times under its number. These values distinguish the launches: how often it was
        // restarted, and where its `srun` listens.
        let launch = [
            "SLURM_RESTART_COUNT",
            "SLURM_LAUNCH_NODE_IPADDR",
            "SLURM_STEP_LAUNCHER_PORT",
        ];
        let launch = launch.map(|name| variable(name).unwrap_or_default()).join(" ");
        let cpus = number("SLURM_CPUS_ON_NODE").filter(|cpus| *cpus > 0);
        let of_node = number("SLURM_MEM_PER_NODE").map(u64::from);
        let of_cpus = || Some(u64::from(number("SLURM_MEM_PER_CPU")?) * u64::from(cpus?));
        // Slurm counts in MiB; 0 means all that the node has.
        let memory = of_node.or_else(of_cpus).filter(|memory| *memory > 0);
        Some(Self {
            step_id: format!("{step} {launch}"),
            node: variable("SLURMD_NODENAME")?,
            node_index: number("SLURM_NODEID").unwrap_or(0) as usize,
            nodes: number("SLURM_STEP_NUM_NODES").unwrap_or(1).max(1) as usize,
            rank: number("SLURM_PROCID")?,
            local_rank: number("SLURM_LOCALID")?,
            cpus: cpus.map(|cpus| cpus as usize),
            memory_bytes: memory.map(|memory| memory << 20),
            job,
            step,
        })
    }

    /// Runtime directory of the job on this node, one for each folder of a job. It is not the user's own runtime
    /// directory: a job inherits the name of that directory from the login node, and may not find it on its own nodes.
    pub(super) fn runtime_dir(&self, folder: &JobFolder) -> PathBuf {
        let node: String = self.node.chars().take(NODE_CHARS_MAX).collect();
        let uid = nix::unistd::getuid();
        let mut hasher = DefaultHasher::new();
        folder.path().hash(&mut hasher);
        let folder = hasher.finish() as u32;
        PathBuf::from(format!("/tmp/hotlease-{uid}-job{}-{folder:08x}-{node}", self.job))
    }

    /// Cores to offer for a choice of the user, among the cores on which this process may run.
    ///
    /// A site that does not bind jobs to cores lets each process run on all of them. Then the job takes as many cores
    /// as it was given, from a position that follows from the node's number, so that several nodes of a job on one host
    /// take different cores.
    pub(super) fn cores(&self, choice: &CoreChoice, allowed: &[u32]) -> anyhow::Result<CoreChoice> {
        let share = self.cpus.unwrap_or(allowed.len()).min(allowed.len());
        let mut own: Vec<u32> = allowed
            .iter()
            .cycle()
            .skip(self.node_index * share % allowed.len().max(1))
            .take(share)
            .copied()
            .collect();
        own.sort_unstable();
        let too_many = |count: usize| {
            anyhow::anyhow!(
                "--cores {choice}: {count} cores, but job {} has {share} on {}",
                self.job,
                self.node
            )
        };
        match choice {
            CoreChoice::NoCores => Ok(CoreChoice::NoCores),
            CoreChoice::All => Ok(CoreChoice::List(own)),
            CoreChoice::Count(count) if *count > share => Err(too_many(*count)),
            CoreChoice::Count(count) => Ok(CoreChoice::List(own.split_off(share - count))),
            CoreChoice::List(cores) if cores.len() > share => Err(too_many(cores.len())),
            CoreChoice::List(_) => Ok(choice.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: [(&str, &str); 9] = [
        ("SLURM_JOB_ID", "17"),
        ("SLURM_STEP_ID", "2"),
        ("SLURMD_NODENAME", "n1"),
        ("SLURM_NODEID", "1"),
        ("SLURM_STEP_NUM_NODES", "4"),
        ("SLURM_PROCID", "1"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_CPUS_ON_NODE", "2"),
        ("SLURM_MEM_PER_CPU", "100"),
    ];

    fn task(others: &[(&str, &str)]) -> Option<JobTask> {
        let all = || others.iter().chain(&USUAL);
        JobTask::of_variables(|name| {
            all()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn a_task_knows_its_node_and_what_the_job_has_there() {
        let usual = task(&[]).expect("a task");
        assert_eq!(
            (usual.step.as_str(), usual.node.as_str(), usual.nodes),
            ("17.2", "n1", 4)
        );
        assert_eq!(usual.memory_bytes, Some(200 << 20));
        let memory = |value| task(&[("SLURM_MEM_PER_NODE", value), ("SLURM_MEM_PER_CPU", "")]);
        assert_eq!(memory("3").and_then(|task| task.memory_bytes), Some(3 << 20));
        assert_eq!(memory("0").and_then(|task| task.memory_bytes), None);
        let again = task(&[("SLURM_STEP_LAUNCHER_PORT", "7001")]).expect("a task");
        assert_ne!(again.step_id, usual.step_id, "another job that got the number later");
    }

    #[test]
    fn only_tasks_of_srun_are_tasks() {
        for (variable, value) in [
            ("SLURM_JOB_ID", ""),
            ("SLURM_STEP_ID", ""),
            ("SLURM_STEP_ID", "4294967291"),
            ("SLURM_PROCID", "x"),
        ] {
            assert_eq!(task(&[(variable, value)]), None, "{variable}={value}");
        }
    }

    #[test]
    fn a_job_offers_no_more_cores_than_it_has() {
        let task = task(&[]).expect("a task");
        let offers = |choice: &str, allowed: &[u32]| {
            let choice = choice.parse().expect("a choice");
            task.cores(&choice, allowed)
                .map(|cores| cores.to_string())
                .map_err(|error| error.to_string())
        };
        let node = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(
            offers("all", &node),
            Ok("2,3".into()),
            "the second node of two cores each"
        );
        assert_eq!(offers("all", &[4, 5]), Ok("4,5".into()), "bound to its cores");
        assert_eq!(offers("all", &[6]), Ok("6,".into()), "bound to one of its cores");
        assert_eq!(offers("1", &node), Ok("3,".into()));
        assert_eq!(offers("0,7", &node), Ok("0,7".into()));
        assert_eq!(offers("none", &node), Ok("none".into()));
        for choice in ["3", "0-2"] {
            let refused = offers(choice, &node).expect_err("too many");
            assert!(refused.contains("job 17 has 2 on n1"), "{refused}");
        }
    }
}
