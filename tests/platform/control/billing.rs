//! Billing: all usage is billed once and whole, whichever process dies in between.

use hotlease_client::LeaseOptions;
use hotlease_journal::{JOURNAL_FILE, TotalsTable, read};
use hotlease_lease::ledger::{covers, sum};
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, Platform};
use hotlease_tests::wait::until_true;
use hotlease_wire::session::UsageTotals;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

fn used(row: &Value) -> UsageTotals {
    let number = |name: &str| row[name].as_u64().unwrap_or_else(|| panic!("{name} of {row}"));
    UsageTotals {
        allocated_ns: number("allocated_ns"),
        hot_ns: number("hot_ns"),
        compute_ns: number("compute_ns"),
        invocations: number("invocations"),
    }
}

/// Billed usage by lease.
fn bill(platform: &Platform) -> BTreeMap<String, UsageTotals> {
    let rows = platform.json(&["bill", "--by", "lease"]).into_iter();
    rows.map(|row| (row["lease"].as_str().expect("an id").to_owned(), used(&row)))
        .collect()
}

/// Usage in the agent's journal, by lease.
fn journal(platform: &Platform) -> BTreeMap<String, UsageTotals> {
    let path = platform.directory().join("state/agent").join(JOURNAL_FILE);
    let (table, _) = TotalsTable::recover(&read(&path).expect("a journal"));
    let acknowledged = table.acknowledged().map(|(key, entry)| (key.1, entry.usage));
    let waiting = table.waiting().map(|(key, entry)| (key.1, entry.usage));
    acknowledged
        .chain(waiting)
        .map(|(lease, usage)| (lease.to_string(), usage))
        .collect()
}

/// Waits until the manager has taken all usage, and its verification finds no error.
fn until_settled(platform: &Platform) {
    until_true("the manager has all usage", LIMIT, || {
        platform.json(&["bill", "verify"])[0]["journal"]["waiting"] == 0
    });
}

#[test]
fn usage_that_a_client_was_told_is_billed_after_kill_9_of_everything() {
    let mut platform = Platform::start();
    let mut told = UsageTotals::default();
    for round in 0..3 {
        let invoker = platform.invoker("behaved");
        let echo = invoker.function("echo").unwrap();
        for _ in 0..50 {
            echo.call(b"hello").unwrap();
        }
        told = sum(told, invoker.deallocate().unwrap());
        platform.kill();
        platform.nothing_runs(LIMIT);
        platform.up_again();
        until_settled(&platform);
        let billed = bill(&platform)
            .values()
            .fold(UsageTotals::default(), |all, one| sum(all, *one));
        assert_eq!(billed, told, "after round {round}");
    }
}

#[test]
fn the_bill_matches_the_journal_whenever_the_agent_is_killed() {
    let mut platform = Platform::start();
    let mut written = BTreeMap::new();
    for seed in 0..6 {
        let mut random = StdRng::seed_from_u64(seed);
        let invoker = platform.invoker_with(
            "behaved",
            LeaseOptions {
                replace_lease: false,
                ..platform.lease_options()
            },
        );
        let calling = std::thread::spawn(move || {
            let echo = invoker.function("echo").unwrap();
            while echo.call(b"hello").is_ok() {}
        });
        std::thread::sleep(Duration::from_millis(random.random_range(0..900)));
        platform.kill();
        calling.join().unwrap();
        platform.nothing_runs(LIMIT);
        written.extend(journal(&platform));
        platform.up_again();
        until_settled(&platform);
        let billed = bill(&platform);
        for (lease, usage) in &written {
            // A heartbeat may be newer than the last journal record of a lease that was running.
            let known = billed.get(lease).copied().unwrap_or_default();
            assert!(
                covers(known, *usage),
                "seed {seed}: lease {lease} is billed {known:?} and used {usage:?}"
            );
        }
    }
    assert!(
        written.values().any(|usage| usage.invocations > 0),
        "nothing was called"
    );
}

#[test]
fn bills_are_grouped_filtered_priced_and_exported() {
    let platform = Platform::start();
    let path = library("behaved");
    let path = path.to_str().unwrap();
    for job in ["41", "42", "42"] {
        let mut run = platform.hotlease(&["run", path, "count", "--repeat", "20"]);
        let output = run.env("HOTLEASE_JOB", job).output().unwrap();
        assert!(output.status.success());
    }
    until_settled(&platform);
    until_true("all leases are billed", LIMIT, || {
        bill(&platform).values().map(|usage| usage.invocations).sum::<u64>() == 60
    });
    let jobs = platform.json(&["bill", "--by", "job"]);
    let calls: Vec<_> = jobs
        .iter()
        .map(|row| (row["job"].as_str().unwrap(), row["invocations"].as_u64()))
        .collect();
    assert_eq!(calls, [("41", Some(20)), ("42", Some(40))]);
    let one = platform.json(&["bill", "--job", "42", "--since", "2h"]);
    assert_eq!((one.len(), &one[0]["leases"]), (1, &Value::from(2)));
    assert!(platform.json(&["bill", "--until", "2020-01-01"]).is_empty());
    assert!(platform.json(&["bill", "--tenant", "uid:4242"]).is_empty());

    // One unit for each hour of computing or polling, to nine places.
    let all = &platform.json(&["bill"])[0];
    let usage = used(all);
    let hours = |ns: u64| (ns as u128 * 1_000_000_000 + 1_800_000_000_000) / 3_600_000_000_000;
    let cost = hours(usage.compute_ns) + hours(usage.hot_ns);
    assert_eq!(all["cost"], format!("0.{cost:09}"), "{all}");

    let csv = platform.run(&["bill", "--by", "lease", "--csv"]);
    let csv = String::from_utf8(csv.stdout).unwrap();
    assert!(csv.starts_with("tenant,job,lease,"), "{csv}");
    assert_eq!(csv.lines().count(), 4, "{csv}");
    let table = String::from_utf8(platform.run(&["bill"]).stdout).unwrap();
    assert!(table.contains("total 0.") && table.contains("core-hours"), "{table}");
}

/// Slurm's own program needs a database; here a stand-in prints the output of that program.
#[test]
fn leased_hours_of_an_account_stand_beside_those_of_its_jobs_or_the_bill_says_why_not() {
    let platform = Platform::start();
    let path = library("behaved");
    let output = platform.run(&["run", path.to_str().unwrap(), "count", "--repeat", "20"]);
    assert!(output.status.success());
    until_true("the lease is billed", LIMIT, || {
        bill(&platform).values().any(|usage| usage.invocations == 20)
    });
    let tenant = platform.json(&["bill"])[0]["tenant"].as_str().unwrap().to_owned();
    let bin = tempfile::tempdir().unwrap();
    let sreport = |script: &str| {
        let program = bin.path().join("sreport");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", bin.path().display(), std::env::var("PATH").unwrap());
        let mut command = platform.hotlease(&["bill", "--by", "account", "--since", "2h", "--json"]);
        let output = command.env("PATH", path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let row: Value = serde_json::from_slice(&output.stdout).expect("one object");
        (row, String::from_utf8(output.stderr).unwrap())
    };
    let (row, errors) = sreport(&format!(
        "echo 'root||7200'; echo '{tenant}||5400'; echo '{tenant}|alice|5400'"
    ));
    assert_eq!(
        (&row["account"], &row["invocations"], &row["slurm_core_hours"]),
        (&tenant.as_str().into(), &20.into(), &1.5.into()),
        "{row}"
    );
    assert_eq!(errors, "");
    let (row, errors) = sreport("echo 'sreport: error: Problem talking to the database' >&2; exit 1");
    assert_eq!(
        (&row["invocations"], &row["slurm_core_hours"]),
        (&20.into(), &Value::Null)
    );
    assert!(
        errors.contains("Problem talking to the database") && errors.contains("slurmdbd"),
        "{errors}"
    );
}

/// Billed usage by function, and the row of usage that belongs to no function.
fn by_function(platform: &Platform, more: &[&str]) -> (BTreeMap<String, UsageTotals>, Option<UsageTotals>) {
    let mut rows = BTreeMap::new();
    for row in platform.json(&[&["bill", "--by", "function"], more].concat()) {
        let name = row["function"].as_str().expect("a name").to_owned();
        assert!(rows.insert(name, used(&row)).is_none(), "a function has one row: {row}");
    }
    let rest = rows.remove("");
    (rows, rest)
}

#[test]
fn each_function_is_billed_for_its_own_calls_even_if_processes_are_killed() {
    let mut platform = Platform::start();
    let mut calls = BTreeMap::from([("echo".to_owned(), 0), ("count".to_owned(), 0)]);
    for round in 1..=2 {
        let invoker = platform.invoker("behaved");
        for (name, times) in [("echo", 30), ("count", 12)] {
            let function = invoker.function(name).unwrap();
            for _ in 0..times {
                function.call(b"hello").unwrap();
            }
            *calls.get_mut(name).expect("named") += times;
        }
        // A missing function, or a function that fails, adds nothing to another function's row.
        assert!(invoker.function("no_such_function").is_err());
        invoker.deallocate().unwrap();
        platform.kill();
        platform.nothing_runs(LIMIT);
        platform.up_again();
        until_settled(&platform);
        let (functions, rest) = by_function(&platform, &[]);
        let counted: BTreeMap<_, _> = functions
            .iter()
            .map(|(name, usage)| (name.clone(), usage.invocations))
            .collect();
        assert_eq!(counted, calls, "after round {round}");
        let rest = rest.expect("what no function used");
        let all = functions.values().fold(rest, |all, one| sum(all, *one));
        assert_eq!(all, used(&platform.json(&["bill"])[0]), "the rows are the whole bill");
        assert_eq!(rest.invocations, 0);
        assert!(
            functions
                .values()
                .all(|usage| usage.compute_ns > 0 && usage.allocated_ns == 0)
        );
    }
    let hash = hotlease_wire::ids::CodeHash::of(&fs::read(library("behaved")).unwrap()).to_string();
    let rows = platform.json(&["bill", "--by", "function", "--since", "2h"]);
    let libraries: Vec<_> = rows
        .iter()
        .filter(|row| row["function"] != "")
        .map(|row| &row["library"])
        .collect();
    assert_eq!(libraries, [hash.as_str(), hash.as_str()]);
    let unbilled = by_function(&platform, &["--job", "no-such-job"]);
    assert_eq!(unbilled, (BTreeMap::new(), None));
    let csv = platform.run(&["bill", "--by", "function", "--csv"]);
    let csv = String::from_utf8(csv.stdout).unwrap();
    assert!(
        csv.lines()
            .next()
            .is_some_and(|heading| heading.ends_with(",function,library")),
        "{csv}"
    );
    assert_eq!(csv.lines().filter(|line| line.ends_with(&hash)).count(), 2, "{csv}");
    let table = String::from_utf8(platform.run(&["bill", "--by", "function"]).stdout).unwrap();
    assert!(table.contains("FUNCTION") && table.contains("(no function)"), "{table}");
}

#[test]
fn functions_of_a_running_lease_are_billed_while_it_runs() {
    let platform = Platform::start();
    let invoker = platform.invoker("behaved");
    let echo = invoker.function("echo").unwrap();
    for _ in 0..7 {
        echo.call(b"hello").unwrap();
    }
    until_true("its calls are on the bill", LIMIT, || {
        let (functions, _) = by_function(&platform, &[]);
        functions.get("echo").is_some_and(|usage| usage.invocations > 0)
    });
    invoker.deallocate().unwrap();
    until_true("all of them", LIMIT, || {
        by_function(&platform, &[]).0["echo"].invocations == 7
    });
}

#[test]
fn an_agent_that_wrote_down_less_than_is_billed_is_found() {
    let platform = Platform::start();
    platform.invoker("behaved").deallocate().unwrap();
    until_settled(&platform);
    let path = platform.directory().join("state/agent").join(JOURNAL_FILE);
    let copy = platform.directory().join("copy.journal");
    // Writes the same journal with smaller totals under valid checksums.
    let bytes = read(&path).unwrap();
    let mut forged = Vec::new();
    for frame in bytes.chunks_exact(hotlease_journal::frame::FRAME_BYTES) {
        let frame = frame.try_into().unwrap();
        if hotlease_journal::frame::FunctionRecord::decode(frame).is_some() {
            forged.extend_from_slice(frame);
            continue;
        }
        let mut record = hotlease_journal::frame::TotalRecord::decode(frame).expect("a whole journal");
        record.usage.allocated_ns /= 2;
        forged.extend(record.encode());
    }
    fs::write(&copy, forged).unwrap();
    let output = platform.run(&["bill", "verify", "--journal", copy.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("WRONG: lease"), "{text}");
}

#[test]
fn a_function_that_is_billed_for_more_than_was_written_down_is_found() {
    let platform = Platform::start();
    let invoker = platform.invoker("behaved");
    invoker.function("echo").unwrap().call(b"x").unwrap();
    invoker.deallocate().unwrap();
    until_settled(&platform);
    let path = platform.directory().join("state/agent").join(JOURNAL_FILE);
    let copy = platform.directory().join("copy.journal");
    let mut forged = Vec::new();
    let mut functions = 0;
    for frame in read(&path).unwrap().chunks_exact(hotlease_journal::frame::FRAME_BYTES) {
        let frame = frame.try_into().unwrap();
        match hotlease_journal::frame::FunctionRecord::decode(frame) {
            Some(mut record) => {
                record.used.compute_ns /= 2;
                forged.extend(record.encode());
                functions += 1;
            }
            None => forged.extend_from_slice(frame),
        }
    }
    assert!(functions > 0, "its function was written down");
    fs::write(&copy, forged).unwrap();
    let output = platform.run(&["bill", "verify", "--journal", copy.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("WRONG: function echo of lease"), "{text}");
}

#[test]
fn a_backup_of_a_running_platform_is_restored_after_it_stopped() {
    let mut platform = Platform::start();
    let run = |platform: &Platform| {
        let invoker = platform.invoker("behaved");
        invoker.function("echo").unwrap().call(b"x").unwrap();
        invoker.deallocate().unwrap();
        until_settled(platform);
    };
    run(&platform);
    let kept = platform.directory().join("kept.db");
    let kept = kept.to_str().unwrap();
    let made = platform.json(&["admin", "backup", kept]);
    assert_eq!(made[0]["rows"], 1, "{made:?}");
    let before = bill(&platform);
    run(&platform);
    assert_eq!(bill(&platform).len(), 2);
    let refused = platform.run(&["admin", "restore", kept]);
    assert_eq!(refused.status.code(), Some(5), "a ledger in use was replaced");
    assert!(platform.stop().success());
    let restored = platform.json(&["admin", "restore", kept]);
    assert!(restored[0]["replaced"].is_string(), "{restored:?}");
    platform.up_again();
    assert_eq!(bill(&platform), before);
}

#[test]
fn state_is_refused_where_others_could_touch_it() {
    let platform = Platform::start();
    let state = platform.directory().join("open");
    fs::create_dir(&state).unwrap();
    let manager = state.join("manager");
    fs::create_dir(&manager).unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&manager, fs::Permissions::from_mode(0o755)).unwrap();
    let elsewhere = hotlease_tests::platform::private_directory();
    let mut up = platform.hotlease(&["manager", "--state-dir", state.to_str().unwrap()]);
    let output = up.env("HOTLEASE_RUNTIME_DIR", elsewhere.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("its mode must be 0700"), "{text}");
    // Fails as well where another manager works.
    let used = platform.directory().join("state");
    let mut second = platform.hotlease(&["manager", "--state-dir", used.to_str().unwrap()]);
    let output = second.env("HOTLEASE_RUNTIME_DIR", elsewhere.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{text}");
}
