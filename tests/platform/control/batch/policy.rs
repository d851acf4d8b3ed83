//! The site's policy: how an agent reads it, and how an operator tries it.

use super::Node;
use hotlease_tests::hosts::Host;
use hotlease_tests::hosts::slurm::Slurm;
use hotlease_tests::platform::{LIMIT, program};
use hotlease_tests::wait::until_true;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

fn write(host: &Host, text: &str) -> PathBuf {
    let file = host.directory().join("policy.toml");
    fs::write(&file, text).expect("a file");
    file
}

fn path(file: &Path) -> &str {
    file.to_str().expect("a path")
}

/// `hotlease node policy check`.
fn check(host: &Host, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = host.command(&program("hotlease"));
    command.args(["node", "policy", "check"]).args(arguments);
    command.envs(variables.iter().copied());
    command.output().expect("hotlease runs")
}

fn objects(output: &Output) -> Vec<serde_json::Value> {
    assert!(output.status.success(), "{output:?}");
    let lines = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).expect("JSON")).collect()
}

#[test]
fn an_agent_keeps_the_last_good_policy_and_says_so() {
    let host = Host::here();
    let file = write(&host, "[[compny]]\n");
    let mut agent = Node::launch_agent(&host, &["--batch-policy", path(&file)]);
    let (status, _) = agent.ended(LIMIT);
    let said = agent.log();
    assert!(!status.success());
    for part in ["policy.toml", "did you mean `company`?", "hotlease node policy check"] {
        assert!(
            said.contains(part),
            "an agent that does not start does not say {part}: {said}"
        );
    }

    write(&host, "[[company]]\npartitions = [\"shared\"]\n");
    let node = Node::start_with(&["--batch-policy", path(&file)]);
    let fault = || node.status()["policy"]["fault"].clone();
    assert!(fault().is_null());
    write(&host, "[[company]]\npartitions = \"shared\"\n");
    until_true("the wrong file is shown", LIMIT, || {
        fault().as_str().is_some_and(|why| why.contains("line 2"))
    });
    assert!(node.agent.log().contains("what was read before stays in use"));
    node.tell("yield", 17);
    let status = node.status();
    assert_eq!(status["jobs"][0]["job"], 17, "{status}");
    assert_eq!(status["jobs"][0]["user"], "ada", "{status}");
    let until_why = |part: &str| {
        until_true(&format!("the reason is that {part}"), LIMIT, || {
            let status = node.status();
            status["jobs"][0]["why"].as_str().is_some_and(|why| why.contains(part))
        });
    };
    // The agent still uses the last valid policy.
    until_why("its partition is not known");
    write(&host, "nodes-max = 2\n");
    until_true("the file is used again", LIMIT, || fault().is_null());
    until_why("no rule gives jobs company");
    node.tell("retake", 17);
    assert_eq!(node.status()["jobs"], serde_json::json!([]));
}

#[test]
fn a_check_explains_a_policy_for_a_job_that_options_describe() {
    let host = Host::here();
    let text = "[[company]]\npartitions = [\"shared\"]\n[[company]]\nnodes-max = 2\nhours = [\"sat\"]\n";
    let file = write(&host, text);
    let nowhere = [("PATH", path(host.directory()))];
    let describe = |arguments: &[&str]| {
        let arguments = [&[path(&file), "--json"], arguments].concat();
        let rows = objects(&check(&host, &arguments, &nowhere));
        let [row] = &rows[..] else { panic!("{rows:?}") };
        (row["company"].as_bool(), row["rule"].as_u64())
    };
    assert_eq!(describe(&["--partition", "shared"]), (Some(true), Some(1)));
    assert_eq!(describe(&["--partition", "shared", "--exclusive"]), (Some(false), None));
    assert_eq!(describe(&["--nodes", "2", "--at", "sat 12:00"]), (Some(true), Some(2)));
    assert_eq!(describe(&["--nodes", "2", "--at", "sun 12:00"]), (Some(false), None));
    assert_eq!(describe(&["--nodes", "3", "--at", "sat 12:00"]), (Some(false), None));
    let output = check(&host, &[path(&file)], &nowhere);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("rule 2: at most 2 nodes; hours sat"), "{said}");
    assert!(said.contains("describe a job by options"), "{said}");
    let file = write(&host, "nodes-max = -3\n");
    let output = check(&host, &[path(&file)], &nowhere);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("nodes-max = -3"), "{said}");
}

#[test]
fn a_check_explains_a_policy_for_the_jobs_of_slurm() {
    let Some(slurm) = Slurm::start(1, 4, |_| String::new()) else {
        return;
    };
    let host = Host::here();
    let file = write(&host, "[[company]]\ncomment = \"hotlease\"\n");
    let alone = slurm.submit(&["--comment", "nothing | else"], "sleep 600");
    let company = slurm.submit(&["--comment", "run 7, hotlease", "--oversubscribe"], "sleep 600");
    for job in [alone, company] {
        slurm.until(job, "RUNNING");
    }
    let conf = slurm.configuration().display().to_string();
    let variables = [("SLURM_CONF", conf.as_str())];
    let rows = objects(&check(&host, &[path(&file), "--json"], &variables));
    let of = |job: u64| rows.iter().find(|row| row["job"] == job).expect("the job");
    assert_eq!(of(alone)["company"], false, "{rows:?}");
    assert_eq!(of(company)["company"], true, "{rows:?}");
    assert_eq!(of(company)["nodes"], 1, "{rows:?}");
    assert_eq!(of(company)["partition"], "main", "{rows:?}");
}
