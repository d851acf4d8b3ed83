//! The escape corpus in virtual machines. `hotlease sandbox test --kind microvm` makes all attempts; here one machine
//! makes all attempts that can share one, which are nearly all, and two attempts have a machine each: a flood of
//! memory, which is the limit that a machine adds, and a flood of processes.

use crate::Machines;
use serde_json::Value;

/// Attempts that are not made here: each needs a machine of its own.
const ALONE: [&str; 3] = ["flood-", "outlive-", "leave-"];

#[test]
fn nothing_escapes_from_a_machine() {
    let Some(machines) = Machines::take() else {
        return;
    };
    let listed = std::process::Command::new(hotlease_tests::platform::program("hotlease-escape"))
        .arg("list")
        .output()
        .expect("hotlease-escape runs");
    let listed = String::from_utf8(listed.stdout).expect("text");
    let names = listed.lines().filter_map(|line| line.split_once('\t'));
    let names: Vec<&str> = names
        .map(|(name, _)| name)
        .filter(|name| !ALONE.iter().any(|alone| name.starts_with(alone)))
        .chain(["flood-memory-files", "flood-processes"])
        .collect();
    let mut arguments = vec!["sandbox", "test", "--kind", "microvm", "--json"];
    arguments.extend(names.iter().flat_map(|name| ["--only", name]));
    let output = machines.command(&arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}: {errors}")))
        .collect();
    let of = |verdict: &str| -> Vec<String> {
        let rows = rows.iter().filter(|row| row["verdict"] == verdict);
        rows.map(|row| format!("{}: {}", row["attempt"], row["how"])).collect()
    };
    let faults = [of("escaped"), of("failed")].concat();
    assert!(faults.is_empty() && output.status.success(), "{faults:#?}: {errors}");
    let contained = of("contained").len();
    assert!(
        contained >= 60,
        "only {contained} attempts were made: {:#?}",
        of("untried")
    );
    eprintln!("untried here: {:#?}", of("untried"));
    eprintln!("{}", rows.last().expect("totals"));
}

#[test]
fn no_tenant_finds_data_of_an_ended_machine() {
    let Some(machines) = Machines::take() else {
        return;
    };
    let output = machines.command(&["sandbox", "hand-over", "--kind", "microvm", "--times", "2", "--json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&answer["found"], &answer["times"]),
        (&Value::Array(Vec::new()), &2.into())
    );
}
