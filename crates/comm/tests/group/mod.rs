//! Groups of members as threads, over shared memory and over TCP on loopback.

use hotlease_comm::rendezvous::{Limits, Server};
use hotlease_comm::{Communicator, LinkChoice, Options, Rank, Secret};
use std::time::{Duration, Instant};

/// No test waits longer than this for what should take milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn secret() -> Secret {
    Secret::new(b"the secret of these tests").expect("25 bytes")
}

pub fn rendezvous() -> Server {
    Server::start("127.0.0.1:0", vec![secret()], Limits::default()).expect("a rendezvous")
}

pub fn options(server: &Server, name: &str, size: Rank) -> Options {
    let mut options = Options::new(name, size, server.address().to_string(), secret());
    options.join_timeout = PATIENCE;
    options
}

/// What every promise is held over.
pub const LINKS: [LinkChoice; 2] = [LinkChoice::Direct, LinkChoice::Tcp];

/// Runs a member of each rank, over each link. Their panics are this one's.
pub fn each(size: Rank, change: impl Fn(&mut Options) + Sync, member: impl Fn(Communicator) + Sync) {
    for link in LINKS {
        each_over(link, size, &change, &member);
    }
}

/// Runs a member of each rank over this link, and gives what they return, by rank. Their panics are this one's.
pub fn each_over<R: Send>(
    link: LinkChoice,
    size: Rank,
    change: impl Fn(&mut Options) + Sync,
    member: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let server = rendezvous();
    let mut options = options(&server, "each", size);
    options.link = link;
    std::thread::scope(|scope| {
        let spawn = |rank| {
            let (mut options, member, change) = (options.clone(), &member, &change);
            options.rank = Some(rank);
            change(&mut options);
            scope.spawn(move || {
                let communicator = Communicator::join(&options).expect("all come");
                assert_eq!(communicator.rank(), rank);
                member(communicator)
            })
        };
        let members: Vec<_> = (0..size).map(spawn).collect();
        let results = members.into_iter().map(|member| member.join());
        let results: Vec<_> = results.collect();
        let results = results.into_iter().map(|result| match result {
            Ok(result) => result,
            Err(panic) => {
                eprintln!("over {link:?}");
                std::panic::resume_unwind(panic)
            }
        });
        results.collect()
    })
}

/// Bytes that differ from each other.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bytes.extend(word.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
