//! Strangers at a TLS port: bytes that are no TLS, half a handshake, handshakes that never end, connections by the
//! hundred, and networks that spoil a good connection.

use crate::remote::{LONG, Scene};
use hotlease_net::Address;
use hotlease_tests::hosts::{Mischief, Proxy};
use hotlease_tests::platform::LIMIT;
use hotlease_tests::site::RemoteClient;
use hotlease_tests::wait::until_true;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Limit for a place and for a handshake, together 10 s, and some delay.
const HANDSHAKE_OVER: Duration = Duration::from_secs(15);

fn socket(address: &Address) -> SocketAddr {
    address.authority().parse().expect("a numeric address")
}

fn ports(scene: &Scene) -> [SocketAddr; 2] {
    [socket(&scene.manager.address), socket(&scene.endpoint())]
}

/// The first message of a handshake, as a client of any site sends it.
fn hello() -> Vec<u8> {
    use std::sync::mpsc::channel;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut bytes = vec![0; 4096];
        let read = stream.read(&mut bytes).expect("a hello");
        bytes.truncate(read);
        sender.send(bytes).expect("wanted");
    });
    let here = hotlease_tests::hosts::Host::here();
    let authority = hotlease_tests::site::Authority::new();
    let manager = Address::new(address.ip().to_string(), address.port());
    let client = RemoteClient::new(&here, &authority.client("alice"), &manager);
    assert!(client.agents().is_err(), "no daemon answered");
    receiver.recv_timeout(LIMIT).expect("a hello")
}

/// Whether the other end closes the connection within this time.
fn is_closed(stream: &mut TcpStream, limit: Duration) -> bool {
    stream.set_read_timeout(Some(limit)).expect("set");
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn bytes_that_are_no_handshake_are_answered_by_closing() {
    let scene = Scene::new();
    let hello = hello();
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for port in ports(&scene) {
        for round in 0..60 {
            let mut stream = TcpStream::connect(port).expect("it listens");
            let bytes = match round % 4 {
                0 => (0..random.random_range(1..2000))
                    .map(|_| random.next_u32() as u8)
                    .collect(),
                1 => b"GET / HTTP/1.1\r\nHost: manager\r\n\r\n".to_vec(),
                2 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
                _ => {
                    let mut bytes = hello.clone();
                    let at = random.random_range(0..bytes.len());
                    bytes[at] ^= 1 << random.random_range(0..8);
                    bytes
                }
            };
            // The daemon may have closed the connection before it has read all bytes.
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            assert!(is_closed(&mut stream, HANDSHAKE_OVER), "round {round} is still open");
        }
    }
    scene.still_serves();
}

#[test]
fn slow_handshakes_are_cut_and_delay_no_other_client() {
    let scene = Scene::new();
    let hello = hello();
    let start = Instant::now();
    let mut streams = Vec::new();
    for port in ports(&scene) {
        for number in 0..100 {
            // Some of them are over the limit of one address, and wait for their turn.
            let mut stream = TcpStream::connect(port).expect("it listens");
            // Sends nothing, one byte, half a hello, or all of it and no more.
            let sent = [0, 1, hello.len() / 2, hello.len()][number % 4];
            let _ = stream.write_all(&hello[..sent]);
            streams.push(stream);
        }
    }
    // A connection that sends a byte now and then is not kept alive either.
    let mut dribble = TcpStream::connect(ports(&scene)[0]).expect("it listens");
    while start.elapsed() < Duration::from_secs(1) {
        let _ = dribble.write_all(&hello[..1]);
        std::thread::sleep(Duration::from_millis(100));
    }
    streams.push(dribble);
    for stream in &mut streams {
        assert!(
            is_closed(stream, HANDSHAKE_OVER),
            "an unfinished handshake is still open"
        );
    }
    scene.still_serves();
    let took = start.elapsed();
    assert!(took < HANDSHAKE_OVER + LIMIT, "cut after {took:?}");
}

#[test]
fn silent_connections_keep_no_client_of_their_address_out() {
    // Ten times as many as may be in their handshake.
    let scene = Scene::new();
    let mut streams = Vec::new();
    for port in ports(&scene) {
        for _ in 0..640 {
            streams.push(TcpStream::connect(port).expect("it listens"));
        }
    }
    let client = RemoteClient::new(&scene.here, &scene.authority.client("alice"), &scene.manager.address);
    assert_eq!(client.agents().expect("the manager serves").len(), 1);
    scene.still_serves();
    drop(streams);
}

#[test]
fn thousand_broken_connections_leave_no_descriptor_behind() {
    let scene = Scene::new();
    let hello = hello();
    let (manager, agent) = (scene.manager.daemon.process(), scene.agent.process());
    let good = |scene: &Scene| {
        let client = RemoteClient::new(&scene.here, &scene.authority.client("alice"), &scene.manager.address);
        let grant = client.acquire(LONG).expect("a lease");
        let mut session = client.attached(&grant);
        let (connection, _) = session.worker(0).expect("a connection");
        client.vanish();
        drop((session, connection));
        until_true("the core is free", LIMIT, || scene.free_cores() == 1);
    };
    // Runs before counting, so that everything that is set up once is set up now.
    for _ in 0..3 {
        good(&scene);
    }
    let settled = |process: &hotlease_tests::process::Process| {
        let mut least = usize::MAX;
        for _ in 0..50 {
            least = least.min(process.descriptors());
            std::thread::sleep(Duration::from_millis(10));
        }
        least
    };
    let before = [settled(&manager), settled(&agent)];
    for round in 0..1000 {
        let port = ports(&scene)[round % 2];
        let mut stream = TcpStream::connect(port).expect("it listens");
        let sent = [0, 3, hello.len() / 2, hello.len()][round / 2 % 4];
        let _ = stream.write_all(&hello[..sent]);
        if round % 50 == 0 {
            good(&scene);
        }
    }
    let allowance = 4; // the warm pool is being filled
    for (process, before, name) in [(&manager, before[0], "manager"), (&agent, before[1], "agent")] {
        until_true("descriptors are back", LIMIT, || settled(process) <= before + allowance);
        eprintln!("{name}: {before} descriptors before, {} after", process.descriptors());
    }
    scene.still_serves();
}

/// A client whose connections to the manager and to the agent lead through proxies.
fn through(scene: &Scene, mischief: Mischief) -> (RemoteClient, Proxy, Proxy) {
    let [manager, agent] = ports(scene).map(|port| Proxy::to(port, mischief));
    let address = Address::new("127.0.0.1", manager.address().port());
    let client = RemoteClient::new(&scene.here, &scene.authority.client("alice"), &address);
    (client, manager, agent)
}

/// Takes a lease, opens a session through the proxy, loads a library and connects to a worker.
fn whole_session(client: &RemoteClient, agent: &Proxy) -> Result<(), String> {
    let mut grant = client.acquire(LONG).map_err(|refusal| refusal.to_string())?;
    grant.endpoint = format!("https://{}", agent.address());
    let session = client.session(&grant).map_err(|error| error.to_string());
    let lease = grant.lease.clone();
    let give_back = || {
        let _ = client.ask(|mut manager| async move {
            let request = hotlease_wire::grpc::ReleaseRequest {
                lease,
                ..Default::default()
            };
            manager.release(request).await
        });
    };
    let mut session = match session {
        Ok(session) => session,
        Err(error) => {
            give_back();
            return Err(error);
        }
    };
    let attached = session.attach(&grant.token);
    if !matches!(attached, Ok(hotlease_wire::session::SessionReply::Attached { .. })) {
        give_back();
        return Err(format!("{attached:?}"));
    }
    let library = std::fs::read(hotlease_tests::library::library("echo")).expect("a library");
    let request = hotlease_wire::session::SessionRequest::Load {
        hash: hotlease_wire::ids::CodeHash::of(&library),
        size_bytes: library.len() as u64,
    };
    let sealed = hotlease_fabric::memory::sealed_copy("test", &library).expect("memory");
    let loaded = session.ask(&request, &[std::os::fd::AsFd::as_fd(&sealed)]);
    let released = session.ask(&hotlease_wire::session::SessionRequest::Release, &[]);
    match (loaded, released) {
        (
            Ok(hotlease_wire::session::SessionReply::Loaded { .. }),
            Ok(hotlease_wire::session::SessionReply::LeaseEnded { .. }),
        ) => Ok(()),
        (loaded, released) => {
            give_back();
            Err(format!("{loaded:?}, {released:?}"))
        }
    }
}

#[test]
fn slow_and_splitting_networks_change_nothing() {
    let scene = Scene::new();
    for mischief in [
        Mischief::None,
        Mischief::Delay(Duration::from_millis(20)),
        Mischief::Split(1),
        Mischief::Split(7),
    ] {
        let (client, _manager, agent) = through(&scene, mischief);
        whole_session(&client, &agent).unwrap_or_else(|error| panic!("{mischief:?}: {error}"));
    }
    scene.still_serves();
}

#[test]
fn spoilt_connections_end_and_harm_no_other_client() {
    let scene = Scene::new();
    for after in [0, 600, 2500, 6000] {
        for mischief in [
            Mischief::Reorder(after),
            Mischief::Repeat(after),
            Mischief::Flip(after),
            Mischief::Cut(after),
        ] {
            let (client, manager, agent) = through(&scene, Mischief::None);
            agent.set(mischief);
            let outcome = whole_session(&client, &agent);
            // Steps that ended before the interference succeeded; a step that the interference hit has failed, with a
            // text.
            if let Err(error) = &outcome {
                assert!(!error.is_empty());
            }
            assert!(after > 600 || outcome.is_err(), "{mischief:?} was not noticed");
            until_true("the core is free", LIMIT, || scene.free_cores() == 1);
            // The manager's connection breaks, and the next request opens another one.
            manager.set(mischief);
            let broken = RemoteClient::new(
                &scene.here,
                &scene.authority.client("alice"),
                &Address::new("127.0.0.1", manager.address().port()),
            );
            let _ = broken.agents();
            manager.set(Mischief::None);
            until_true("it is reached again", LIMIT, || broken.agents().is_ok());
        }
    }
    scene.still_serves();
}

#[test]
fn lease_over_a_silent_network_ends_on_both_sides() {
    let scene = Scene::new();
    let (client, _manager, agent) = through(&scene, Mischief::None);
    // The first bytes pass, then no bytes pass, and neither side closes the connection.
    agent.set(Mischief::Swallow(8000));
    // Long enough to attach within it.
    let ttl = Duration::from_secs(3);
    let mut grant = client.acquire(ttl).expect("a lease");
    grant.endpoint = format!("https://{}", agent.address());
    let mut session = client.attached(&grant);
    let renew = hotlease_wire::session::SessionRequest::Renew;
    let mut renewed = Instant::now();
    let lost = loop {
        match session.ask(&renew, &[]) {
            Ok(hotlease_wire::session::SessionReply::Renewed { .. }) => renewed = Instant::now(),
            _ => break Instant::now(),
        }
    };
    let bound = ttl + Duration::from_secs(1);
    // The machine may be busy.
    let grace = Duration::from_millis(2500);
    assert!(
        lost - renewed < bound + grace,
        "the client noticed after {:?}",
        lost - renewed
    );
    let free = until_true("the core is free", LIMIT, || scene.free_cores() == 1);
    assert!(renewed.elapsed() < bound + grace + free, "the agent noticed late");
    assert!(
        renewed.elapsed() < 2 * bound,
        "the core was free after {:?}",
        renewed.elapsed()
    );
}
