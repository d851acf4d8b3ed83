//! Logs of failed invocations: client and node log the same name.

use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, Platform, PlatformOptions};
use hotlease_tests::wait::until_true;
use serde_json::Value;

fn platform() -> Platform {
    Platform::start_with(PlatformOptions::default())
}

/// The line about a failed call in the client's log.
fn failed_call(platform: &Platform, name: &str, function: &str, more: &[&str]) -> Value {
    let path = library(name);
    let mut run = platform.hotlease(&["run", path.to_str().expect("text"), function]);
    run.args(more);
    run.env("HOTLEASE_LOG", "hotlease_client=debug")
        .env("HOTLEASE_LOG_FORMAT", "json");
    let output = run.output().expect("hotlease runs");
    assert!(!output.status.success(), "{function} fails");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut about = lines.filter(|line| line["message"] == "an invocation failed");
    about
        .next()
        .unwrap_or_else(|| panic!("the client does not name its invocation:\n{text}"))
}

/// Whether a line of the node's log contains all of these texts.
fn is_told(platform: &Platform, parts: &[String]) -> bool {
    platform
        .log()
        .lines()
        .any(|line| parts.iter().all(|part| line.contains(part.as_str())))
}

fn named(told: &Value) -> Vec<String> {
    ["lease", "worker", "epoch", "invocation"]
        .iter()
        .map(|field| {
            format!(
                "{field}={}",
                told[*field].as_str().unwrap_or_else(|| panic!("{field} of {told}"))
            )
        })
        .collect()
}

#[test]
fn an_invocation_that_fails_has_the_same_name_in_both_logs() {
    let platform = platform();
    let told = failed_call(&platform, "behaved", "fails", &[]);
    assert!(
        told["error"].as_str().is_some_and(|error| error.contains("error 7")),
        "{told}"
    );
    let mut parts = named(&told);
    parts.push("code=7".into());
    parts.push("fails".into());
    until_true("the node's log names the invocation", LIMIT, || {
        is_told(&platform, &parts)
    });
}

#[test]
fn an_invocation_in_which_a_worker_died_has_the_same_name_in_both_logs() {
    let platform = platform();
    let told = failed_call(&platform, "misbehaved", "segfault", &[]);
    let mut parts = named(&told);
    parts.push("worker died".into());
    until_true("the node's log names the invocation", LIMIT, || {
        is_told(&platform, &parts)
    });
}
