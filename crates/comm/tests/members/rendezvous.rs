//! Tests of the rendezvous: names, sizes, ranks, strangers, and missing members.

use crate::group::{self, each, options, rendezvous, secret};
use hotlease_comm::rendezvous::{Limits, Server};
use hotlease_comm::{Communicator, Error, JoinRejection, LinkChoice, Operator, Options, Pattern, Rank, Secret};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

fn joined(options: &Options, rank: impl Into<Option<Rank>>) -> Result<Communicator, Error> {
    let mut options = options.clone();
    options.rank = rank.into();
    Communicator::join(&options)
}

#[test]
fn eight_ranks_are_connected_in_milliseconds() {
    let mut times: Vec<Duration> = (0..5)
        .map(|_| {
            let server = rendezvous();
            let options = options(&server, "eight", 8);
            let start = std::sync::Barrier::new(8);
            let times = scope(|scope| {
                let member = || {
                    start.wait();
                    let began = Instant::now();
                    let all = Communicator::join(&options).expect("all come");
                    (began.elapsed(), all)
                };
                let members: Vec<_> = (0..8).map(|_| scope.spawn(member)).collect();
                let joined: Vec<_> = members.into_iter().map(|member| member.join().unwrap()).collect();
                // All members finish together, each waiting for the others.
                let (times, all): (Vec<_>, Vec<_>) = joined.into_iter().unzip();
                for member in all {
                    scope.spawn(|| member.finish().expect("all are well"));
                }
                times
            });
            times.into_iter().max().expect("eight")
        })
        .collect();
    times.sort();
    eprintln!("set-up of 8 ranks on loopback, the slowest of each of five groups: {times:?}");
    assert!(times[0] < Duration::from_secs(5), "{times:?}");
}

/// Number of sockets of this process.
fn sockets() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").expect("this is Linux");
    let targets = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}

/// Not a test: a process that runs nothing else.
#[test]
#[ignore = "started by another test"]
fn first_collectives() {
    let server = rendezvous();
    let mut options = options(&server, "first", 8);
    options.link = LinkChoice::Tcp;
    let together = std::sync::Barrier::new(8);
    scope(|scope| {
        let member = || {
            let all = Communicator::join(&options).expect("all come");
            together.wait();
            let before = sockets();
            together.wait();
            let mut total = [0; 1];
            all.allreduce(&[1], &mut total, &Operator::Sum).expect("all are well");
            all.alltoall(&[0; 8], &mut [0; 8]).expect("all are well");
            assert_eq!(total, [8]);
            together.wait();
            // There may be fewer: connections for the set-up may have ended.
            assert!(sockets() <= before);
            all.finish().expect("all are well");
        };
        (0..8).for_each(|_| drop(scope.spawn(member)));
    });
}

/// Runs a test that is ignored here in a process of its own.
fn passes_alone(name: &str) {
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    program.args(["--exact", &format!("rendezvous::{name}"), "--ignored"]);
    let output = program.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn a_first_collective_opens_no_connection() {
    passes_alone("first_collectives");
}

#[test]
fn a_closed_rendezvous_tells_waiting_and_later_members() {
    let server = rendezvous();
    let options = options(&server, "closed", 3);
    scope(|scope| {
        let waits = scope.spawn(|| joined(&options, 0));
        while server.waiting() == 0 {
            sleep(Duration::from_millis(1));
        }
        server.close();
        for told in [waits.join().unwrap(), joined(&options, 1)] {
            let error = told.expect_err("no members are put together");
            let is_told =
                matches!(&error, Error::RendezvousRefused { refused, .. } if *refused == JoinRejection::Stopping);
            assert!(is_told, "{error}");
        }
    });
}

#[test]
fn members_without_a_wish_get_the_ranks_that_are_left() {
    let server = rendezvous();
    let options = options(&server, "some", 4);
    let ranks = scope(|scope| {
        let wishes = [Some(2), None, None, Some(0)];
        let members = wishes.map(|wish| {
            let options = &options;
            scope.spawn(move || {
                let all = joined(options, wish).expect("all come");
                assert!(wish.is_none_or(|wish| wish == all.rank()));
                all.rank()
            })
        });
        let mut ranks = members.map(|member| member.join().unwrap());
        ranks.sort_unstable();
        ranks
    });
    assert_eq!(ranks, [0, 1, 2, 3]);
}

#[test]
fn two_groups_of_one_name_and_secret_do_not_meet() {
    let server = rendezvous();
    let options = options(&server, "same", 2);
    scope(|scope| {
        let member = || {
            let all = Communicator::join(&options).expect("all come");
            let other = 1 - all.rank();
            // A random number for each pair: one member sends it, the other sends it back.
            let mine: u64 = if all.rank() == 0 { rand::random() } else { 0 };
            let mut theirs = [0; 8];
            if all.rank() == 0 {
                all.send(&mine.to_le_bytes(), other, 0).expect("sent");
                all.receive(&mut theirs, Pattern::of(other, 0)).expect("here");
                assert_eq!(u64::from_le_bytes(theirs), mine);
            } else {
                all.receive(&mut theirs, Pattern::of(other, 0)).expect("here");
                all.send(&theirs, other, 0).expect("sent");
            }
        };
        let members: Vec<_> = (0..8).map(|_| scope.spawn(member)).collect();
        members.into_iter().for_each(|member| member.join().unwrap());
    });
}

#[test]
fn a_missing_rank_is_named_when_the_time_is_over() {
    let server = rendezvous();
    let mut options = options(&server, "lonely", 4);
    // Long enough for all three members to arrive.
    options.join_timeout = Duration::from_secs(3);
    let began = Instant::now();
    let errors = scope(|scope| {
        let members = [0, 1, 3].map(|rank| {
            let options = &options;
            scope.spawn(move || joined(options, rank).expect_err("rank 2 is missing"))
        });
        members.map(|member| member.join().unwrap())
    });
    let took = began.elapsed();
    assert!(took >= options.join_timeout && took < group::PATIENCE, "{took:?}");
    for error in errors {
        let text = error.to_string();
        assert!(
            text.starts_with("communicator `lonely`: rank 2 of 4 did not come within"),
            "{text}"
        );
    }
}

#[test]
fn a_rank_that_is_taken_and_another_size_are_refused_at_once() {
    let server = rendezvous();
    let options = options(&server, "taken", 2);
    scope(|scope| {
        let first = scope.spawn(|| joined(&options, 1).expect("the other one comes"));
        group::until("rank 1 waits", || server.waiting() == 1);
        let mut asks_for_more = options.clone();
        asks_for_more.size = 3;
        let refused = Communicator::join(&asks_for_more).expect_err("another size");
        let expected = JoinRejection::OtherSize { theirs: 2, ours: 3 };
        assert!(
            matches!(&refused, Error::RendezvousRefused { refused, .. } if *refused == expected),
            "{refused}"
        );
        let twice = joined(&options, 1).expect_err("rank 1 is another one's");
        assert!(
            matches!(
                &twice,
                Error::RendezvousRefused {
                    refused: JoinRejection::DuplicateRank { rank: 1, .. },
                    ..
                }
            ),
            "{twice}"
        );
        let second = joined(&options, 0).expect("both are here");
        let first = first.join().unwrap();
        scope.spawn(move || first.finish());
        second.finish().expect("both are well");
    });
}

#[test]
fn a_different_secret_is_refused_and_reported_on_both_sides() {
    let server = rendezvous();
    let mut stranger = options(&server, "secret", 1);
    stranger.secret = Secret::new(b"another secret of tests").expect("23 bytes");
    let error = Communicator::join(&stranger).expect_err("another secret");
    assert!(matches!(error, Error::SecretMismatch { .. }), "{error}");
    assert!(error.to_string().contains("HOTLEASE_COMM_SECRET"), "{error}");
    // The server tells the peer of the rejection before it counts the rejection.
    group::until("it is counted", || server.refusals().last.is_some());
    let refusals = server.refusals();
    assert_eq!((refusals.other_secret, refusals.others), (1, 0), "{refusals:?}");
    let last = refusals.last.expect("one was refused");
    assert!(last.contains("another secret"), "{last}");
}

#[test]
fn an_address_that_is_none_is_told_at_once() {
    for address in ["", "localhost", "localhost:none"] {
        let mut options = Options::new("nowhere", 2, address, secret());
        // Longer than any test may take.
        options.join_timeout = Duration::from_secs(3600);
        let error = Communicator::join(&options).expect_err("no address");
        assert!(matches!(error, Error::Options { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{address:?}")), "{error}");
    }
}

#[test]
fn a_rendezvous_may_serve_several_secrets_and_start_after_its_members() {
    let free = TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("an address");
    let secrets = [secret(), Secret::new(&[9; 32]).expect("32 bytes")];
    scope(|scope| {
        let mut members = Vec::new();
        for secret in &secrets {
            for _ in 0..2 {
                let mut options = Options::new("shared name", 2, free.to_string(), secret.clone());
                options.join_timeout = group::PATIENCE;
                members.push(scope.spawn(move || {
                    let all = Communicator::join(&options).expect("it starts in time");
                    all.finish()
                }));
            }
        }
        sleep(Duration::from_millis(100));
        let server = Server::start(free, secrets.to_vec(), Limits::default()).expect("the port is free");
        let met: Vec<_> = members.into_iter().map(|member| member.join().unwrap()).collect();
        drop(server);
        assert!(met.into_iter().all(|result| result.is_ok()));
    });
}

#[test]
fn a_rendezvous_that_does_not_answer_is_told_with_its_address() {
    // A port that is never assigned.
    let nowhere = "127.0.0.1:1";
    let mut options = Options::new("n", 2, nowhere, secret());
    options.join_timeout = Duration::from_millis(200);
    let error = Communicator::join(&options).expect_err("no rendezvous is there");
    assert!(matches!(error, Error::NoRendezvous { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains(nowhere) && text.contains("hotlease comm rendezvous"),
        "{text}"
    );
}

/// Connections that send nothing, and some that send garbage.
fn strangers(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let garbage: [&[u8]; 4] = [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &[0; 500], b"HLCM\x01"];
    let strangers = (0..count).filter_map(|number| {
        let mut stream = TcpStream::connect(address).ok()?;
        // The connection may have been closed already.
        let _ = stream.write_all(garbage[number % garbage.len()]);
        Some(stream)
    });
    strangers.collect()
}

#[test]
fn strangers_at_the_rendezvous_hang_no_member_and_have_to_go() {
    let limits = Limits {
        strangers: 20,
        handshake: Duration::from_millis(500),
        ..Limits::default()
    };
    let server = Server::start("127.0.0.1:0", vec![secret()], limits).expect("a rendezvous");
    let mut before = strangers(server.address(), 100);
    let options = options(&server, "among strangers", 3);
    let began = Instant::now();
    scope(|scope| {
        let members: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| Communicator::join(&options).expect("all come").finish()))
            .collect();
        members
            .into_iter()
            .for_each(|member| member.join().unwrap().expect("all are well"));
    });
    eprintln!("joined in {:?} among 100 strangers", began.elapsed());
    // Each connection is closed: at once, to make room, or when its time is over.
    for stranger in &mut before {
        stranger.set_read_timeout(Some(group::PATIENCE)).expect("a timeout");
        let closed = match stranger.read(&mut [0; 64]) {
            Ok(0) => true,
            // The stranger gets a verdict, and then the connection ends.
            Ok(_) => matches!(stranger.read(&mut [0; 64]), Ok(0) | Err(_)),
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        assert!(closed, "a stranger is still there");
    }
    assert_eq!(server.refusals().other_secret, 0);
    assert!(server.refusals().others >= 75, "{:?}", server.refusals());
}

/// Ports of this process with a listener.
fn listening() -> Vec<SocketAddr> {
    let inodes: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .expect("this is Linux")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("this is Linux");
    let ports = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_ours = fields.get(3) == Some(&"0A") && inodes.iter().any(|inode| inode == fields[9]);
        let port = fields.get(1)?.split(':').nth(1)?;
        is_ours.then(|| SocketAddr::from(([127, 0, 0, 1], u16::from_str_radix(port, 16).ok()?)).into())?
    });
    ports.collect()
}

/// Not a test: a process without other listeners.
#[test]
#[ignore = "started by another test"]
fn a_member_among_strangers() {
    let server = rendezvous();
    let options = options(&server, "a member among strangers", 2);
    scope(|scope| {
        // Rank 1 listens and waits for rank 0, which arrives late.
        let before = listening();
        let first = scope.spawn(|| joined(&options, 1).expect("rank 0 comes"));
        group::until("rank 1 waits", || server.waiting() == 1);
        let ports: Vec<_> = listening().into_iter().filter(|port| !before.contains(port)).collect();
        assert!(!ports.is_empty(), "rank 1 listens while it waits");
        let _strangers: Vec<_> = ports.iter().map(|port| strangers(*port, 100)).collect();
        let second = joined(&options, 0).expect("rank 1 is there");
        let first = first.join().unwrap();
        scope.spawn(move || first.finish());
        second.finish().expect("both are well");
    });
}

#[test]
fn strangers_at_a_member_hang_no_member() {
    passes_alone("a_member_among_strangers");
}

#[test]
fn members_that_differ_in_encryption_are_told() {
    let server = rendezvous();
    let mut options = options(&server, "differ", 2);
    // Long enough for both to meet.
    options.join_timeout = Duration::from_secs(3);
    let errors = scope(|scope| {
        let members = [0, 1].map(|rank| {
            let mut options = options.clone();
            options.is_sealed = rank == 0;
            options.rank = Some(rank);
            scope.spawn(move || Communicator::join(&options).expect_err("they differ"))
        });
        members.map(|member| member.join().unwrap().to_string())
    });
    assert!(
        errors[0].contains("rank 1") && errors[0].contains("is_sealed"),
        "{errors:?}"
    );
    assert!(errors[1].contains("rank 0"), "{errors:?}");
}

#[test]
fn a_group_of_one_needs_no_rendezvous() {
    each(
        1,
        |_| (),
        |all| {
            all.send(b"to myself", 0, 1).expect("kept");
            let mut text = [0; 9];
            all.receive(&mut text, Pattern::of(0, 1)).expect("here");
            assert_eq!(&text, b"to myself");
        },
    );
}
