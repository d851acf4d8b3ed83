//! Members of a communicator behind NATs and firewalls: how they reach each other, that they can talk then, that the
//! end of one member is noticed, and that strangers do not get in.
//!
//! The NATs are real: Linux routers between network namespaces (see `hotlease_tests::hosts::Internet`).

use hotlease_comm::rendezvous::{Limits, Server};
use hotlease_comm::{
    Collective, CollectiveCall, Communicator, Datatype, Error, LinkKind, Operator, Options, Pattern, Question, Rank,
    Route, Secret, Table,
};
use hotlease_tests::hosts::{Internet, Nat, Point};
use hotlease_tests::wait::until;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const SECRET: &[u8] = b"the secret of these tests";
const PATIENCE: Duration = Duration::from_secs(60);
/// A member that a busy machine stops for a second or two has not failed.
const BOUND: Duration = Duration::from_secs(5);
/// Delay beyond the bound on a machine that does many other things.
const SLACK: Duration = Duration::from_secs(4);
/// Message that is longer than all buffers on the way hold.
const LARGE: usize = 3 << 20;

fn options(rendezvous: impl Into<String>, size: Rank) -> Options {
    let secret = Secret::new(SECRET).expect("25 bytes");
    let mut options = Options::new("behind", size, rendezvous, secret);
    options.join_timeout = PATIENCE;
    options.failure_bound = BOUND;
    options
}

/// Not a test: the process of one member on its host. It prints how it reaches the others, talks with all of them, and
/// waits for the end of the last one.
#[test]
#[ignore = "started by the other tests"]
fn a_member() {
    let Ok(rendezvous) = std::env::var("HOTLEASE_TEST_RENDEZVOUS") else {
        return;
    };
    let number = |name: &str| std::env::var(name).unwrap().parse::<Rank>().unwrap();
    let mut options = options(rendezvous, number("HOTLEASE_TEST_SIZE"));
    options.rank = Some(number("HOTLEASE_TEST_RANK"));
    let began = Instant::now();
    let all = match Communicator::join(&options) {
        Ok(all) => all,
        Err(error) => return say(&format!("not joined: {error}")),
    };
    let routes: Vec<String> = all.routes().iter().map(Route::to_string).collect();
    talk(&all);
    say(&format!("talked: {} ({:?})", routes.join(" "), began.elapsed()));
    let last = all.size() - 1;
    let error = all.receive(&mut [0; 8], Pattern::of(if all.rank() == last { 0 } else { last }, 9));
    say(&format!("ended: {}", error.expect_err("no member sends this")));
}

/// Prints a line for the test that started this process.
fn say(line: &str) {
    let mut stdout = std::io::stdout();
    write!(stdout, "\n{line}\n")
        .and_then(|()| stdout.flush())
        .expect("the test listens");
}

/// Sends messages between all members, small and large, and runs a collective.
fn talk(all: &Communicator) {
    let (me, size) = (all.rank(), all.size());
    let text = |from: Rank, to: Rank| format!("from {from} to {to}").into_bytes();
    for distance in 1..size {
        let (to, from) = ((me + distance) % size, (me + size - distance) % size);
        let mut got = [0; 64];
        let status = all
            .sendrecv(&text(me, to), to, 1, &mut got, Pattern::of(from, 1))
            .expect("here");
        assert_eq!(&got[..status.bytes as usize], text(from, me));
        let (sent, mut got) = (vec![me as u8; LARGE], vec![0xff; LARGE]);
        all.sendrecv(&sent, to, 2, &mut got, Pattern::of(from, 2))
            .expect("here");
        assert!(got.iter().all(|byte| *byte == from as u8), "the large one of {from}");
    }
    let (count, operator) = (1000, &Operator::Sum);
    let call = CollectiveCall::new(Collective::Allreduce { count, operator }, Datatype::U64, me, size);
    let recipe = Table::built_in().choose(&Question::new(&call, LinkKind::Tcp));
    let schedule = recipe.build(&call).expect("there is one");
    let numbers = |of: &dyn Fn(u64) -> u64| -> Vec<u8> {
        (0..count as u64).flat_map(|number| of(number).to_le_bytes()).collect()
    };
    let mut output = vec![0; 8 * count];
    let sum = operator.of(Datatype::U64).expect("there are sums of these");
    all.run(
        schedule.into(),
        8,
        &numbers(&|number| number + u64::from(me)),
        &mut output,
        Some(sum),
    )
    .expect("all are here");
    let ranks = u64::from(size);
    assert!(
        output == numbers(&|number| ranks * number + ranks * (ranks - 1) / 2),
        "the sum"
    );
}

/// A member's process, and the lines that it prints.
struct Member {
    process: Child,
    lines: Receiver<String>,
}

impl Member {
    fn start(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let stdout = process.stdout.take().expect("piped");
        let (say, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.map_while(|line| say.send(line).ok()).for_each(drop);
        });
        Self { process, lines }
    }

    /// Waits for the next line that begins with `start`; returns the rest of it.
    fn says(&self, start: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(remaining);
            let line = line.unwrap_or_else(|_| panic!("it does not say {start:?}"));
            assert!(start == "not joined: " || !line.starts_with("not joined"), "{line}");
            if let Some(rest) = line.strip_prefix(start) {
                return rest.to_owned();
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A rendezvous on a host of its own, and members.
struct Scene {
    internet: Internet,
    at: Point,
    server: Server,
}

impl Scene {
    fn new() -> Option<Self> {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Option<Self> {
        let mut internet = Internet::new()?;
        let at = internet.public();
        let secret = Secret::new(SECRET).expect("25 bytes");
        let address = SocketAddr::from((at.address, 7072));
        let server = at.inside(|| Server::start(address, vec![secret], limits).expect("a rendezvous"));
        assert_eq!(server.second_address().map(|address| address.port()), Some(7073));
        Some(Self { internet, at, server })
    }

    fn start(&self, rank: usize, size: usize, host: &Point) -> Member {
        let mut command = host.command(&std::env::current_exe().expect("this program"));
        command
            .args(["--exact", "nat::a_member", "--ignored", "--nocapture"])
            .env("HOTLEASE_TEST_RENDEZVOUS", self.server.address().to_string())
            .env("HOTLEASE_TEST_SIZE", size.to_string())
            .env("HOTLEASE_TEST_RANK", rank.to_string());
        Member::start(command)
    }

    /// Starts members on these hosts, which talk with each other over the given routes; then kills the last member,
    /// whose end the others must notice.
    fn hold<const SIZE: usize>(&self, hosts: [&Point; SIZE], routes: [&str; SIZE]) {
        let members: Vec<Member> = (0..SIZE).map(|rank| self.start(rank, SIZE, hosts[rank])).collect();
        self.hold_members(members, &routes);
    }

    fn hold_members(&self, mut members: Vec<Member>, routes: &[&str]) {
        for (rank, member) in members.iter().enumerate() {
            let said = member.says("talked: ");
            eprintln!("rank {rank}: {said}");
            let (reached, _) = said.split_once(" (").expect("and how long it took");
            assert_eq!(reached, routes[rank], "rank {rank}");
        }
        let relayed = routes.join(" ").matches("relayed").count();
        assert_eq!(self.server.relayed() as usize * 2, relayed, "pairs that are relayed");
        let last = members.len() - 1;
        let mut victim = members.pop().expect("the last one");
        victim.process.kill().expect("it runs");
        let struck = Instant::now();
        for member in &members {
            let said = member.says("ended: ");
            let took = struck.elapsed();
            assert!(said.contains(&format!("rank {last} has failed")), "{said}");
            assert!(took <= BOUND + SLACK, "told after {took:?}");
        }
        // The remaining members leave by themselves.
        drop(victim);
        for member in &mut members {
            assert!(member.process.wait().expect("it ends").success());
        }
        until("no pair is relayed any more", PATIENCE, || {
            (self.server.relayed() == 0).then_some(())
        });
    }
}

#[test]
fn full_cone() {
    let Some(mut scene) = Scene::new() else { return };
    let [cone] = scene.internet.private(Nat::FullCone);
    let [symmetric] = scene.internet.private(Nat::Symmetric);
    // Every host that knows the address of the full cone reaches it, from every port.
    scene.hold([&cone, &symmetric], ["itself punched", "punched itself"]);
    scene.hold([&symmetric, &cone], ["itself punched", "punched itself"]);
}

#[test]
fn restricted_cone() {
    let Some(mut scene) = Scene::new() else { return };
    let [cone] = scene.internet.private(Nat::RestrictedCone);
    let [symmetric] = scene.internet.private(Nat::Symmetric);
    // The restricted cone has sent to the other router's address, if to a port that leads nowhere, and so is reached
    // from that address.
    scene.hold([&cone, &symmetric], ["itself punched", "punched itself"]);
    scene.hold([&symmetric, &cone], ["itself punched", "punched itself"]);
}

#[test]
fn port_restricted() {
    let Some(mut scene) = Scene::new() else { return };
    let [one] = scene.internet.private(Nat::PortRestricted);
    let [other] = scene.internet.private(Nat::PortRestricted);
    let public = scene.internet.public();
    // Each router lets in only answers, so both members call at once.
    scene.hold(
        [&one, &other, &public],
        [
            "itself punched direct",
            "punched itself direct",
            "punched punched itself",
        ],
    );
}

#[test]
fn symmetric_on_one_side() {
    let Some(mut scene) = Scene::new() else { return };
    let [symmetric] = scene.internet.private(Nat::Symmetric);
    let [restricted] = scene.internet.private(Nat::PortRestricted);
    let public = scene.internet.public();
    // The port that the symmetric NAT will use cannot be known, and the other router lets in nothing else.
    scene.hold(
        [&public, &symmetric, &restricted],
        [
            "itself punched punched",
            "direct itself relayed",
            "direct relayed itself",
        ],
    );
}

#[test]
fn symmetric_on_both_sides() {
    let Some(mut scene) = Scene::new() else { return };
    let [one] = scene.internet.private(Nat::Symmetric);
    let [other] = scene.internet.private(Nat::Symmetric);
    scene.hold([&one, &other], ["itself relayed", "relayed itself"]);
}

#[test]
fn a_relay_that_ends_is_told_as_the_cause() {
    let Some(mut scene) = Scene::new() else { return };
    let [one] = scene.internet.private(Nat::Symmetric);
    let [other] = scene.internet.private(Nat::Symmetric);
    let members = [scene.start(0, 2, &one), scene.start(1, 2, &other)];
    for member in &members {
        member.says("talked: ");
    }
    drop(scene.server);
    for member in &members {
        let said = member.says("ended: ");
        assert!(
            said.contains("its connection through the rendezvous was closed"),
            "{said}"
        );
    }
}

#[test]
fn both_members_communicate_behind_one_nat() {
    let Some(mut scene) = Scene::new() else { return };
    let [one, other] = scene.internet.private(Nat::Symmetric);
    // The router does not send packets from inside back inside: the members use their own addresses.
    scene.hold([&one, &other], ["itself direct", "direct itself"]);
}

#[test]
fn firewalls_that_let_no_peer_in() {
    let Some(mut scene) = Scene::new() else { return };
    let [one, other] = [(); 2].map(|()| scene.internet.firewalled());
    scene.hold([&one, &other], ["itself direct", "direct itself"]);
}

#[test]
fn an_unreachable_member_is_named_if_there_is_no_relay() {
    let limits = Limits {
        relays: 0,
        ..Limits::default()
    };
    let Some(mut scene) = Scene::with(limits) else {
        return;
    };
    let [one] = scene.internet.private::<1>(Nat::Symmetric);
    let [other] = scene.internet.private::<1>(Nat::Symmetric);
    let mut options = options(scene.server.address().to_string(), 2);
    options.join_timeout = Duration::from_secs(5);
    let errors = std::thread::scope(|scope| {
        let members = [&one, &other].map(|host| {
            let options = &options;
            scope.spawn(move || host.inside(|| Communicator::join(options).expect_err("no way")))
        });
        members.map(|member| member.join().expect("no panic"))
    });
    for error in errors {
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("10.0.0.2") && text.contains("the address at its NAT"),
            "{text}"
        );
    }
}

/// Port on which a member listens on this host.
fn listening(host: &Point) -> Option<u16> {
    let table = host.inside(|| std::fs::read_to_string("/proc/thread-self/net/tcp"));
    let table = table.expect("this is Linux");
    let mut ports = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port = fields.get(1)?.split(':').nth(1)?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (fields.get(3) == Some(&"0A")).then_some(port)
    });
    ports.next()
}

/// Connects many times to a port and sends what a stranger might send.
fn pester(address: Ipv4Addr, port: u16) -> Vec<TcpStream> {
    let mut knock = b"HLCM\x02\x03\0\0".to_vec();
    knock.extend([7; 32]);
    knock.extend([1, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut shows = b"HLCM\x02\x04\0\0".to_vec();
    shows.extend([7; 32]);
    let words: [&[u8]; 5] = [b"", b"GET / HTTP/1.1\r\n\r\n", &[0; 500], &knock, &shows];
    let streams = (0..40).filter_map(|number| {
        let to = SocketAddr::from((address, port));
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE).ok()?;
        // The listener may have closed the connection already.
        let _ = stream.write_all(words[number % words.len()]);
        Some(stream)
    });
    streams.collect()
}

#[test]
fn strangers_get_nowhere() {
    let Some(mut scene) = Scene::new() else { return };
    // Every host can reach the first member at the port that its NAT gives it; the other two have to be relayed in the
    // end.
    let [cone] = scene.internet.private(Nat::FullCone);
    let [symmetric] = scene.internet.private(Nat::Symmetric);
    let [other] = scene.internet.private(Nat::Symmetric);
    let stranger = scene.internet.public();
    let first = scene.start(0, 3, &cone);
    let (port, _) = until("rank 0 listens", PATIENCE, || listening(&cone));
    until("rank 0 waits", PATIENCE, || (scene.server.waiting() == 1).then_some(()));
    let at = scene.at.address;
    let targets = [(cone.public, port), (at, 7072), (at, 7073)];
    let there = stranger.inside(|| targets.map(|(address, port)| pester(address, port)));
    assert!(
        there.iter().all(|streams| streams.len() == 40),
        "all three can be reached"
    );
    let members = vec![first, scene.start(1, 3, &symmetric), scene.start(2, 3, &other)];
    scene.hold_members(
        members,
        &[
            "itself punched punched",
            "punched itself relayed",
            "punched relayed itself",
        ],
    );
    // Each stranger got at most one byte, which says no.
    for stream in there.into_iter().flatten() {
        let mut told = Vec::new();
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        // The connection is closed, or reset.
        let _ = (&stream).read_to_end(&mut told);
        assert!(told.len() <= 1, "a stranger was told {told:?}");
    }
    let refusals = scene.server.refusals();
    assert!(refusals.others >= 60, "{refusals:?}");
}
