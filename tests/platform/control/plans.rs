//! `hotlease comm plan`, `explain` and `simulate`: steps and cost of collectives, without a platform.

use hotlease_tests::platform::program;
use serde_json::Value;
use std::process::{Command, Output};

fn comm(arguments: &[&str]) -> Output {
    let mut command = Command::new(program("hotlease"));
    command.arg("comm").args(arguments).output().unwrap()
}

fn text(arguments: &[&str]) -> String {
    let output = comm(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn objects(arguments: &[&str]) -> Vec<Value> {
    let text = text(&[arguments, &["--json"]].concat());
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const ALLREDUCE: [&str; 6] = ["--ranks", "32", "--size", "1MiB", "--op", "allreduce"];

#[test]
fn a_plan_prices_each_link_and_chooses_one() {
    let plan = |by: &str| objects(&[&["plan", "--by", by], &ALLREDUCE[..]].concat());
    for by in ["time", "price", "product"] {
        let rows = plan(by);
        let links: Vec<&str> = rows.iter().map(|row| row["link"].as_str().unwrap()).collect();
        assert_eq!(links, ["tcp", "redis", "s3", "dynamodb"]);
        let number = |row: &Value, field: &str| row[field].as_f64().unwrap();
        let measure = |row: &Value| match by {
            "product" => number(row, "seconds") * number(row, "price"),
            "time" => number(row, "seconds"),
            field => number(row, field),
        };
        let chosen: Vec<&Value> = rows.iter().filter(|row| row["chosen"] == true).collect();
        let [chosen] = chosen[..] else {
            panic!("{chosen:?}");
        };
        for row in &rows {
            assert!(measure(chosen) <= measure(row), "by {by}: {chosen}, and {row}");
            let parts = ["functions", "servers", "requests"].map(|part| number(row, part));
            let sum: f64 = parts.iter().sum();
            assert!((sum / number(row, "price") - 1.0).abs() < 1e-9, "{row}");
            let waits = number(row, "seconds") * 32.0 * 2.0 * 0.0000166667;
            assert!((parts[0] / waits - 1.0).abs() < 1e-9, "32 functions of 2 GiB: {row}");
        }
    }
    let shown = text(&[&["plan"], &ALLREDUCE[..]].concat());
    assert!(
        shown.starts_with("allreduce of 1.00 MiB by 32 ranks, functions of 2.00 GiB; prices: USD for a million\n"),
        "{shown}"
    );
    assert!(shown.ends_with("by price: tcp\n"), "{shown}");
}

#[test]
fn a_plan_takes_prices_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prices.toml");
    let built_in = include_str!("../../../crates/collectives/src/model/prices.toml");
    let dearer = built_in.replace("gib_second_price = 0.0000166667", "gib_second_price = 1.0");
    assert_ne!(built_in, dearer);
    std::fs::write(&file, dearer).unwrap();
    let plan = ["plan", "--memory", "1GiB", "--prices", file.to_str().unwrap()];
    let row = &objects(&[&plan, &ALLREDUCE[..]].concat())[0];
    let functions = row["seconds"].as_f64().unwrap() * 32.0;
    assert!(
        (row["functions"].as_f64().unwrap() / functions - 1.0).abs() < 1e-9,
        "{row}"
    );

    std::fs::write(&file, built_in.replace("latency_us", "latency")).unwrap();
    let output = comm(&[&plan, &ALLREDUCE[..]].concat());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("prices.toml: the prices: ") && error.contains("unknown field `latency`"),
        "{error}"
    );
}

#[test]
fn an_explanation_says_why_what_else_and_what_a_rank_does() {
    let shown = text(&[
        "explain",
        "--ranks",
        "4",
        "--size",
        "16",
        "--op",
        "allreduce",
        "--rank",
        "1",
    ]);
    for part in [
        "allreduce of 16 bytes by 4 ranks over tcp: recursive-doubling\n",
        "  recursive-doubling, for up to 16384 bytes: yes\n",
        "ALGORITHM",
        "rank 1, in elements of 8 bytes:\n  round 1\n    send ",
        "    then output[0..2] = ",
    ] {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    let shared = [
        "explain",
        "--ranks",
        "8",
        "--size",
        "64KiB",
        "--op",
        "allreduce",
        "--nodes",
        "0,0,0,0,1,1,1,1",
    ];
    let [answer] = &objects(&shared)[..] else {
        panic!("one object");
    };
    let algorithms = answer["algorithms"].as_array().unwrap();
    let chosen: Vec<&Value> = algorithms.iter().filter(|row| row["chosen"] == true).collect();
    assert_eq!(chosen.len(), 1, "{answer}");
    assert_eq!(chosen[0]["algorithm"], "rabenseifner between nodes", "{answer}");
    assert_eq!(
        algorithms.len(),
        10,
        "five, between all ranks and between nodes: {answer}"
    );
    assert_eq!(answer["rounds"], Value::Array(Vec::new()));
}

#[test]
fn links_are_named_as_members_are_given_them() {
    let plan = |links| {
        objects(&[
            "plan",
            "--ranks",
            "4",
            "--op",
            "allreduce",
            "--size",
            "64K",
            "--links",
            links,
        ])
    };
    assert_eq!(
        plan("direct,redis://cache:6379/2,s3://bucket?region=here"),
        plan("tcp,redis,s3")
    );
}

#[test]
fn ten_thousand_ranks_are_simulated_where_they_may_be_the_fastest() {
    let rows = objects(&[
        "simulate",
        "--ranks",
        "10000",
        "--op",
        "allgather",
        "--size",
        "8K",
        "--latency",
        "16us",
        "--bandwidth",
        "1G",
    ]);
    assert_eq!(rows[0]["algorithm"], "bruck", "{rows:?}");
    // A hundred million messages each; sending the messages of one rank alone would take a thousand times as long.
    assert_eq!(
        rows[0]["not_simulated"],
        serde_json::json!(["ring", "linear"]),
        "{rows:?}"
    );
}

#[test]
fn a_simulation_names_the_fastest() {
    let barrier = [
        "simulate",
        "--ranks",
        "1000",
        "--op",
        "barrier,allreduce",
        "--size",
        "8,1M",
    ];
    let rows = objects(&[&barrier[..], &["--latency", "16us", "--bandwidth", "1G"]].concat());
    let fastest: Vec<&str> = rows.iter().map(|row| row["algorithm"].as_str().unwrap()).collect();
    assert_eq!(fastest.len(), 3, "{rows:?}");
    assert_eq!(fastest[..2], ["dissemination", "recursive-doubling"], "{rows:?}");
    let seconds = rows[0]["seconds"].as_f64().unwrap();
    assert!((seconds / 160e-6 - 1.0).abs() < 1e-3, "ten steps of 16 us: {seconds}");
}

#[test]
fn invalid_arguments_of_plan_are_named() {
    for (arguments, status, expected) in [
        (
            vec!["plan", "--ranks", "4", "--op", "allreduce"],
            2,
            "allreduce needs a `--size`",
        ),
        (
            vec!["plan", "--ranks", "4", "--op", "allred", "--size", "8"],
            2,
            "there is no operation `allred`",
        ),
        (
            vec!["plan", "--ranks", "0", "--op", "barrier"],
            2,
            "0 is not in 1..=100000",
        ),
        (
            vec!["plan", "--ranks", "4", "--op", "barrier", "--links", "udp"],
            2,
            "there is no link `udp`",
        ),
        (
            vec!["plan", "--ranks", "4", "--op", "barrier", "--by", "luck"],
            2,
            "not by `luck`",
        ),
        (
            vec!["plan", "--ranks", "4", "--op", "reduce", "--size", "8", "--root", "4"],
            2,
            "the root is rank 4, but there are 4 ranks",
        ),
        (
            vec![
                "plan", "--ranks", "4", "--op", "scan", "--size", "8G", "--table", "/nowhere",
            ],
            1,
            "cannot read /nowhere",
        ),
        (
            vec!["explain", "--ranks", "4", "--op", "barrier", "--rank", "4"],
            2,
            "ranks are from 0 to 3",
        ),
        (
            vec!["explain", "--ranks", "4", "--op", "barrier", "--nodes", "0,1"],
            2,
            "the nodes of 2 ranks are given",
        ),
        (
            vec!["explain", "--ranks", "4", "--op", "barrier", "--link", "ofi"],
            1,
            "the prices say nothing about ofi",
        ),
        (
            vec!["plan", "--ranks", "4", "--op", "barrier", "--links", "redis://"],
            2,
            "it names no host",
        ),
        (vec!["simulate", "--latency", "16us"], 2, "--bandwidth"),
    ] {
        let output = comm(&arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {error}");
        assert!(
            error.contains(expected),
            "{arguments:?}: {error:?} does not say {expected:?}"
        );
    }
}
