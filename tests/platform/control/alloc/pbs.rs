//! The shipped description of PBS, with programs that stand in for `qsub`, `qstat`, `qdel` and `pbsdsh`.

use super::{Scene, echo};
use hotlease_client::Invoker;
use hotlease_tests::hosts::Host;
use hotlease_tests::hosts::slurm::Slurm;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::wait::{until, until_true};
use std::fs;

/// Each job is a folder with its name, its process group, and in the end its exit status.
const QSUB: &str = r#"#!/bin/bash
at=$(dirname "$0")
while getopts N:S:j:o:l: option; do
  case $option in N) name=$OPTARG ;; o) output=$OPTARG ;; [Sjl]) ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
number=1
until mkdir "$at/$number" 2>/dev/null; do number=$((number + 1)); done
job=$at/$number
echo "$name" >"$job/name"
run='trap : TERM; bash "$1" >"$2" 2>&1; status=$?; [ ! -e "$3/killed" ] || status=271; echo $status >"$3/new"; mv "$3/new" "$3/exit"'
setsid bash -c "$run" x "$1" "$output" "$job" </dev/null >/dev/null 2>&1 &
echo $! >"$job/group"
echo "$number.standin"
"#;
const QSTAT: &str = r#"#!/bin/bash
for job in "$(dirname "$0")"/[0-9]*/; do
  [ -e "$job/group" ] || continue
  printf 'Job Id: %s.standin\n    Job_Name = %s\n    Job_Owner = me@here\n' "$(basename "$job")" "$(cat "$job/name")"
  if [ -e "$job/exit" ]; then
    printf '    job_state = F\n    queue = workq\n    Exit_status = %s\n\n' "$(cat "$job/exit")"
  else
    printf '    job_state = R\n    queue = workq\n\n'
  fi
done
"#;
const QDEL: &str = r#"#!/bin/bash
job=$(dirname "$0")/${1%.standin}
touch "$job/killed"
kill -TERM -- "-$(cat "$job/group")"
"#;
const PBSDSH: &str = "#!/bin/bash\nshift\nexec \"$@\"\n";

fn scene() -> Scene {
    let host = Host::here();
    let programs = host.directory().join("pbs");
    fs::create_dir(&programs).expect("a folder");
    for (name, text) in [("qsub", QSUB), ("qstat", QSTAT), ("qdel", QDEL), ("pbsdsh", PBSDSH)] {
        Slurm::script(&programs, name, text);
    }
    let path = std::env::var("PATH").expect("a PATH");
    host.set_variable("PATH", format!("{}:{path}", programs.display()));
    Scene::on(host, "pbs")
}

#[test]
fn a_job_of_another_batch_system_serves_and_its_end_and_cancellation_are_seen() {
    let scene = scene();
    let shown = scene.alloc_queue("dry-run", &[]).remove(0);
    let command = shown["command"].as_array().expect("words");
    assert!(
        command.iter().any(|word| word == "select=1:ncpus=1:mpiprocs=1"),
        "{shown}"
    );
    assert_eq!(shown["answer"], serde_json::Value::Null, "PBS cannot check a job");
    scene.add(&["--idle", "2s"]);
    let state = |number: &str, state: &str| {
        until(&format!("job {number} is {state}"), LIMIT, || {
            let queue = scene.queue();
            let jobs = queue["jobs"].as_array()?.clone();
            let job = jobs.into_iter().find(|job| job["job"] == number)?;
            (job["state"] == state).then_some(queue)
        })
        .0
    };
    let call = || {
        let invoker = Invoker::allocate(&echo(), scene.client(LIMIT)).expect("a lease on a node of the batch system");
        assert_eq!(invoker.function("echo").unwrap().call(b"x").unwrap(), b"x");
        invoker
    };
    let invoker = call();
    state("1.standin", "running");
    drop(invoker);
    let queue = state("1.standin", "completed");
    assert_eq!(queue["why"], "", "an agent that ends is no failure: {}", scene.log());
    let invoker = call();
    state("2.standin", "running");
    let removed = scene.alloc(&["rm", "pbs"]);
    assert_eq!(removed[0]["cancelled"][0], "2.standin", "{removed:?}");
    until_true("the agent is gone", LIMIT, || {
        fs::read_to_string(scene.host.directory().join("pbs/2/exit")).is_ok_and(|exit| exit.trim() == "271")
    });
    drop(invoker);
}
