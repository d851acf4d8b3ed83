//! The same over S3, through versitygw, which serves a folder. Credentials are in the environment, so each test is this program started
//! again with them.

use crate::operations::hold;
use crate::{communicators, failures, messages};
use hotlease_comm::{LinkChoice, LinkKind};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const STARTS_WITHIN: Duration = Duration::from_secs(30);
const BUCKET: &str = "messages";

/// Where scripts/setup puts it.
fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/versitygw/versitygw")
}

struct S3 {
    port: u16,
    server: Child,
    directory: TempDir,
}

impl S3 {
    fn start() -> Option<Self> {
        if !program().is_file() {
            eprintln!(
                "skipped for S3: there is no versitygw (`make setup` builds it where there is Go; target/versitygw/log says how far that is)"
            );
            return None;
        }
        let mut servers = (0..5).filter_map(|_| Self::try_start());
        Some(servers.next().expect("versitygw starts"))
    }

    fn try_start() -> Option<Self> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let directory = tempfile::tempdir().expect("a directory");
        let place = |name: &str| {
            let place = directory.path().join(name);
            std::fs::create_dir_all(&place).expect("a folder");
            place
        };
        place(&format!("data/{BUCKET}"));
        let mut command = Command::new(program());
        command.args(["--access", "member", "--secret", "right-secret"]);
        command
            .arg("--port")
            .arg(format!("127.0.0.1:{port}"))
            .arg("posix");
        command
            .arg("--sidecar")
            .arg(place("attributes"))
            .arg(place("data"));
        let server = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut s3 = Self {
            port,
            server,
            directory,
        };
        let begun = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if s3.server.try_wait().expect("it is ours").is_some() {
                return None;
            }
            assert!(begun.elapsed() < STARTS_WITHIN, "versitygw does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(s3)
    }

    /// Runs one of the tests below as a process that has this secret.
    fn run(&self, test: &str, secret: &str) {
        self.run_at(test, secret, BUCKET);
    }

    fn run_at(&self, test: &str, secret: &str, bucket: &str) {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", &format!("s3::{test}"), "--ignored", "--nocapture"]);
        let link = format!("s3://{bucket}?endpoint=http://127.0.0.1:{}", self.port);
        child
            .env("HOTLEASE_TEST_LINK", link)
            .env("AWS_REGION", "us-east-1");
        child
            .env("AWS_ACCESS_KEY_ID", "member")
            .env("AWS_SECRET_ACCESS_KEY", secret);
        child.env("HOTLEASE_TEST_PID", self.server.id().to_string());
        let output = child.output().expect("it runs");
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let has_run = output.status.success() && out.contains("1 passed");
        assert!(has_run, "{test}: {}\n{out}\n{err}", output.status);
    }

    /// The objects that are there.
    fn objects(&self) -> Vec<PathBuf> {
        fn files(folder: &Path, found: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.path() {
                    path if path.is_dir() => files(&path, found),
                    path => found.push(path),
                }
            }
        }
        let mut found = Vec::new();
        // Beside the bucket it has files of its own.
        files(&self.directory.path().join("data").join(BUCKET), &mut found);
        found
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Of the process that a test has started; none if it is run by itself.
fn link() -> Option<LinkChoice> {
    let text = std::env::var("HOTLEASE_TEST_LINK").ok()?;
    Some(text.parse().expect("a link"))
}

fn passes(test: &str) {
    let Some(s3) = S3::start() else { return };
    s3.run(test, "right-secret");
    assert_eq!(s3.objects(), Vec::<PathBuf>::new());
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
    let Some(s3) = S3::start() else { return };
    s3.run("rest", "right-secret");
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
    let Some(s3) = S3::start() else { return };
    s3.run("refusals", "wrong-secret");
    s3.run_at("no_bucket", "right-secret", "nowhere");
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
    let Some(s3) = S3::start() else { return };
    s3.run("gone", "right-secret");
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
