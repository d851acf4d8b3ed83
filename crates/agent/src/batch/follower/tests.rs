//! Tests of jobs that begin, grow, shrink and end, with and without the notices that the batch system should send.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const NO_GROUPS: [&str; 0] = [];

fn job(id: u64) -> BatchJob {
    BatchJob {
        user: "ada".into(),
        partition: "shared".into(),
        nodes: 1,
        ..BatchJob::unknown(JobId(id))
    }
}

fn limits(cores: impl IntoIterator<Item = u32>, memory_bytes: u64) -> Result<GroupLimits, String> {
    Ok(GroupLimits {
        cores: cores.into_iter().collect(),
        memory_bytes,
        gpus: GroupGpus::Listed(BTreeSet::new()),
    })
}

fn part(cores: impl IntoIterator<Item = u32>, memory_bytes: u64) -> JobShare {
    JobShare::Part {
        cores: cores.into_iter().collect(),
        gpus: BTreeSet::new(),
        memory_bytes,
    }
}

/// A node of eight cores, two GPUs and 100 bytes of memory, whose policy gives each job of a partition company.
struct World {
    follower: JobFollower,
    policy: SitePolicy,
    node: NodeParts,
    groups: BTreeMap<String, Result<GroupLimits, String>>,
    now: Duration,
}

impl World {
    fn new(policy: &str) -> Self {
        Self {
            follower: JobFollower::default(),
            policy: SitePolicy::parse(policy).expect(policy),
            node: NodeParts {
                cores: (0..8).collect(),
                memory_bytes: 100,
                gpus: 2,
            },
            groups: BTreeMap::new(),
            now: Duration::ZERO,
        }
    }

    /// A node whose policy gives all jobs company and reserves nothing.
    fn open() -> Self {
        Self::new("[keep]\nmemory = \"0\"\n[[company]]\npartitions = [\"shared\"]")
    }

    fn begin(&mut self, job: BatchJob) {
        let groups: Vec<String> = self.groups.keys().cloned().collect();
        self.follower.begin(job, self.now, groups.iter().map(String::as_str));
    }

    fn end(&mut self, id: u64) {
        let groups: Vec<String> = self.groups.keys().cloned().collect();
        self.follower.end(JobId(id), groups.iter().map(String::as_str));
    }

    fn group(&mut self, name: &str, limits: Result<GroupLimits, String>) {
        self.groups.insert(name.into(), limits);
    }

    /// Looks at the groups one second later.
    fn look(&mut self) -> Vec<JobChange> {
        self.look_at(&Ok(self.groups.clone()))
    }

    fn look_at(&mut self, sight: &GroupSight) -> Vec<JobChange> {
        self.now += SECOND;
        let terms = LookTerms {
            policy: &self.policy,
            node: &self.node,
            now: self.now,
            at: "fri 18:00".parse().expect("a time"),
        };
        self.follower.look(sight, terms)
    }

    fn why(&self, id: u64) -> String {
        let mut jobs = self.follower.jobs();
        let job = jobs.find(|(job, _)| job.id == JobId(id));
        job.expect("the job").1.to_owned()
    }
}

fn share(id: u64, share: JobShare) -> JobChange {
    JobChange::Share(JobId(id), share)
}

#[test]
fn a_job_keeps_the_node_until_its_group_is_there_and_then_what_the_group_allows() {
    let mut world = World::open();
    world.begin(job(1));
    assert_eq!(world.look(), [], "it has the node");
    assert!(world.why(1).contains("not there"), "{}", world.why(1));
    // Slurm makes the group, and then limits it.
    world.group("1", limits(0..8, u64::MAX));
    assert_eq!(world.look(), [], "nothing limits its memory yet");
    world.group("1", limits([0, 1], 40));
    assert_eq!(world.look(), [share(1, part([0, 1], 40))]);
    assert_eq!(world.look(), [], "nothing has changed");
    assert!(world.why(1).contains("rule 1"));
    // The job grows and shrinks. Then its group cannot be read.
    world.group("1", limits([0, 1, 2, 3], 60));
    assert_eq!(world.look(), [share(1, part([0, 1, 2, 3], 60))]);
    world.group("1", limits([3], 10));
    assert_eq!(world.look(), [share(1, part([3], 10))]);
    world.group("1", Err("cpuset.cpus: permission denied".into()));
    assert_eq!(world.look(), [share(1, JobShare::Node)]);
    assert!(world.why(1).contains("permission denied"));
    world.group("1", limits([3], 10));
    assert_eq!(world.look(), [share(1, part([3], 10))]);
    // Between two steps the job has no group, and may start another step on all its resources.
    world.groups.clear();
    assert_eq!(world.look(), [share(1, JobShare::Node)]);
    assert_eq!(world.look_at(&Err("no cgroup".into())), []);
    world.end(1);
    assert_eq!(world.look(), []);
    assert!(world.follower.jobs().count() == 0);
}

#[test]
fn jobs_without_company_keep_the_node() {
    let mut world = World::open();
    world.begin(BatchJob {
        partition: "main".into(),
        ..job(1)
    });
    world.group("1", limits([0], 10));
    world.look();
    world.groups.clear();
    world.look();
    world.group("1", limits([0], 10));
    assert_eq!(world.look(), []);
    assert!(world.why(1).contains("its partition is main"));
    // The policy changes.
    world.policy = SitePolicy::parse("[keep]\nmemory = \"0\"\n[[company]]").expect("a policy");
    assert_eq!(world.look(), [share(1, part([0], 10))]);
    world.policy = SitePolicy::default();
    assert_eq!(world.look(), [share(1, JobShare::Node)]);
    // A node whose memory is not known cannot be shared with any job.
    let mut world = World::open();
    world.node.memory_bytes = 0;
    world.begin(job(1));
    world.group("1", limits([0], 10));
    assert_eq!(world.look(), []);
}

#[test]
fn two_jobs_on_one_node_have_their_own_parts_and_what_is_kept_back_counts_once() {
    let mut world = World::new("[keep]\ncores = 2\nmemory = \"5\"\ngpus = 1\n[[company]]");
    world.node.cores = vec![6, 7, 0, 1, 2, 3, 4, 5];
    world.begin(job(1));
    world.look();
    world.group("1", limits([6], 10));
    let first = |cores: &[u32], gpu| JobShare::Part {
        cores: cores.iter().copied().collect(),
        gpus: [gpu].into(),
        memory_bytes: 15,
    };
    assert_eq!(world.look(), [share(1, first(&[0, 6, 7], 0))]);
    // The second job has the whole node until its own group exists; the first job keeps its part.
    world.begin(job(2));
    assert_eq!(world.look(), []);
    let with_gpu = |gpu| {
        Ok(GroupLimits {
            gpus: GroupGpus::Listed([gpu].into()),
            ..limits([7, 0], 20).expect("limits")
        })
    };
    world.group("2", with_gpu(0));
    let second = JobShare::Part {
        cores: [0, 7].into(),
        gpus: [0].into(),
        memory_bytes: 20,
    };
    assert_eq!(world.look(), [share(1, first(&[1, 2, 6], 1)), share(2, second)]);
    world.end(1);
    world.groups.remove("1");
    let second = JobShare::Part {
        cores: [0, 1, 6, 7].into(),
        gpus: [0, 1].into(),
        memory_bytes: 25,
    };
    assert_eq!(world.look(), [share(2, second)]);
}

#[test]
fn gpus_that_no_group_tells_are_all_the_job_s_unless_the_policy_trusts_their_names() {
    let untold = || {
        Ok(GroupLimits {
            gpus: GroupGpus::Untold,
            ..limits([0], 10).expect("limits")
        })
    };
    for (policy, named, gpus) in [
        ("", None, vec![0, 1]),
        ("", Some([1].into()), vec![0, 1]),
        ("named-gpus = true\n", Some([1].into()), vec![1]),
        ("named-gpus = true\n", None, vec![]),
    ] {
        let mut world = World::new(&format!("{policy}[keep]\nmemory = \"0\"\n[[company]]"));
        world.begin(BatchJob { gpus: named, ..job(1) });
        world.look();
        world.group("1", untold());
        let expected = JobShare::Part {
            cores: [0].into(),
            gpus: gpus.into_iter().collect(),
            memory_bytes: 10,
        };
        assert_eq!(world.look(), [share(1, expected)], "{policy}");
        world.group(
            "1",
            untold().map(|limits| GroupLimits {
                gpus: GroupGpus::All,
                ..limits
            }),
        );
        let JobChange::Share(_, JobShare::Part { gpus, .. }) = world.look().pop().unwrap_or(share(1, JobShare::Node))
        else {
            // Nothing changes for a job that has all GPUs already.
            continue;
        };
        assert_eq!(gpus, [0, 1].into(), "{policy}");
    }
}

#[test]
fn a_job_that_ends_without_an_epilog_is_over_where_groups_live_as_long_as_jobs() {
    let policy = "ended-after = \"10s\"\n[keep]\nmemory = \"0\"\n[[company]]\npartitions = [\"shared\"]";
    for policy in [policy, &policy.replace("ended-after", "#")] {
        let mut world = World::new(policy);
        // A job that has company, a job that has none, and a job whose group never existed.
        world.begin(job(1));
        world.begin(BatchJob {
            partition: "main".into(),
            ..job(2)
        });
        world.look();
        world.group("1", limits([0], 10));
        world.group("2", limits([1], 10));
        for _ in 0..30 {
            world.look();
        }
        world.groups.clear();
        assert_eq!(world.look(), [share(1, JobShare::Node)]);
        for _ in 0..8 {
            assert_eq!(world.look(), []);
        }
        let ends = match policy.contains("ended-after") {
            true => vec![JobChange::End(JobId(1)), JobChange::End(JobId(2))],
            false => vec![],
        };
        assert_eq!(world.look(), ends, "{policy}");
        world.begin(job(3));
        let ended = (0..20).flat_map(|_| world.look()).collect::<Vec<_>>();
        assert_eq!(ended.len(), ends.len() / 2, "a job that never started");
    }
}

#[test]
fn an_epilog_before_its_prolog_and_a_prolog_that_comes_twice_cost_no_core_of_a_job() {
    let mut world = World::open();
    world.end(1);
    assert_eq!(world.look(), []);
    world.begin(job(1));
    world.group("1", limits([0], 10));
    assert_eq!(world.look(), [share(1, part([0], 10))]);
    // The prolog runs once more: the job has the whole node again. The group may be the group of the first run.
    world.begin(job(1));
    assert_eq!(world.look(), []);
    assert!(world.why(1).contains("earlier run"), "{}", world.why(1));
    world.groups.clear();
    assert_eq!(world.look(), []);
    world.group("1", limits([2], 10));
    assert_eq!(world.look(), [share(1, part([2], 10))]);
    world.end(1);
    world.end(1);
    assert_eq!(world.look(), [], "its group is there for a moment longer");
    assert!(world.follower.jobs().count() == 0);
    // The job is requeued, and begins again before its group is gone.
    world.begin(job(1));
    assert_eq!(world.look(), []);
    world.groups.clear();
    world.look();
    world.group("1", limits([5], 10));
    assert_eq!(world.look(), [share(1, part([5], 10))]);
}

#[test]
fn a_group_that_is_there_at_the_prolog_of_another_job_stays_the_group_of_its_own() {
    let mut world = World::open();
    world.begin(job(2));
    world.look();
    world.group("2", limits([0], 10));
    world.look();
    world.begin(job(1));
    world.group("1", limits([1], 10));
    assert_eq!(world.look(), [share(1, part([1], 10))]);
    assert!(world.why(2).contains("rule 1"), "{}", world.why(2));
}

#[test]
fn jobs_that_only_their_groups_tell_of_have_the_node() {
    let mut world = World::new("[[company]]");
    world.group("7", limits([0], 10));
    world.group("sABC", limits([1], 10));
    let changes = world.look();
    let other = number_of("sABC");
    assert_eq!(
        changes,
        [share(7, JobShare::Node), JobChange::Share(other, JobShare::Node)]
    );
    assert!(other.0 > u64::MAX / 2);
    assert_eq!(world.look(), []);
    assert!(world.why(7).contains("no prolog"));
    // Groups that have been gone for a minute: their jobs have ended, because an epilog may never run.
    world.groups.clear();
    let changes: Vec<_> = (0..61).flat_map(|_| world.look()).collect();
    assert_eq!(changes, [JobChange::End(JobId(7)), JobChange::End(other)]);
}

#[test]
fn a_job_is_found_by_the_other_name_of_its_group() {
    let mut world = World::open();
    world.begin(BatchJob {
        group: "sABC".into(),
        ..job(1)
    });
    world.look();
    world.group("sABC", limits([1], 10));
    assert_eq!(world.look(), [share(1, part([1], 10))]);
    world.group("1", limits([2], 10));
    assert_eq!(world.look(), [share(1, JobShare::Node)], "there are two");
    world.end(1);
    assert_eq!(world.look(), []);
}

#[test]
fn an_agent_that_starts_while_jobs_run_knows_them_at_its_first_look() {
    let mut world = World::open();
    world.group("1", limits([0], 10));
    world.group("9", limits([5], 10));
    world.follower.recall(job(1), world.now);
    // The file of this job cannot be read.
    world.follower.recall(BatchJob::unknown(JobId(2)), world.now);
    assert_eq!(world.look(), [share(1, part([0], 10)), share(9, JobShare::Node)]);
    assert_eq!(world.follower.jobs().count(), 3);
    world.groups.remove("1");
    let changes: Vec<_> = (0..90).flat_map(|_| world.look()).collect();
    assert_eq!(
        changes,
        [share(1, JobShare::Node)],
        "no epilog has come for those with a file"
    );
    world.follower.end(JobId(9), NO_GROUPS.into_iter());
    assert_eq!(world.look(), [share(9, JobShare::Node)], "its group is still there");
}
