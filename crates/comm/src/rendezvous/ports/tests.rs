use super::*;
use crate::link::cipher::Cipher;
use crate::link::port::{SharedPort, call_from_any};
use crate::options::Options;
use crate::rendezvous::Server;
use crate::rendezvous::client::{ask, reach, read_answer};
use hotlease_wire::comm::greeting::Greeting;
use hotlease_wire::comm::rendezvous::{AnswerPieces, Meeting, MemberAddress};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

const PATIENCE: Duration = Duration::from_secs(30);

fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32]).expect("32 bytes")
}

fn server(relays: u32) -> Server {
    let limits = Limits {
        relays,
        ..Limits::default()
    };
    Server::start("127.0.0.1:0", vec![secret(1), secret(2)], limits).expect("a rendezvous")
}

/// Peer with a secret that sends the requests of a test.
struct Guest {
    stream: TcpStream,
    cipher: Cipher,
    got: Vec<u8>,
    key: KeyId,
}

impl Guest {
    fn of(server: &Server, secret: Secret) -> Self {
        let key = secret.id();
        let options = Options::new("n", 2, server.address().to_string(), secret);
        let now = Instant::now();
        let (stream, cipher, got) = reach(&options, now, now + PATIENCE).expect("it is let in");
        Self {
            stream,
            cipher,
            got,
            key,
        }
    }

    fn asks(mut self, question: &JoinQuestion) -> Self {
        ask(&mut self.stream, &mut self.cipher, question).expect("asked");
        self
    }

    fn hears(&mut self) -> JoinAnswer {
        let deadline = Instant::now() + PATIENCE;
        read_answer(
            &mut self.stream,
            &mut self.cipher,
            &mut self.got,
            &mut AnswerPieces::default(),
            deadline,
        )
        .expect("an answer")
    }

    fn is_closed(&mut self) -> bool {
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        match self.stream.read(&mut [0; 8]) {
            Ok(got) => got == 0,
            // The rendezvous has closed the connection without reading all bytes from the peer.
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

fn join(address: SocketAddr) -> JoinQuestion {
    JoinQuestion::Join(Join {
        name: "n".into(),
        size: 1,
        rank: None,
        address,
        wait_ms: 30_000,
        meeting: Meeting::First,
        link: "direct".into(),
    })
}

/// Makes a member that waits for the rest of a communicator of three; it is behind a NAT if `is_hidden`.
fn rest(server: &Server, rank: u32, is_hidden: bool) -> Guest {
    let connection = Guest::of(server, secret(1));
    let seen = connection.stream.local_addr().expect("an address");
    let question = JoinQuestion::Join(Join {
        name: "n".into(),
        size: 3,
        rank: Some(rank),
        address: if is_hidden { elsewhere() } else { seen },
        wait_ms: 30_000,
        meeting: Meeting::Rest {
            of: GroupId([7; 16]),
            context: 0,
            number: 0,
            lost: Vec::new(),
        },
        link: "direct".into(),
    });
    connection.asks(&question)
}

fn between(from: u32, to: u32) -> JoinQuestion {
    JoinQuestion::Relay(wire::Relay {
        group: GroupId([7; 16]),
        from,
        to,
    })
}

/// Address of a member behind a NAT.
fn elsewhere() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 4000))
}

/// Joins a member that claims to listen elsewhere, and calls `show` for its connection to the second port. Returns the
/// address from which it connects, and the address that other members are told.
fn place(show: impl FnOnce(&Guest, SocketAddr, GroupId)) -> (SocketAddr, MemberAddress) {
    let server = server(1);
    let mut connection = Guest::of(&server, secret(1)).asks(&join(elsewhere()));
    let from = connection.stream.local_addr().expect("an address");
    let JoinAnswer::Seen { port, number } = connection.hears() else {
        panic!("it listens where it is not seen");
    };
    assert_eq!(server.second_address().map(|address| address.port()), Some(port));
    show(&connection, SocketAddr::new(server.address().ip(), port), number);
    match connection.hears() {
        JoinAnswer::Together { members, relays, .. } => {
            assert!(relays);
            (from, members[0])
        }
        answer => panic!("{answer:?}"),
    }
}

fn say(mut stream: TcpStream, key: KeyId, number: GroupId) {
    let greeting = Greeting {
        purpose: Purpose::Mapping,
        key,
        group: number,
    };
    stream.write_all(&greeting.encode()).expect("open");
}

#[test]
fn nats_that_number_each_connection_are_told_from_those_that_do_not() {
    let (from, steady) = place(|connection, to, number| {
        let port = SharedPort::shared_with(&connection.stream, false).expect("its port");
        let stream = port.call_and_wait(to, PATIENCE).expect("a second port");
        say(stream, connection.key, number);
    });
    let mapped = |varies| Some(NatMapping { address: from, varies });
    assert_eq!((steady.address, steady.mapped), (elsewhere(), mapped(false)));
    let (from, varying) = place(|connection, to, number| {
        say(
            call_from_any(to, PATIENCE).expect("a second port"),
            connection.key,
            number,
        );
    });
    let mapped = Some(NatMapping {
        address: from,
        varies: true,
    });
    assert_eq!((varying.address, varying.mapped), (elsewhere(), mapped));
}

#[test]
fn a_member_that_does_not_reach_the_second_port_is_admitted_without_it() {
    let (from, place) = place(|connection, to, number| {
        // Other peers send greetings to the second port: with another number, and with another secret.
        let wrong = GroupId([9; 16]);
        say(
            call_from_any(to, PATIENCE).expect("a second port"),
            connection.key,
            wrong,
        );
        let other = secret(2).id();
        say(call_from_any(to, PATIENCE).expect("a second port"), other, number);
    });
    let mapped = NatMapping {
        address: from,
        varies: false,
    };
    assert_eq!((place.address, place.mapped), (elsewhere(), Some(mapped)));
}

#[test]
fn a_loss_that_both_members_learn_at_once_does_not_separate_them() {
    for is_hidden in [false, true] {
        let server = server(0);
        let mut peers = [0, 1].map(|rank| rest(&server, rank, is_hidden));
        if is_hidden {
            for connection in &mut peers {
                assert!(matches!(connection.hears(), JoinAnswer::Seen { .. }));
            }
        }
        // The second member sends its report when the report of the first member is enough already.
        for turn in 0..6 {
            let Guest { stream, cipher, .. } = &mut peers[turn % 2];
            ask(stream, cipher, &JoinQuestion::Lost(vec![2])).expect("asked");
        }
        let answers = peers.map(|mut connection| connection.hears());
        let both = answers.map(|answer| match answer {
            JoinAnswer::Together {
                group, rank, members, ..
            } => (group, rank, members),
            answer => panic!("{answer:?}"),
        });
        assert_eq!((both[0].1, both[1].1), (0, 1));
        assert_eq!((both[0].0, &both[0].2), (both[1].0, &both[1].2));
    }
}

#[test]
fn a_member_that_reports_impossible_losses_is_refused() {
    let server = server(1);
    let lost = |ranks: &[u32]| JoinQuestion::Lost(ranks.to_vec());
    let first = Guest::of(&server, secret(1)).asks(&lost(&[2]));
    let rank_3 = rest(&server, 0, false).asks(&lost(&[3]));
    let pair = Guest::of(&server, secret(1)).asks(&between(0, 1)).asks(&lost(&[1]));
    let another = rest(&server, 1, false).asks(&between(0, 1));
    // More reports than there can be losses.
    let mut many = rest(&server, 1, false);
    let often =
        (0..=hotlease_wire::comm::RANKS_MAX).try_for_each(|_| ask(&mut many.stream, &mut many.cipher, &lost(&[])));
    // The peer may be turned away before it has sent all reports.
    assert!(often.is_err() || many.is_closed());
    for mut connection in [first, rank_3, pair, another] {
        assert!(connection.is_closed());
    }
}

#[test]
fn two_that_ask_for_each_other_are_relayed() {
    let server = server(8);
    let mut one = Guest::of(&server, secret(1)).asks(&between(0, 1));
    // The same ranks with another secret.
    let other_secret = Guest::of(&server, secret(2)).asks(&between(1, 0));
    let mut other = Guest::of(&server, secret(1)).asks(&between(1, 0));
    assert_eq!([one.hears(), other.hears()], [JoinAnswer::Relayed, JoinAnswer::Relayed]);
    // The members are told before the pair is counted.
    until_relayed(&server, 1);
    one.stream.write_all(b"through").expect("open");
    let mut through = [0; 7];
    other.stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    other.stream.read_exact(&mut through).expect("it comes");
    assert_eq!(&through, b"through");
    drop(one);
    assert!(other.is_closed());
    drop((other, other_secret));
    until_relayed(&server, 0);
}

/// Waits until this many pairs are counted.
fn until_relayed(server: &Server, pairs: u32) {
    let began = Instant::now();
    while server.relayed() != pairs {
        assert!(began.elapsed() < PATIENCE, "{} are counted", server.relayed());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn no_more_are_relayed_than_may() {
    for relays in [0, 1] {
        let server = server(relays);
        let mut pairs: Vec<Guest> = (0..2 * relays)
            .map(|rank| Guest::of(&server, secret(1)).asks(&between(rank, rank ^ 1)))
            .collect();
        for connection in &mut pairs {
            assert_eq!(connection.hears(), JoinAnswer::Relayed);
        }
        let mut refused = Guest::of(&server, secret(1)).asks(&between(8, 9));
        assert_eq!(refused.hears(), JoinAnswer::Refused(JoinRejection::NoRelay { relays }));
    }
}

#[test]
fn a_member_that_asks_again_is_kept_once() {
    let server = server(1);
    let mut before = Guest::of(&server, secret(1)).asks(&between(0, 1));
    // The member asks again, as if a NAT had forgotten its first connection.
    let mut again = Guest::of(&server, secret(1)).asks(&between(0, 1));
    assert!(before.is_closed());
    let mut other = Guest::of(&server, secret(1)).asks(&between(1, 0));
    assert_eq!(
        [again.hears(), other.hears()],
        [JoinAnswer::Relayed, JoinAnswer::Relayed]
    );
}

#[test]
fn a_relayed_member_that_reads_nothing_delays_no_other_pair() {
    let server = server(2);
    let pair = |low: u32| {
        let ranks = [(low, low + 1), (low + 1, low)];
        let mut peers = ranks.map(|(from, to)| Guest::of(&server, secret(1)).asks(&between(from, to)));
        for connection in &mut peers {
            assert_eq!(connection.hears(), JoinAnswer::Relayed);
        }
        peers
    };
    let [mut pushes, _reads_nothing] = pair(0);
    pushes.stream.set_nonblocking(true).expect("a socket");
    let chunk = vec![7; 1 << 16];
    let mut still = 0;
    while still < 20 {
        still = if pushes.stream.write(&chunk).is_ok() {
            0
        } else {
            still + 1
        };
        std::thread::sleep(Duration::from_millis(1));
    }
    let [mut one, mut other] = pair(2);
    one.stream.write_all(&chunk).expect("open");
    other.stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut got = vec![0; chunk.len()];
    other.stream.read_exact(&mut got).expect("it comes");
    assert_eq!(got, chunk);
}
