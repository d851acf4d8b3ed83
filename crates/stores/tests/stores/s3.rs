//! Tests over S3, with versitygw, which serves a folder. Credentials are in the environment, so this program is started
//! again for each test, with credentials.

use crate::operations::hold;
use crate::{communicators, failures, messages};
use hotlease_comm::{LinkChoice, LinkKind};
use std::path::PathBuf;
use std::process::Command;

#[path = "../../../../tests/src/versitygw.rs"]
mod versitygw;

use versitygw::{ACCESS, SECRET, Versitygw};

const BUCKET: &str = "messages";

fn start() -> Option<Versitygw> {
    Versitygw::start(&[BUCKET])
}

/// Runs one of the tests below as a process with this secret.
fn run(s3: &Versitygw, test: &str, secret: &str) {
    run_at(s3, test, secret, BUCKET);
}

fn run_at(s3: &Versitygw, test: &str, secret: &str, bucket: &str) {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args(["--exact", &format!("s3::{test}"), "--ignored", "--nocapture"]);
    let link = format!("s3://{bucket}?endpoint={}", s3.endpoint());
    child.env("HOTLEASE_TEST_LINK", link).env("AWS_REGION", "us-east-1");
    child
        .env("AWS_ACCESS_KEY_ID", ACCESS)
        .env("AWS_SECRET_ACCESS_KEY", secret);
    child.env("HOTLEASE_TEST_PID", s3.pid().to_string());
    let output = child.output().expect("it runs");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let has_run = output.status.success() && out.contains("1 passed");
    assert!(has_run, "{test}: {}\n{out}\n{err}", output.status);
}

/// Link of the process that a test has started; `None` if this process was not started by a test.
fn link() -> Option<LinkChoice> {
    let text = std::env::var("HOTLEASE_TEST_LINK").ok()?;
    Some(text.parse().expect("a link"))
}

fn passes(test: &str) {
    let Some(s3) = start() else { return };
    run(&s3, test, SECRET);
    assert_eq!(s3.objects(BUCKET), Vec::<PathBuf>::new());
}

#[test]
fn every_operation_over_s3_is_as_the_reference_says_and_leaves_nothing() {
    passes("operations");
}

#[test]
#[ignore = "started by another test"]
fn operations() {
    let Some(link) = link() else { return };
    hold(&link, LinkKind::S3, 1..=9, &[1]);
    hold(&link, LinkKind::S3, [1, 3], &[0, 1001]);
}

#[test]
fn messages_through_s3_are_whole_in_order_and_read_by_slow_readers() {
    passes("exchanges");
}

#[test]
#[ignore = "started by another test"]
fn exchanges() {
    let Some(link) = link() else { return };
    messages::sizes(&link, &[0, 1, 65_537, 8 << 20, (8 << 20) + 1]);
    messages::rules(&link);
    messages::many(&link, 20);
    messages::early_end(&link, 20);
    messages::unread(&link);
    messages::two_communicators(&link);
}

#[test]
fn communicators_split_and_end_over_s3_shrink_and_grow() {
    passes("parts");
    let Some(s3) = start() else { return };
    run(&s3, "rest", SECRET);
}

#[test]
#[ignore = "started by another test"]
fn parts() {
    let Some(link) = link() else { return };
    communicators::parts(&link);
    communicators::leaving(&link);
}

#[test]
#[ignore = "started by another test"]
fn rest() {
    let Some(link) = link() else { return };
    let text = std::env::var("HOTLEASE_TEST_LINK").expect("it was there");
    let elsewhere = format!("{text}&prefix=elsewhere/");
    communicators::rest(&link, &elsewhere.parse().expect("a link"));
}

#[test]
fn s3_that_refuses_or_has_no_such_bucket_is_an_error_that_says_what_to_do() {
    let Some(s3) = start() else { return };
    run(&s3, "refusals", "wrong-secret");
    run_at(&s3, "no_bucket", SECRET, "nowhere");
}

#[test]
#[ignore = "started by another test"]
fn no_bucket() {
    let Some(link) = link() else { return };
    failures::check(&failures::refusal(&link), &["s3://nowhere", "bucket"]);
}

#[test]
#[ignore = "started by another test"]
fn refusals() {
    let Some(link) = link() else { return };
    let text = failures::refusal(&link);
    failures::check(&text, &["s3://messages", "AWS_SECRET_ACCESS_KEY"]);
    assert!(!text.contains("wrong-secret"), "{text}");
}

#[test]
fn s3_that_is_killed_in_the_middle_is_told_to_all_in_time() {
    let Some(s3) = start() else { return };
    run(&s3, "gone", SECRET);
}

#[test]
#[ignore = "started by another test"]
fn gone() {
    let Some(link) = link() else { return };
    let pid = std::env::var("HOTLEASE_TEST_PID").expect("of the server");
    let pid = nix::unistd::Pid::from_raw(pid.parse().expect("a number"));
    let errors = failures::strike(&link, || {
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it runs");
    });
    failures::hold(&errors, &link, "look whether it is well");
}
