use super::*;
use crate::commands::alloc::records::AgentSetup;

const SECOND: u64 = 1000;

fn queue(priority: i32, max_nodes: u32) -> Queue {
    Queue {
        system: "slurm".into(),
        description: None,
        priority,
        max_nodes,
        min_nodes: 0,
        nodes_per_job: 1,
        backlog: 2,
        time_s: 3600,
        idle_s: 300,
        cores: Some(4),
        gpus: 0,
        agents: AgentSetup {
            program: "hotlease".into(),
            manager: String::new(),
            authority: String::new(),
            tenants: vec!["alice".into()],
            args: Vec::new(),
            prologue: Vec::new(),
        },
        submit_args: Vec::new(),
        trouble: None,
        unneeded_since_ms: None,
    }
}

fn client(workers: u32) -> ClientDemand {
    ClientDemand {
        tenant: "alice".into(),
        workers,
        slots_per_worker: 1,
        gpus: 0,
        spread: true,
    }
}

/// An allocator with its batch system, whose list the test sets.
struct Scene {
    state: AllocatorState,
    listed: Vec<ListedJob>,
    named: u32,
    now_ms: u64,
}

impl Scene {
    fn new(queues: &[(&str, Queue)]) -> Self {
        let queues = queues.iter().map(|(name, queue)| ((*name).to_owned(), queue.clone()));
        Self {
            state: AllocatorState {
                queues: queues.collect(),
                jobs: Vec::new(),
            },
            listed: Vec::new(),
            named: 0,
            now_ms: 1_000_000,
        }
    }

    /// Decides for these clients, and accepts each job; returns the queues of the submitted jobs.
    fn submit(&mut self, clients: &[ClientDemand]) -> Vec<String> {
        let mut queues = Vec::new();
        for action in self.plan(clients) {
            if let AllocatorAction::Submit { name } = action {
                let job = self.state.jobs.iter().find(|job| job.name == name).expect("noted");
                queues.push(job.queue.clone());
                self.listed.push(ListedJob {
                    number: name.trim_start_matches("job").to_owned(),
                    name: name.clone(),
                    phase: Some(JobPhase::Pending),
                    reason: "Priority".into(),
                });
                self.state
                    .note_submitted(&name, Ok(name.trim_start_matches("job").into()), self.now_ms);
            }
        }
        queues
    }

    fn plan(&mut self, clients: &[ClientDemand]) -> Vec<AllocatorAction> {
        let named = &mut self.named;
        self.state.plan(clients, self.now_ms, |_| {
            *named += 1;
            format!("job{named}")
        })
    }

    fn pass(&mut self, seconds: u64) {
        self.now_ms += seconds * SECOND;
    }

    /// Sets the phase of all jobs.
    fn see(&mut self, phase: JobPhase, reason: &str) -> Vec<PilotJob> {
        for job in &mut self.listed {
            (job.phase, job.reason) = (Some(phase), reason.into());
        }
        self.state.observe(&self.listed, self.now_ms)
    }

    fn job(&self) -> &PilotJob {
        self.state.jobs.last().expect("a job")
    }
}

#[test]
fn jobs_come_for_clients_that_wait_and_for_no_more_than_these_need() {
    let mut scene = Scene::new(&[("a", queue(0, 8))]);
    assert_eq!(scene.submit(&[]), [""; 0]);
    assert_eq!(
        scene.submit(&[client(3), client(1)]),
        ["a"],
        "both fit on a node of four cores"
    );
    assert_eq!(scene.submit(&[client(3), client(1)]), [""; 0], "it is on its way");
    assert_eq!(
        scene.submit(&[client(3), client(5)]),
        ["a"],
        "eight cores are two nodes"
    );
    scene.see(JobPhase::Running, "");
    assert_eq!(
        scene.submit(&[client(8)]),
        [""; 0],
        "their agents are about to register"
    );
    scene.pass(20);
    assert_eq!(scene.submit(&[client(1)]), ["a"], "they run, and are full");
    let too_large = ClientDemand {
        spread: false,
        ..client(5)
    };
    let mut scene = Scene::new(&[("a", queue(0, 8))]);
    assert_eq!(scene.submit(&[too_large]), [""; 0], "no node of the queue serves it");
    assert_eq!(scene.submit(&[ClientDemand { gpus: 1, ..client(1) }]), [""; 0]);
    let of_another_tenant = ClientDemand {
        tenant: "bob".into(),
        ..client(1)
    };
    assert_eq!(scene.submit(&[of_another_tenant]), [""; 0]);
}

#[test]
fn nodes_and_jobs_that_wait_are_bounded() {
    let mut scene = Scene::new(&[("a", queue(0, 3))]);
    assert_eq!(scene.submit(&[client(100)]), ["a", "a"], "two jobs may wait");
    assert_eq!(scene.submit(&[client(100)]), [""; 0]);
    scene.see(JobPhase::Running, "");
    scene.pass(20);
    assert_eq!(scene.submit(&[client(100)]), ["a"], "three nodes at most");
    scene.see(JobPhase::Running, "");
    scene.pass(20);
    assert_eq!(scene.submit(&[client(100)]), [""; 0]);
    scene.see(JobPhase::Completed, "");
    assert_eq!(scene.submit(&[client(100)]), ["a", "a"]);
}

#[test]
fn the_queue_of_the_highest_priority_comes_first_and_others_take_what_it_cannot() {
    let queues = [("cheap", queue(5, 1)), ("dear", queue(1, 8))];
    let mut scene = Scene::new(&queues);
    assert_eq!(scene.submit(&[client(2)]), ["cheap"]);
    assert_eq!(
        scene.submit(&[client(2), client(4)]),
        ["dear"],
        "the first has one node only"
    );
}

#[test]
fn a_queue_that_rejects_pauses_for_twice_as_long_each_time_and_another_is_used() {
    let mut scene = Scene::new(&[("a", queue(1, 8))]);
    let rejected = |scene: &mut Scene| {
        let actions = scene.plan(&[client(1)]);
        for action in &actions {
            let AllocatorAction::Submit { name } = action else {
                panic!("{action:?}");
            };
            let error = SubmitError {
                why: "invalid partition".into(),
                is_rejected: true,
            };
            scene.state.note_submitted(name, Err(error), scene.now_ms);
        }
        actions.len()
    };
    assert_eq!(rejected(&mut scene), 1);
    assert_eq!(scene.state.jobs, [], "there is no such job");
    for pause in [15, 30, 60] {
        assert_eq!(rejected(&mut scene), 0, "it pauses");
        scene.pass(pause - 1);
        assert_eq!(rejected(&mut scene), 0, "it pauses for {pause} s");
        scene.pass(1);
        assert_eq!(rejected(&mut scene), 1);
    }
    let trouble = scene.state.queues["a"].trouble.clone().expect("trouble");
    assert_eq!((trouble.why.as_str(), trouble.failures), ("invalid partition", 4));
    scene.state.queues.insert("b".into(), queue(0, 8));
    assert_eq!(scene.submit(&[client(1)]), ["b"]);
    scene.pass(24 * 3600);
    let mut scene = Scene {
        state: AllocatorState {
            jobs: Vec::new(),
            ..scene.state
        },
        ..scene
    };
    assert_eq!(scene.submit(&[client(1)]), ["a"]);
    assert_eq!(scene.state.queues["a"].trouble, None, "it is accepted again");
}

#[test]
fn ends_of_jobs_are_told_apart() {
    for (phase, pauses) in [
        (JobPhase::Completed, false),
        (JobPhase::OutOfTime, false),
        (JobPhase::Preempted, false),
        (JobPhase::Cancelled, true),
        (JobPhase::Failed, true),
    ] {
        let mut scene = Scene::new(&[("a", queue(0, 8))]);
        scene.submit(&[client(1)]);
        scene.see(JobPhase::Running, "");
        scene.pass(30);
        assert_eq!(scene.see(phase, "why").len(), 1);
        assert_eq!(scene.job().phase, phase);
        assert_eq!(scene.see(phase, "why"), [], "it is told once");
        assert_eq!(scene.submit(&[client(1)]).is_empty(), pauses, "{phase}");
    }
    // A job that was taken back into the queue is on its way again; a held job is not.
    let mut scene = Scene::new(&[("a", queue(0, 8))]);
    scene.submit(&[client(1)]);
    scene.see(JobPhase::Running, "");
    scene.pass(30);
    scene.see(JobPhase::Pending, "BeginTime");
    assert_eq!((scene.job().requeues, scene.job().running_ms), (1, None));
    assert_eq!(scene.submit(&[client(1)]), [""; 0]);
    scene.see(JobPhase::Held, "JobHeldAdmin");
    assert_eq!(scene.job().requeues, 1);
    assert_eq!(scene.submit(&[client(1)]), ["a"], "a held job serves no client");
    assert_eq!(
        scene.submit(&[client(1), client(4), client(4)]),
        [""; 0],
        "but it counts as waiting"
    );
}

#[test]
fn a_submission_that_was_interrupted_is_found_by_its_name() {
    let mut scene = Scene::new(&[("a", queue(0, 8))]);
    assert_eq!(scene.plan(&[client(1)]).len(), 1);
    // The allocator was killed here, or the command did not answer.
    let error = SubmitError {
        why: "no answer".into(),
        is_rejected: false,
    };
    scene.state.note_submitted("job1", Err(error), scene.now_ms);
    scene.pass(60);
    assert_eq!(scene.submit(&[client(1)]), [""; 0], "it may be on its way");
    let mut lost = scene.state.clone();
    lost.observe(&[], scene.now_ms);
    assert_eq!(lost.jobs[0].phase, JobPhase::Lost);
    let listed = ListedJob {
        number: "77".into(),
        name: "job1".into(),
        phase: Some(JobPhase::Running),
        reason: String::new(),
    };
    scene.state.observe(std::slice::from_ref(&listed), scene.now_ms);
    assert_eq!(scene.job().number.as_deref(), Some("77"));
    // An unknown word does not mean that the job has ended.
    let unknown = ListedJob { phase: None, ..listed };
    scene.state.observe(&[unknown], scene.now_ms);
    assert_eq!(scene.job().phase, JobPhase::Running);
}

#[test]
fn jobs_that_wait_in_vain_are_cancelled_once_no_client_has_waited_for_the_idle_time() {
    let mut scene = Scene::new(&[("a", queue(0, 8))]);
    scene.submit(&[client(1)]);
    assert_eq!(scene.plan(&[]), []);
    scene.pass(299);
    assert_eq!(scene.plan(&[]), []);
    assert_eq!(scene.plan(&[client(1)]), [], "a client waits again");
    assert_eq!(scene.plan(&[]), []);
    scene.pass(299);
    assert_eq!(scene.plan(&[]), []);
    scene.pass(1);
    let cancel = AllocatorAction::Cancel {
        name: "job1".into(),
        number: "1".into(),
    };
    assert_eq!(scene.plan(&[]), [cancel]);
    // Running agents end by themselves.
    scene.see(JobPhase::Running, "");
    assert_eq!(scene.plan(&[]), []);
}

#[test]
fn few_ended_jobs_are_remembered() {
    let mut scene = Scene::new(&[("a", queue(0, 8))]);
    for _ in 0..3 * ENDED_MAX {
        assert_eq!(scene.submit(&[client(1)]), ["a"]);
        scene.see(JobPhase::Completed, "");
    }
    assert_eq!(scene.state.jobs.len(), ENDED_MAX);
    assert_eq!(scene.job().name, format!("job{}", 3 * ENDED_MAX));
}

fn numbers(actions: Vec<AllocatorAction>) -> Vec<String> {
    let numbers = actions.into_iter().map(|action| match action {
        AllocatorAction::Cancel { number, .. } => number,
        AllocatorAction::Submit { name } => panic!("{name} is submitted"),
    });
    numbers.collect()
}

#[test]
fn a_queue_keeps_the_nodes_that_its_user_wants_and_gets_others_for_clients() {
    let mut scene = Scene::new(&[(
        "a",
        Queue {
            min_nodes: 3,
            ..queue(0, 4)
        },
    )]);
    assert_eq!(scene.submit(&[]), ["a"; 3], "all at once: the backlog is for clients");
    assert_eq!(scene.submit(&[]), [""; 0]);
    assert!(scene.state.jobs.iter().all(|job| job.stays));
    scene.see(JobPhase::Running, "");
    scene.pass(1000);
    assert_eq!(scene.plan(&[]), [], "they stay although no client waits");
    assert_eq!(scene.submit(&[client(2)]), ["a"], "all are busy");
    assert!(!scene.job().stays, "it ends when it is idle");
    // One job ends at its time limit, and another takes its place.
    scene.listed[0].phase = Some(JobPhase::OutOfTime);
    scene.state.observe(&scene.listed, scene.now_ms);
    scene.listed.remove(0);
    assert_eq!(scene.submit(&[]), [""; 0], "three are there");
    scene.listed[0].phase = Some(JobPhase::Preempted);
    scene.state.observe(&scene.listed, scene.now_ms);
    scene.listed.remove(0);
    assert_eq!(scene.submit(&[]), ["a"]);
}

#[test]
fn a_queue_that_may_have_fewer_nodes_cancels_jobs_that_have_not_begun_first() {
    let mut scene = Scene::new(&[(
        "a",
        Queue {
            min_nodes: 3,
            ..queue(0, 3)
        },
    )]);
    assert_eq!(scene.submit(&[]).len(), 3);
    scene.listed[0].phase = Some(JobPhase::Running);
    scene.state.observe(&scene.listed, scene.now_ms);
    let queue = scene.state.queues.get_mut("a").expect("a queue");
    (queue.min_nodes, queue.max_nodes) = (1, 1);
    let cancelled = numbers(scene.plan(&[client(9)]));
    assert_eq!(cancelled.len(), 2);
    assert!(
        !cancelled.contains(&scene.listed[0].number),
        "the one that runs goes on"
    );
    assert_eq!(
        numbers(scene.plan(&[])),
        cancelled,
        "until the batch system has accepted it"
    );
    for number in &cancelled {
        scene.state.note_cancelled(&format!("job{number}"));
    }
    assert_eq!(scene.plan(&[]), []);
    for job in &mut scene.listed[1..] {
        job.phase = Some(JobPhase::Cancelled);
    }
    scene.state.observe(&scene.listed, scene.now_ms);
    assert_eq!(scene.state.queues["a"].trouble, None, "the allocator's own doing");
    let queue = scene.state.queues.get_mut("a").expect("a queue");
    (queue.min_nodes, queue.max_nodes) = (0, 0);
    assert_eq!(numbers(scene.plan(&[client(1)])), [scene.listed[0].number.clone()]);
}
