//! Tests of the corpus: it is complete, its page is up to date, and the neighbour notices attacks on itself.

use hotlease_escape::{Neighbour, Residue, themes};
use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_hotlease-escape");
const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// Least number of attempts that must prove the platform's isolation.
const ATTEMPTS_MIN: usize = 60;

fn neighbour(token: &str) -> Neighbour {
    Neighbour::start(Path::new(PROGRAM), token, SECRET, &std::env::temp_dir()).expect("a neighbour")
}

fn token(test: &str) -> String {
    format!("{test}{:08x}", std::process::id())
}

fn given(neighbour: &Neighbour, name: &str) -> String {
    let found = neighbour.secret_places().iter().find(|(known, _)| known == name);
    found.unwrap_or_else(|| panic!("no {name}")).1.clone()
}

#[test]
fn there_are_enough_attempts_and_each_has_a_name_of_its_own() {
    let mut names = HashSet::new();
    for attempt in themes().iter().flat_map(|theme| theme.attempts) {
        assert!(names.insert(attempt.name), "{} is there twice", attempt.name);
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(attempt.name.chars().all(is_plain), "{}", attempt.name);
        assert!(
            !attempt.what.is_empty() && !attempt.what.contains('\n'),
            "{}",
            attempt.name
        );
    }
    assert!(names.len() >= ATTEMPTS_MIN, "{} attempts", names.len());
}

#[test]
fn the_page_of_the_corpus_is_what_the_program_prints() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/escape-corpus.md");
    let page = fs::read_to_string(page).expect("docs/escape-corpus.md");
    let printed = Command::new(PROGRAM)
        .arg("page")
        .output()
        .expect("hotlease-escape page");
    let printed = String::from_utf8(printed.stdout).expect("text");
    assert!(
        page.ends_with(&printed),
        "docs/escape-corpus.md is to end with what `hotlease-escape page` prints:\n{printed}"
    );
}

#[test]
fn a_neighbour_that_is_left_alone_notices_nothing_and_leaves_nothing() {
    let token = token("alone");
    let mut neighbour = neighbour(&token);
    let pulse = neighbour.pulse(Duration::from_millis(5)).expect("its pace");
    assert!(pulse.count > 0 && pulse.p50_ns <= pulse.p99_ns, "{pulse:?}");
    assert_eq!(neighbour.harm(), [""; 0]);
    assert!(
        Residue::of_neighbour(&token).len() >= 2,
        "it has nothing that could be found"
    );
    drop(neighbour);
    assert_eq!(Residue::of_neighbour(&token), []);
}

#[test]
fn a_neighbour_notices_what_is_done_to_it() {
    let token = token("noticing");
    let mut neighbour = neighbour(&token);
    let mut told = String::new();
    let port: u16 = given(&neighbour, "TCP").parse().expect("a port");
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connected");
    stream.read_to_string(&mut told).expect("read");
    assert_eq!(told, SECRET, "its port tells its secret");
    assert_eq!(neighbour.harm(), [""; 0], "reading is known by the secret only");

    fs::write(given(&neighbour, "FILE"), "changed").expect("written");
    fs::write(given(&neighbour, "SHM"), "changed").expect("written");
    fs::remove_file(given(&neighbour, "LOCK")).expect("removed");
    fs::write(given(&neighbour, "FIFO"), "hello").expect("written");
    let port: u16 = given(&neighbour, "UDP").parse().expect("a port");
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    socket.send_to(b"hello", (Ipv4Addr::LOCALHOST, port)).expect("sent");
    let harm = neighbour.harm();
    for expected in [
        "its file was changed",
        "its segment in /dev/shm was changed",
        "its lock file was removed",
        "its FIFO was written",
        "a datagram came",
    ] {
        assert!(harm.iter().any(|noticed| noticed == expected), "{expected}: {harm:?}");
    }
}

#[test]
fn residue_of_a_killed_neighbour_is_found_and_removed() {
    let token = token("killed");
    let mut neighbour = neighbour(&token);
    let pid = nix::unistd::Pid::from_raw(neighbour.pid() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("killed");
    // Depending on timing, the neighbour is dead already, or only does not answer any more.
    let harm = neighbour.harm();
    assert!(harm.iter().any(|noticed| noticed.contains("neighbour")), "{harm:?}");
    drop(neighbour);
    let left = Residue::of_neighbour(&token);
    assert!(left.len() >= 2, "{left:?}");
    left.iter().for_each(Residue::remove);
    assert_eq!(Residue::of_neighbour(&token), []);
}

#[test]
fn an_attempt_that_is_not_known_is_not_made() {
    let output = Command::new(PROGRAM).args(["try", "flying"]).output().expect("run");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("untried: no attempt is called flying"));
}
