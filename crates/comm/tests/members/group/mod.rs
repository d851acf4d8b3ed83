//! Groups of members as threads, over shared memory, and over TCP and libfabric on loopback.

use hotlease_comm::rendezvous::{Limits, Server};
use hotlease_comm::{Communicator, LinkChoice, Options, Rank, Secret};
use hotlease_fabric::ofi::Libfabric;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Longest wait of a test for an event that should take milliseconds.
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
    // Longer than a busy host delays a healthy member; tests of silent members set their own bound.
    options.failure_bound = Duration::from_secs(6);
    options
}

/// Links that every test runs over.
const LINKS: [LinkChoice; 3] = [LinkChoice::Direct, LinkChoice::Tcp, LinkChoice::OFI];

/// Links that this host supports.
pub fn links() -> impl Iterator<Item = LinkChoice> {
    let has_fabric = Libfabric::load().inspect_err(|error| eprintln!("skipped: {error}"));
    let has_fabric = has_fabric.is_ok();
    LINKS
        .into_iter()
        .filter(move |link| has_fabric || *link != LinkChoice::OFI)
}

/// Encrypts the messages between members, if `is_sealed` and if the link supports it.
pub fn seal(options: &mut Options, is_sealed: bool) {
    options.is_sealed = is_sealed && options.link != LinkChoice::OFI;
}

/// Runs a member of each rank, over each link. A panic of a member is passed on.
pub fn each(size: Rank, change: impl Fn(&mut Options) + Sync, member: impl Fn(Communicator) + Sync) {
    for link in links() {
        each_over(&link, size, &change, &member);
    }
}

/// Runs a member of each rank over this link, and returns their results by rank. A panic of a member is passed on.
pub fn each_over<R: Send>(
    link: &LinkChoice,
    size: Rank,
    change: impl Fn(&mut Options) + Sync,
    member: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let server = rendezvous();
    let mut options = options(&server, "each", size);
    options.link = link.clone();
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
                eprintln!("over {link}");
                std::panic::resume_unwind(panic)
            }
        });
        results.collect()
    })
}

/// Hides a member, as behind a NAT that gives each connection a new port. No other member can reach it: its own
/// address is of a class that no network routes, and the address that the rendezvous sees accepts no connections. So
/// the rendezvous relays.
pub fn hidden(options: &mut Options) {
    options.address = Some(Ipv4Addr::new(240, 0, 0, 1).into());
    let nat = TcpListener::bind("127.0.0.1:0").expect("a port");
    let outside = std::mem::replace(&mut options.rendezvous, nat.local_addr().expect("bound").to_string());
    let pass = |mut from: TcpStream, mut to: TcpStream| {
        std::thread::spawn(move || {
            // Any end of the stream is passed on.
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    };
    std::thread::spawn(move || {
        for near in nat.incoming().flatten() {
            let Ok(far) = TcpStream::connect(&outside) else {
                continue;
            };
            for stream in [&near, &far] {
                stream.set_nodelay(true).expect("it is a socket");
            }
            pass(
                near.try_clone().expect("a descriptor"),
                far.try_clone().expect("a descriptor"),
            );
            pass(far, near);
        }
    });
}

/// Bytes that look random.
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

/// Waits until a condition is fulfilled.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
