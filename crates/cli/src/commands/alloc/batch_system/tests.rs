use super::*;

fn system(name: &str) -> BatchSystem {
    BatchSystem::of(name, None).expect("a description")
}

/// Number, name, phase and reason of the jobs in an output.
fn jobs(name: &str, output: &str) -> Vec<(String, String, Option<JobPhase>, String)> {
    let listed = system(name).jobs(output).into_iter();
    listed
        .map(|job| (job.number, job.name, job.phase, job.reason))
        .collect()
}

fn job(number: &str, name: &str, phase: JobPhase, reason: &str) -> (String, String, Option<JobPhase>, String) {
    (number.to_owned(), name.to_owned(), Some(phase), reason.to_owned())
}

#[test]
fn jobs_of_slurm_are_told_apart() {
    let slurm = system("slurm");
    let phase = |line: &str| slurm.listed(line).map(|job| (job.phase, job.reason));
    for (line, expected, reason) in [
        ("17|PENDING|Priority|hotlease-a-1", JobPhase::Pending, "Priority"),
        ("17|PENDING|JobHeldAdmin|hotlease-a-1", JobPhase::Held, "JobHeldAdmin"),
        (
            "17|PENDING|launch failed requeued held|x",
            JobPhase::Held,
            "launch failed requeued held",
        ),
        ("17|PENDING|BeginTime|x", JobPhase::Pending, "BeginTime"),
        ("17|RUNNING|None|x", JobPhase::Running, ""),
        ("17|PREEMPTED|None|x", JobPhase::Preempted, ""),
        ("17|CANCELLED by 0|None|x", JobPhase::Cancelled, ""),
        ("17|FAILED|NonZeroExitCode|x", JobPhase::Failed, "NonZeroExitCode"),
        ("17|NODE_FAIL|None|x", JobPhase::Failed, ""),
        ("17|TIMEOUT|TimeLimit|x", JobPhase::OutOfTime, "TimeLimit"),
        ("17|REQUEUE_HOLD|None|x", JobPhase::Held, ""),
    ] {
        assert_eq!(phase(line), Some((Some(expected), reason.to_owned())), "{line}");
    }
    assert_eq!(phase("17|DREAMING|None|x"), Some((None, String::new())));
    for other in ["", "17", "slurm_load_jobs error"] {
        assert_eq!(phase(other), None, "{other:?}");
    }
    let named = slurm.listed("17_3|RUNNING|None|a name | with a bar").expect("a job");
    assert_eq!(
        (named.number.as_str(), named.name.as_str()),
        ("17_3", "a name | with a bar")
    );
}

#[test]
fn only_the_end_of_a_long_output_is_read() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "line\n".repeat(10_000) + "one\n\ntwo\n").expect("written");
    assert_eq!(last_lines(file.path(), 3), "line; one; two");
    assert_eq!(last_lines(Path::new("/no/output"), 3), "");
}

#[test]
fn time_limits_are_hours_minutes_and_seconds() {
    assert_eq!([59, 3600, 90_061].map(clock_text), ["0:00:59", "1:00:00", "25:01:01"]);
}

#[test]
fn jobs_of_pbs_are_told_apart() {
    // Form of `qstat -x -f -w` in the reference guide of PBS Professional.
    let output = "Job Id: 1234.pbs01\n    Job_Name = hotlease-a-1\n    Job_Owner = me@login1\n    job_state = Q\n    \
                  queue = workq\n    comment = Not Running: Not enough free nodes available\n    Variable_List = \
                  PBS_O_SHELL=/bin/bash,\n\tPBS_O_LANG=C\n\nJob Id: 1235.pbs01\n    Job_Name = hotlease-a-2\n    \
                  job_state = H\n    Hold_Types = u\n\nJob Id: 1236.pbs01\n    Job_Name = hotlease-a-3\n    job_state = R\n\n\
                  Job Id: 1237.pbs01\n    Job_Name = hotlease-a-4\n    job_state = F\n    Exit_status = 0\n\n\
                  Job Id: 1238.pbs01\n    Job_Name = hotlease-a-5\n    job_state = F\n    Exit_status = 1\n\n\
                  Job Id: 1239.pbs01\n    Job_Name = hotlease-a-6\n    job_state = F\n    Exit_status = -29\n\n\
                  Job Id: 1240.pbs01\n    Job_Name = hotlease-a-7\n    job_state = F\n    Exit_status = 271\n\n";
    let expected = [
        (
            "1234",
            "1",
            JobPhase::Pending,
            "Not Running: Not enough free nodes available",
        ),
        ("1235", "2", JobPhase::Held, ""),
        ("1236", "3", JobPhase::Running, ""),
        ("1237", "4", JobPhase::Completed, ""),
        ("1238", "5", JobPhase::Failed, ""),
        ("1239", "6", JobPhase::OutOfTime, ""),
        ("1240", "7", JobPhase::Cancelled, ""),
    ];
    let expected = expected.map(|(number, name, phase, reason)| {
        job(&format!("{number}.pbs01"), &format!("hotlease-a-{name}"), phase, reason)
    });
    assert_eq!(jobs("pbs", output), expected);
    assert_eq!(system("pbs").submit.id.find_in("1234.pbs01\n"), Some("1234.pbs01"));
}

#[test]
fn jobs_of_lsf_are_told_apart() {
    // Form of `bjobs -o` in the command reference of LSF 10.1; empty fields are `-`.
    let output = "101|PEND|-|-|New job is waiting for scheduling|hotlease-a-1\n102|PSUSP|-|-|-|hotlease-a-2\n\
                  103|RUN|-|-|-|hotlease-a-3\n104|DONE|-|-|-|hotlease-a-4\n105|EXIT|1|-|-|hotlease-a-5\n\
                  106|EXIT|140|TERM_RUNLIMIT: job killed after reaching LSF run time limit|-|hotlease-a-6\n\
                  107|EXIT|130|TERM_OWNER: job killed by owner|-|hotlease-a-7\n108|UNKWN|-|-|-|hotlease-a-8\n";
    let mut listed = jobs("lsf", output);
    assert_eq!(listed.pop().expect("a job").2, None, "UNKWN counts as before");
    let phases: Vec<_> = listed.iter().map(|job| job.2.expect("a known state")).collect();
    let expected = [
        JobPhase::Pending,
        JobPhase::Held,
        JobPhase::Running,
        JobPhase::Completed,
        JobPhase::Failed,
        JobPhase::OutOfTime,
        JobPhase::Cancelled,
    ];
    assert_eq!(phases, expected);
    assert_eq!((listed[6].0.as_str(), listed[6].1.as_str()), ("107", "hotlease-a-7"));
    assert_eq!(listed[6].3, "TERM_OWNER: job killed by owner");
    let said = "Job <2812> is submitted to default queue <normal>.\n";
    assert_eq!(system("lsf").submit.id.find_in(said), Some("2812"));
}

#[test]
fn jobs_of_flux_are_told_apart() {
    // Form of `flux jobs --format` in its manual page.
    let output = "f2oHrDC1cB|PENDING||hotlease-a-1\nf2oHrDC1cC|RUNNING||hotlease-a-2\nf2oHrDC1cD|COMPLETED||hotlease-a-3\n\
                  f2oHrDC1cE|TIMEOUT|resource allocation expired|hotlease-a-4\nf2oHrDC1cF|CANCELED||hotlease-a-5\n\
                  ƒ2oHrDC1cG|FAILED|a | b|hotlease-a-6\n";
    let expected = [
        job("f2oHrDC1cB", "hotlease-a-1", JobPhase::Pending, ""),
        job("f2oHrDC1cC", "hotlease-a-2", JobPhase::Running, ""),
        job("f2oHrDC1cD", "hotlease-a-3", JobPhase::Completed, ""),
        job(
            "f2oHrDC1cE",
            "hotlease-a-4",
            JobPhase::OutOfTime,
            "resource allocation expired",
        ),
        job("f2oHrDC1cF", "hotlease-a-5", JobPhase::Cancelled, ""),
        job("ƒ2oHrDC1cG", "hotlease-a-6", JobPhase::Failed, "a | b"),
    ];
    assert_eq!(jobs("flux", output), expected);
    assert_eq!(system("flux").submit.id.find_in("ƒ2oHrDC1cG\n"), Some("ƒ2oHrDC1cG"));
}

#[test]
fn jobs_of_htcondor_are_told_apart() {
    // Numbers of JobStatus in the appendix of HTCondor's manual.
    let output = "7.0|1||hotlease-a-1\n8.0|2||hotlease-a-2\n9.0|4|0|hotlease-a-3\n10.0|4|1|hotlease-a-4\n\
                  11.0|5||hotlease-a-5|The job's | was missing\n12.0|3||hotlease-a-6\n";
    let expected = [
        job("7.0", "hotlease-a-1", JobPhase::Pending, ""),
        job("8.0", "hotlease-a-2", JobPhase::Running, ""),
        job("9.0", "hotlease-a-3", JobPhase::Completed, ""),
        job("10.0", "hotlease-a-4", JobPhase::Failed, ""),
        job("11.0", "hotlease-a-5", JobPhase::Held, "The job's | was missing"),
        job("12.0", "hotlease-a-6", JobPhase::Cancelled, ""),
    ];
    assert_eq!(jobs("htcondor", output), expected);
    assert_eq!(system("htcondor").submit.id.find_in("7.0 - 7.0\n"), Some("7.0"));
}

#[test]
fn a_wrong_description_is_refused_with_its_line_and_the_reason() {
    let good = include_str!("pbs.toml");
    BatchSystem::read(good).expect("a description");
    for (from, to, reason) in [
        ("[cancel]", "[cancle]", "unknown field `cancle`"),
        ("\"@id@\"", "\"@job@\"", "@job@ is no placeholder here"),
        ("(\\S+)", "(\\S+", "unclosed group"),
        ("(\\S+)", "\\S+", "must have one group"),
        ("\"held\"", "\"parked\"", "unknown variant `parked`"),
        ("[\"qdel\", \"@id@\"]", "[]", "must begin with the name of its program"),
    ] {
        let wrong = good.replacen(from, to, 1);
        assert_ne!(wrong, good, "{from} is in the description");
        let error = format!("{:#}", BatchSystem::read(&wrong).expect_err(reason));
        let line = 1 + good[..good.find(from).expect("a place")].matches('\n').count();
        assert!(
            error.contains(reason) && error.contains(&format!("line {line},")),
            "{reason}, line {line}: {error}"
        );
    }
}

#[test]
fn what_stands_for_a_placeholder_stays_in_its_word_and_is_not_read_again() {
    let value = |name: &str| (name == "name").then(|| "a b @name@ $(c)".to_owned());
    assert_eq!(filled("--job=@name@,@", value), "--job=a b @name@ $(c),@");
    assert_eq!(filled("me@host@name@", value), "me@hosta b @name@ $(c)");
}

#[test]
fn an_id_is_no_option_and_no_text() {
    for good in ["17", "17_3", "1234[].pbs01", "7.0", "ƒ2oHrDC1cG"] {
        assert!(is_id(good), "{good}");
    }
    for bad in ["", "-all", "1 2", "1;2", "1\n2", &"1".repeat(ID_MAX + 1)] {
        assert!(!is_id(bad), "{bad}");
    }
}

#[tokio::test]
async fn an_output_without_end_is_an_error() {
    let words = [
        "sh",
        "-c",
        "while :; do echo 0123456789012345678901234567890123456789; done",
    ];
    let error = run(&words.map(str::to_owned)).await.map(|answer| answer.output.len());
    assert!(format!("{:#}", error.expect_err("a bound")).contains("sh printed more than"));
}

#[tokio::test]
async fn a_job_that_ended_before_it_is_cancelled_is_no_error_and_the_others_are_cancelled() {
    let text = r#"
        name = "x"
        states = { R = "running", F = "completed" }
        [submit]
        command = ["true"]
        id = '(.*)'
        [state]
        command = ["printf", '2|F|b\n3|R|c\n4|R|d\n']
        id = '^(\d)'
        state = '^\d\|(.)'
        name = '\|(\w+)$'
        [cancel]
        command = ["sh", "-c", '[ "$0" = 4 ] || { echo "no job $0" >&2; exit 1; }', "@id@"]
        [script]
        start = ""
    "#;
    let jobs = [("1", "a"), ("2", "b"), ("3", "c"), ("4", "d")].map(|(number, name)| ListedJob {
        number: number.to_owned(),
        name: name.to_owned(),
        phase: Some(JobPhase::Running),
        reason: String::new(),
    });
    let system = BatchSystem::read(text).expect("a description");
    // The first is no longer listed, the second has ended, the third runs, and the last one is cancelled.
    assert_eq!(system.cancel_all(&jobs).await, ["job 3: sh: no job 3"]);
}
