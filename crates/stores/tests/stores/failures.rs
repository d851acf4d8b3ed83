//! Tests of stores that are gone, refuse, or lose data, and of members that are killed. All members get an error in
//! time, which says what to do.

use crate::group::{self, rendezvous, until};
use crate::messages::barrier;
use crate::options;
use crate::redis::Redis;
use crate::struck;
use hotlease_comm::{Communicator, Error, LinkChoice, Loss, Options, Pattern, Rank};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(4);
/// Extra time beyond the bound on a busy host.
const SLACK: Duration = Duration::from_secs(3);

/// Joins a group with one member for each link, and returns the result of each member.
fn join(links: &[LinkChoice], change: impl Fn(&mut Options) + Sync) -> Vec<Result<(), Error>> {
    let server = rendezvous();
    let size = links.len() as Rank;
    scope(|scope| {
        let members = (0..).zip(links).map(|(rank, link)| {
            let mut options = options(&server, "failing", size);
            options.link = link.clone();
            options.rank = Some(rank);
            change(&mut options);
            scope.spawn(move || Communicator::join(&options)?.finish())
        });
        let members: Vec<_> = members.collect();
        members
            .into_iter()
            .map(|member| member.join().expect("no panic"))
            .collect()
    })
}

fn link(text: &str) -> LinkChoice {
    text.parse().expect("a link")
}

/// Error of all members if the store cannot be used.
pub fn refusal(link: &LinkChoice) -> String {
    let results = join(&[link.clone(), link.clone()], |_| ());
    let errors: Vec<_> = results.into_iter().map(|result| result.expect_err("refused")).collect();
    assert!(matches!(errors[0], Error::NoStore { .. }), "{errors:?}");
    errors[0].to_string()
}

pub fn check(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
}

#[test]
fn redis_that_refuses_is_an_error_that_says_what_to_do_and_no_password() {
    let Some(redis) = Redis::start_with(&["--requirepass", "right-password"]) else {
        return;
    };
    let port = redis.port;
    let shown = format!("redis://127.0.0.1:{port}");
    check(&refusal(&link(&shown)), &[&shown, "NOAUTH", "REDIS_PASSWORD"]);
    let wrong = refusal(&link(&format!("redis://:wrong-password@127.0.0.1:{port}")));
    check(&wrong, &[&shown, "REDIS_PASSWORD"]);
    assert!(!wrong.contains("wrong-password"), "{wrong}");
    let right = format!("redis://:right-password@127.0.0.1:{port}");
    let results = join(&[link(&right), link(&right)], |_| ());
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[test]
fn a_redis_user_without_write_permission_gets_an_error() {
    let weak = ["--user", "weak", "on", ">weak-password", "~*", "+@read", "+@connection"];
    let Some(redis) = Redis::start_with(&weak) else {
        return;
    };
    let address = format!("redis://weak:weak-password@127.0.0.1:{}", redis.port);
    let text = refusal(&link(&address));
    check(&text, &["NoPerm", "let this user read and write"]);
    assert!(!text.contains("weak-password"), "{text}");
}

#[test]
fn a_store_that_does_not_listen_is_an_error_in_time() {
    let began = Instant::now();
    let text = refusal(&link("redis://127.0.0.1:9"));
    check(&text, &["redis://127.0.0.1:9", "can be reached"]);
    assert!(began.elapsed() < group::PATIENCE / 2, "{:?}", began.elapsed());
}

#[test]
fn members_with_another_store_are_named() {
    let (Some(one), Some(other)) = (Redis::start(), Redis::start()) else {
        return;
    };
    let results = join(&[one.link(), other.link()], |options| {
        options.join_timeout = Duration::from_secs(4);
    });
    let errors: Vec<_> = results
        .into_iter()
        .map(|result| result.expect_err("alone").to_string())
        .collect();
    check(&errors[0], &["rank 1 did not come there", "the same link"]);
    check(&errors[1], &["rank 0 did not come there"]);
    assert_eq!((one.keys(), other.keys()), (0, 0));
}

/// Strikes the store while three members use it; returns the errors of all members, which must occur in time.
pub fn strike(link: &LinkChoice, strike: impl Fn() + Sync) -> Vec<Error> {
    let server = rendezvous();
    let at_work = AtomicU32::new(0);
    let struck = std::sync::OnceLock::new();
    scope(|scope| {
        let members = (0..3).map(|rank| {
            let mut options = options(&server, "struck", 3);
            options.link = link.clone();
            options.rank = Some(rank);
            options.failure_bound = BOUND;
            let (at_work, struck) = (&at_work, &struck);
            scope.spawn(move || {
                let all = Communicator::join(&options).expect("all come");
                at_work.fetch_add(1, Ordering::SeqCst);
                let error = match all.rank() {
                    0 => all.receive(&mut [0; 1], Pattern::ANY).expect_err("nothing comes"),
                    _ => loop {
                        // Endless exchange between these two members only.
                        let other = 3 - all.rank();
                        let sent = all.sendrecv(&[1; 100], other, 1, &mut [0; 100], Pattern::of(other, 1));
                        if let Err(error) = sent {
                            break error;
                        }
                    },
                };
                let took = struck.get().map_or(Duration::ZERO, Instant::elapsed);
                assert!(
                    took <= BOUND + SLACK,
                    "rank {} is told after {took:?}: {error}",
                    all.rank()
                );
                let again = barrier(&all).expect_err("there is no store");
                assert!(matches!(again, Error::Store { .. }), "{again}");
                let end = all.finish().expect_err("there is no store");
                assert!(matches!(end, Error::Store { .. }), "{end}");
                error
            })
        });
        let members: Vec<_> = members.collect();
        until("all are there", || at_work.load(Ordering::SeqCst) == 3);
        std::thread::sleep(Duration::from_millis(100));
        struck.set(Instant::now()).expect("once");
        strike();
        members
            .into_iter()
            .map(|member| member.join().expect("no panic"))
            .collect()
    })
}

pub fn hold(errors: &[Error], link: &LinkChoice, part: &str) {
    for error in errors {
        assert!(matches!(error, Error::Store { .. }), "{error}");
        check(&error.to_string(), &[&link.to_string(), part]);
    }
}

#[test]
fn redis_that_is_killed_in_the_middle_is_told_to_all_in_time() {
    let Some(redis) = Redis::start() else { return };
    let errors = strike(&redis.link(), || {
        kill(Pid::from_raw(redis.pid() as i32), Signal::SIGKILL).expect("it runs");
    });
    hold(&errors, &redis.link(), "look whether it is well");
}

#[test]
fn redis_that_stands_still_is_told_to_all_in_time() {
    let Some(redis) = Redis::start() else { return };
    let pid = Pid::from_raw(redis.pid() as i32);
    let errors = strike(&redis.link(), || kill(pid, Signal::SIGSTOP).expect("it runs"));
    kill(pid, Signal::SIGCONT).expect("it is stopped");
    hold(&errors, &redis.link(), "does not answer within");
}

#[test]
fn redis_that_forgets_is_told_to_all_in_time() {
    let Some(redis) = Redis::start() else { return };
    let errors = strike(&redis.link(), || {
        redis.ask("FLUSHALL");
    });
    hold(&errors, &redis.link(), "has lost data");
}

/// Not a test: the member that is killed.
#[test]
#[ignore = "started by another test"]
fn victim() {
    let Ok(address) = std::env::var("HOTLEASE_TEST_RENDEZVOUS") else {
        return;
    };
    let mut options = Options::new("victim", 3, address, group::secret());
    options.link = std::env::var("HOTLEASE_TEST_LINK")
        .expect("a link")
        .parse()
        .expect("a link");
    options.rank = Some(2);
    options.failure_bound = BOUND;
    options.stores = hotlease_stores::openers();
    let all = Communicator::join(&options).expect("all come");
    while barrier(&all).is_ok() {}
}

/// Kills or stops one of three members: the others are told, and continue.
pub fn strike_member(text: &str, signal: Signal) {
    let server = rendezvous();
    let mut victim = Command::new(std::env::current_exe().expect("this program"));
    victim.args(["--exact", "failures::victim", "--ignored", "--nocapture"]);
    victim.env("HOTLEASE_TEST_RENDEZVOUS", server.address().to_string());
    victim.env("HOTLEASE_TEST_LINK", text).stdout(Stdio::null());
    let mut victim = victim.spawn().expect("it starts");
    let pid = Pid::from_raw(victim.id() as i32);
    let struck = std::sync::OnceLock::new();
    scope(|scope| {
        let members = (0..2).map(|rank| {
            let mut options = options(&server, "victim", 3);
            options.link = link(text);
            options.rank = Some(rank);
            options.failure_bound = BOUND;
            let struck = &struck;
            scope.spawn(move || {
                let all = Communicator::join(&options).expect("all come");
                let error = loop {
                    if let Err(error) = barrier(&all) {
                        break error;
                    }
                    if all.rank() == 0 && struck.get().is_none() {
                        struck.set(Instant::now()).expect("once");
                        kill(pid, signal).expect("it runs");
                    }
                };
                let took = struck.get().map_or(Duration::ZERO, Instant::elapsed);
                assert!(took <= BOUND + SLACK, "told after {took:?}");
                let Error::MemberLost { rank: 2, loss, .. } = error else {
                    panic!("{error}");
                };
                assert!(matches!(loss, Loss::Silent | Loss::Declared), "{loss}");
                // The two remaining members continue.
                let other = 1 - all.rank();
                let exchanged = all.sendrecv(&[1], other, 5, &mut [0], Pattern::of(other, 5));
                exchanged.expect("both are well");
                all.finish().expect("everything is read");
            })
        });
        let members: Vec<_> = members.collect();
        members.into_iter().for_each(|member| member.join().expect("no panic"));
    });
    victim.kill().expect("it is ours");
    victim.wait().expect("it ends");
}

#[test]
fn a_member_that_is_killed_or_stands_still_is_told_to_all_over_redis_and_what_it_left_is_removed() {
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        let Some(redis) = Redis::start() else { return };
        strike_member(&redis.link().to_string(), signal);
        if signal == Signal::SIGKILL {
            assert_eq!(redis.keys(), 0, "the last one to leave removes what the dead one left");
        }
    }
}

#[test]
fn a_member_that_gives_up_leaves_nothing_over_redis_however_soon_the_others_finish() {
    let Some(redis) = Redis::start() else { return };
    for aborts in 0..3 {
        let server = rendezvous();
        let mut options = options(&server, "aborted", 3);
        options.link = redis.link();
        scope(|scope| {
            let members = [0, 1, 2].map(|rank| {
                let mut options = options.clone();
                options.rank = Some(rank);
                scope.spawn(move || {
                    let all = Communicator::join(&options).expect("all come");
                    barrier(&all).expect("all are well");
                    if rank == aborts {
                        return all.abort();
                    }
                    let error = barrier(&all).expect_err("one has given up");
                    let loss = Loss::GaveUp;
                    assert!(
                        matches!(error, Error::MemberLost { rank, loss: why, .. } if rank == aborts && why == loss),
                        "{error}"
                    );
                    all.finish().expect("everything is read");
                })
            });
            members.into_iter().for_each(|member| member.join().expect("no panic"));
        });
        assert_eq!(redis.ask_all("KEYS *"), ["*0", "+OK"], "after rank {aborts} gave up");
    }
}

/// Not a test: all members that are struck in a collective.
#[test]
#[ignore = "started by other tests"]
fn victim_of_collectives() {
    struck::victim(|options| options.stores = hotlease_stores::openers());
}

#[test]
fn a_member_that_is_killed_or_stands_still_in_any_collective_is_told_to_all_over_redis_in_time() {
    let Some(redis) = Redis::start() else { return };
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        let losses = [Loss::Silent, Loss::Declared];
        struck::hold(
            "failures::victim_of_collectives",
            signal,
            &redis.link(),
            // A server that shares a few processors with all members is slow to answer.
            |options| {
                options.failure_bound = Duration::from_secs(6);
                options.stores = hotlease_stores::openers();
            },
            100,
            &losses,
        );
    }
}
