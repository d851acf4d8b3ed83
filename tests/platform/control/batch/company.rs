//! Leases beside batch jobs that the site's policy gives company. Folders stand for control groups.

use super::Node;
use hotlease_client::Error;
use hotlease_tests::hosts::Host;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::process::cores;
use hotlease_tests::wait::until_true;
use hotlease_wire::EndReason;
use hotlease_wire::ids::JobId;
use nix::sys::signal::Signal;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const POLICY: &str = "ended-after = \"1s\"\n[keep]\nmemory = \"0\"\n[[company]]\nusers = [\"ada\"]\n";

/// Folders that look like control groups of version 1, and the policy.
struct Site(TempDir);

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("policy.toml"), POLICY).expect("a file");
        fs::create_dir(folder.path().join("groups")).expect("a folder");
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn arguments(&self) -> [String; 4] {
        let (policy, groups) = (self.path("policy.toml"), self.path("groups"));
        ["--batch-policy".into(), policy, "--batch-groups".into(), groups]
    }

    /// Writes a job's control groups as Slurm does when the job starts or its cores change: each file at once.
    fn group(&self, job: u64, cores: &[u32]) {
        let cores: Vec<String> = cores.iter().map(u32::to_string).collect();
        for (hierarchy, file, text) in [
            ("memory", "memory.limit_in_bytes", "67108864\n".to_owned()),
            ("cpuset", "cpuset.cpus", format!("{}\n", cores.join(","))),
        ] {
            let folder = self.path(&format!("groups/{hierarchy}/slurm/uid_0/job_{job}"));
            fs::create_dir_all(&folder).expect("a folder");
            let (new, file) = (Path::new(&folder).join("new"), Path::new(&folder).join(file));
            fs::write(&new, text).expect("a file");
            fs::rename(new, file).expect("a file");
        }
    }

    fn end_group(&self, job: u64) {
        for hierarchy in ["cpuset", "memory"] {
            let folder = self.path(&format!("groups/{hierarchy}/slurm/uid_0/job_{job}"));
            fs::remove_dir_all(folder).expect("a folder");
        }
    }

    fn node(&self) -> Node {
        Node::start_with(&self.arguments().each_ref().map(String::as_str))
    }

    fn agent(&self, host: &Host) -> hotlease_tests::site::Daemon {
        Node::agent(host, &self.arguments().each_ref().map(String::as_str))
    }
}

/// Waits until the agent gives a job these cores, or the whole node.
fn until_share(node: &Node, job: u64, cores: Option<&[u32]>) {
    until_true(&format!("job {job} has {cores:?}"), LIMIT, || {
        let status = node.status();
        let of_job = status["jobs"]
            .as_array()
            .expect("a list")
            .iter()
            .find(|row| row["job"] == job)
            .cloned();
        of_job.is_some_and(|row| match cores {
            None => row["whole"] == true,
            Some(cores) => row["whole"] == false && row["cores"] == serde_json::json!(cores),
        })
    });
}

/// Two cores. Prints a reason and returns `None` if the machine has one core.
fn two_cores() -> Option<(u32, u32)> {
    let cores = cores();
    let two = cores.first().zip(cores.get(1));
    if two.is_none() {
        eprintln!("skipped: this machine has one core");
    }
    two.map(|(first, second)| (*first, *second))
}

#[test]
fn leases_use_what_a_job_leaves_and_follow_it_as_it_grows_shrinks_and_ends() {
    let Some((first, second)) = two_cores() else { return };
    let site = Site::new();
    let node = site.node();
    node.tell("yield", 17);
    until_share(&node, 17, None);
    assert!(node.lease("behaved").is_err(), "its control group is not there");
    site.group(17, &[first]);
    until_share(&node, 17, Some(&[first]));
    node.serves();
    let (_invoker, call) = node.looping();
    // The job grows.
    site.group(17, &[first, second]);
    let told = call.wait().expect_err("it never returns");
    let is_told = matches!(
        &told,
        Error::LeaseEnded {
            reason: EndReason::BatchJob(JobId(17)),
            ..
        }
    );
    assert!(is_told, "{told:?}");
    assert!(node.lease("behaved").is_err(), "the job has both cores");
    // The job shrinks, and another job arrives: the new job has the node until its own group exists.
    site.group(17, &[second]);
    node.serves();
    node.tell("yield", 18);
    assert!(node.lease("behaved").is_err(), "job 18 may use all cores");
    site.group(18, &[second]);
    until_share(&node, 18, Some(&[second]));
    node.serves();
    // No epilog arrives for this job; after the other job's epilog, its group remains for a while.
    site.end_group(18);
    until_true("job 18 has ended", LIMIT, || {
        node.status()["jobs"].as_array().is_some_and(|jobs| jobs.len() == 1)
    });
    node.tell("retake", 17);
    node.serves();
    assert_eq!(node.status()["jobs"], serde_json::json!([]));
}

/// Slurm here makes no control groups: the test does, when the job runs.
#[test]
fn a_job_of_slurm_has_company_by_the_word_of_its_comment() {
    let Some((first, _)) = two_cores() else { return };
    let site = Site::new();
    let rule = "[keep]\nmemory = \"0\"\n[[company]]\npartitions = [\"main\"]\ncomment = \"hotlease\"\nnodes-max = 1\n";
    fs::write(site.path("policy.toml"), rule).expect("a file");
    let node = site.node();
    let Some(slurm) = node.slurm() else { return };
    for (comment, share) in [("run 7, hotlease", Some(&[first][..])), ("run 8", None)] {
        let job = slurm.submit(&["--comment", comment], "sleep 600");
        // Slurm makes a group after the prolog; a job counts as running before.
        until_share(&node, job, None);
        site.group(job, &[first]);
        until_share(&node, job, share);
        match share {
            Some(_) => node.serves(),
            None => assert!(node.lease("behaved").is_err(), "the job has the node"),
        }
        slurm.run("scancel", &[&job.to_string()]).expect("it ends");
        until_true("its epilog has come", LIMIT, || {
            node.status()["jobs"] == serde_json::json!([])
        });
        site.end_group(job);
        node.serves();
    }
}

#[test]
fn an_agent_that_starts_beside_jobs_offers_only_what_they_leave() {
    let Some((first, _)) = two_cores() else { return };
    let site = Site::new();
    let mut node = site.node();
    node.tell("yield", 17);
    site.group(17, &[first]);
    until_share(&node, 17, Some(&[first]));
    let restart = |node: &mut Node| {
        node.agent.process().signal(Signal::SIGKILL);
        node.agent.ended(LIMIT);
        node.agent = site.agent(&node.host);
    };
    restart(&mut node);
    let status = node.status();
    assert_eq!(
        status["jobs"][0]["cores"],
        serde_json::json!([first]),
        "not at its first look: {status}"
    );
    node.serves();
    // A job without a prolog.
    site.group(99, &[first]);
    until_share(&node, 99, None);
    restart(&mut node);
    let status = node.status();
    assert_eq!(status["jobs"][1]["whole"], true, "{status}");
    assert!(
        node.lease("behaved").is_err(),
        "a job of which nothing is known has the node"
    );
    site.end_group(99);
    node.serves();
}
