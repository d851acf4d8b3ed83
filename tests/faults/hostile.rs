//! Ten thousand hostile requests to every listener, while another client calls.

mod bearers;

use bearers::bearers;
use hotlease_fabric::memory::sealed_copy;
use hotlease_net::{Address, CertificateRole, grpc};
use hotlease_tests::faults::caller::{Client, Steady};
use hotlease_tests::faults::row::Row;
use hotlease_tests::faults::scale::{COUNTS, random, seed, times};
use hotlease_tests::faults::tally::Tally;
use hotlease_tests::garbage::{mutated, session_requests};
use hotlease_tests::hosts::Host;
use hotlease_tests::platform::locks::cause_faults_alone;
use hotlease_tests::platform::{LIMIT, program};
use hotlease_tests::process::Process;
use hotlease_tests::session::RawSession;
use hotlease_tests::site::{Authority, Daemon, ManagerDaemon, agent};
use hotlease_tests::wait::until_true;
use hotlease_wire::grpc::{
    AcquireRequest, AgentInfo, BillRequest, FunctionUsage, HeartbeatRequest, JournalTotal, LeaseInfo, ListRequest,
    PastUsage, PastUsageRequest, RegisterRequest, ReleaseRequest, Usage, VerifyRequest,
};
use prost::Message;
use prost::bytes::{Buf, BufMut};
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// Longest pause of the calls of the well-behaved client while ten thousand requests come.
const PAUSE: Duration = Duration::from_secs(1);
/// Memory that a daemon may have grown by once these requests are over.
const GROWN_BYTES_MAX: u64 = 64 << 20;
/// Number of attacker threads.
const THREADS: u32 = 3;
/// Longest wait for the answer to a hostile request.
const ANSWERED: Duration = Duration::from_secs(5);

/// Codec that passes message bytes through as they are.
#[derive(Clone, Copy, Default)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        Self
    }
    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;
    fn encode(&mut self, bytes: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(&bytes);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = ();
    type Error = Status;
    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        from.advance(from.remaining());
        Ok(Some(()))
    }
}

/// Every method of the protocol, except those that stop a daemon or take its node where the daemon's own user asks over
/// its own socket: that user may do so, which is no attack.
fn methods(of_own_user: bool) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/wire/proto/hotlease.proto");
    let protocol = std::fs::read_to_string(path).expect("the protocol");
    let mut service = "";
    let mut methods = Vec::new();
    for line in protocol.lines() {
        let words: Vec<&str> = line.split([' ', '(']).filter(|word| !word.is_empty()).collect();
        match words[..] {
            ["service", name, ..] => service = name,
            ["rpc", "Shutdown" | "Order" | "OrderNode", ..] if of_own_user => {}
            ["rpc", name, ..] => methods.push(format!("{service}/{name}")),
            _ => {}
        }
    }
    assert!(methods.len() > 10, "the protocol has methods: {methods:?}");
    methods
}

fn text(random: &mut StdRng) -> String {
    match random.random_range(0..6) {
        0 => String::new(),
        1 => "0123456789abcdef".into(),
        2 => "x".repeat(random.random_range(1..100_000)),
        3 => "../../etc/passwd\0\n'; DROP TABLE row; --".into(),
        4 => format!("uid:{}", random.random::<i64>()),
        _ => (0..random.random_range(1..64))
            .map(|_| random.random::<char>())
            .collect(),
    }
}

fn number(random: &mut StdRng) -> u64 {
    [0, 1, 7, u64::from(u32::MAX), 1 << 63, u64::MAX, random.random()][random.random_range(0..7)]
}

/// A message that decodes, and whose fields are nonsense.
fn nonsense(random: &mut StdRng) -> Vec<u8> {
    let usage = |random: &mut StdRng| {
        Some(Usage {
            allocated_ns: number(random),
            hot_ns: number(random),
            compute_ns: number(random),
            invocations: number(random),
        })
    };
    let few = |random: &mut StdRng| random.random_range(0..30);
    match random.random_range(0..8) {
        0 => AcquireRequest {
            workers: number(random) as u32,
            slots_per_worker: number(random) as u32,
            memory_bytes: number(random),
            ttl_ms: number(random),
            hot_budget_us: number(random),
            tenant: text(random),
            sandbox: text(random),
            label: text(random),
            ..AcquireRequest::default()
        }
        .encode_to_vec(),
        1 => ReleaseRequest {
            lease: text(random),
            reason: text(random),
            ..ReleaseRequest::default()
        }
        .encode_to_vec(),
        2 => ListRequest::default().encode_to_vec(),
        3 => BillRequest {
            tenant: text(random),
            ..BillRequest::default()
        }
        .encode_to_vec(),
        4 => VerifyRequest {
            audit: random.random(),
            journal: (0..few(random))
                .map(|_| JournalTotal {
                    agent: text(random),
                    boot: text(random),
                    lease: text(random),
                    usage: usage(random),
                    ..JournalTotal::default()
                })
                .collect(),
        }
        .encode_to_vec(),
        5 => RegisterRequest {
            agent: Some(AgentInfo {
                id: text(random),
                boot: text(random),
                endpoint: text(random),
                cores: (0..few(random)).map(|_| number(random) as u32).collect(),
                ..AgentInfo::default()
            }),
            proof: number(random),
        }
        .encode_to_vec(),
        6 => HeartbeatRequest {
            leases: (0..few(random))
                .map(|_| LeaseInfo {
                    id: text(random),
                    tenant: text(random),
                    usage: usage(random),
                    functions: functions(random),
                    start: None,
                    ..LeaseInfo::default()
                })
                .collect(),
            epoch: number(random) as u32,
            ..HeartbeatRequest::default()
        }
        .encode_to_vec(),
        _ => PastUsageRequest {
            agent: text(random),
            boot: text(random),
            usage: (0..few(random))
                .map(|_| PastUsage {
                    boot: text(random),
                    lease: text(random),
                    tenant: text(random),
                    usage: usage(random),
                    functions: functions(random),
                })
                .collect(),
        }
        .encode_to_vec(),
    }
}

fn functions(random: &mut StdRng) -> Vec<FunctionUsage> {
    let function = |_| FunctionUsage {
        library: vec![1; random.random_range(0..40)],
        name: text(random),
        compute_ns: number(random),
        invocations: number(random),
    };
    (0..80).map(function).collect()
}

/// Sends a request; returns whether the daemon answered, if only with a refusal.
async fn ask(channel: Channel, methods: &[String], random: &mut StdRng) -> bool {
    let method = match random.random_range(0..20) {
        0 => text(random)
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(1000)
            .collect(),
        _ => methods[random.random_range(0..methods.len())].clone(),
    };
    let path = PathAndQuery::try_from(format!("/hotlease.v1.{method}")).expect("a path");
    let mut bytes = nonsense(random);
    for _ in 0..random.random_range(0..3) {
        if !bytes.is_empty() {
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.random();
        }
    }
    let mut client = Grpc::new(channel);
    let answer = async {
        client.ready().await.is_ok()
            && match client.unary(Request::new(bytes), path, Bytes).await {
                Ok(_) => true,
                Err(status) => status.code() != Code::Unavailable,
            }
    };
    tokio::time::timeout(ANSWERED, answer).await.unwrap_or(false)
}

/// Bytes that are no request.
fn noise(random: &mut StdRng) -> Vec<u8> {
    let mut bytes = vec![0; random.random_range(1..2000)];
    random.fill_bytes(&mut bytes);
    match random.random_range(0..4) {
        0 => bytes,
        1 => [
            b"GET /v1/leases HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
            &bytes[..],
        ]
        .concat(),
        2 => [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &bytes[..]].concat(),
        _ => [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", &bytes[..]].concat(),
    }
}

/// Listener that is attacked.
#[derive(Clone)]
enum Listener {
    /// gRPC over a Unix socket.
    Local(PathBuf),
    /// The agent's sockets for sessions.
    Sessions(PathBuf),
    /// All services of a daemon over TLS, for a client of the site.
    Tls(Address, CertificateRole),
    /// An agent's port, for peers without a certificate.
    Bearers(Address),
}

struct Site {
    client: Client,
    agent: Daemon,
    manager: ManagerDaemon,
    authority: Authority,
    host: Host,
}

impl Site {
    fn new(seed: u64) -> Self {
        let host = Host::here();
        let authority = Authority::new();
        let manager = ManagerDaemon::start(&host, &authority);
        let agent = agent(
            &host,
            &authority,
            &manager.address,
            &["alice"],
            &["--without-certificate"],
        );
        let mut command = host.command(Path::new(env!("CARGO_BIN_EXE_hotlease-test-tally")));
        command
            .env_remove("HOTLEASE_RUNTIME_DIR")
            .env("HOTLEASE_MANAGER", manager.address.to_string())
            .env("HOTLEASE_IDENTITY", authority.client("alice"));
        until_true("the agent registers", LIMIT, || {
            let output = host.command(&program("hotlease")).args(["agents", "--json"]).output();
            String::from_utf8_lossy(&output.expect("hotlease runs").stdout).contains("serving")
        });
        let how = Steady {
            seed,
            ..Steady::default()
        };
        let tally = Arc::new(Tally::new());
        Self {
            client: Client::start(command, &tally, &how),
            agent,
            manager,
            authority,
            host,
        }
    }

    fn processes(&self) -> [Process; 2] {
        [self.manager.daemon.process(), self.agent.process()]
    }

    fn listeners(&self) -> Vec<(&'static str, Listener)> {
        let directory = self.host.directory();
        let endpoint = self.agent.serving["endpoint"].as_str().expect("it serves");
        vec![
            ("manager.sock", Listener::Local(directory.join("manager.sock"))),
            ("agent.sock", Listener::Local(directory.join("agent.sock"))),
            ("session.sock", Listener::Sessions(directory.join("session.sock"))),
            (
                "the manager's port",
                Listener::Tls(self.manager.address.clone(), CertificateRole::Manager),
            ),
            (
                "the agent's port",
                Listener::Tls(endpoint.parse().expect("an address"), CertificateRole::Agent),
            ),
            (
                "the agent's port, without a certificate",
                Listener::Bearers(endpoint.parse().expect("an address")),
            ),
        ]
    }
}

/// One attacker thread.
struct Attacker<'a> {
    random: StdRng,
    listener: Listener,
    authority: &'a Authority,
}

impl Attacker<'_> {
    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    /// Sends requests; returns how many were answered.
    fn attack(mut self, requests: u32) -> u32 {
        let runtime = Self::runtime();
        let channel = match &self.listener {
            Listener::Sessions(path) => return sessions(&path.clone(), &mut self.random, requests),
            Listener::Bearers(address) => {
                return bearers(&address.clone(), self.authority, &mut self.random, requests);
            }
            Listener::Local(path) => {
                let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).expect("a path");
                runtime.block_on(async { endpoint.connect_lazy() })
            }
            Listener::Tls(address, role) => {
                let identity = hotlease_net::Identity::load(&self.authority.client("mallory")).expect("hers");
                let _within = runtime.enter();
                grpc::channel(address.clone(), Arc::new(identity), *role)
            }
        };
        let methods = methods(matches!(self.listener, Listener::Local(_)));
        let mut answered = 0;
        for _ in 0..requests {
            // Most requests are well-formed, and so get further.
            if self.random.random_range(0..5) > 0 {
                answered += u32::from(runtime.block_on(ask(channel.clone(), &methods, &mut self.random)));
                continue;
            }
            let bytes = noise(&mut self.random);
            // The connection may be closed before all is written, or refused because of the number of strangers.
            let _ = match &self.listener {
                Listener::Local(path) => UnixStream::connect(path).and_then(|mut stream| stream.write_all(&bytes)),
                Listener::Tls(address, _) => {
                    TcpStream::connect(address.authority()).and_then(|mut stream| stream.write_all(&bytes))
                }
                Listener::Sessions(_) | Listener::Bearers(_) => Ok(()),
            };
        }
        answered
    }
}

fn sessions(path: &Path, random: &mut StdRng, requests: u32) -> u32 {
    let valid = session_requests();
    let sealed = sealed_copy("hostile", &[7; 5000]).expect("a memfd");
    let mut left = requests;
    while left > 0 {
        let session = RawSession::connect(path).expect("it listens");
        for _ in 0..random.random_range(1..10).min(left) {
            left -= 1;
            let bytes = mutated(random, &valid);
            let descriptors = [sealed.as_fd(), sealed.as_fd(), sealed.as_fd()];
            let with = random.random_range(0..=3);
            if session.send_bytes(&bytes, &descriptors[..with]).is_err() {
                break;
            }
        }
    }
    requests
}

#[test]
fn hostile_requests_at_every_listener_harm_no_other_client() {
    let _alone = cause_faults_alone();
    let seed = seed();
    let mut row = Row::new(
        "10,000 hostile requests on every listener: manager and agent, local and over TLS, and sessions",
        "no daemon dies or panics; memory and descriptors are bounded; another client's calls go on",
        "hostile::hostile_requests_at_every_listener_harm_no_other_client",
        seed,
    );
    let site = Site::new(seed);
    site.client.told().until_success_after(Instant::now(), LIMIT);
    let requests = times(COUNTS.requests);
    for (name, listener) in site.listeners() {
        let before = site
            .processes()
            .map(|daemon| (daemon.anonymous_bytes(), daemon.descriptors()));
        let began = Instant::now();
        let answered: u32 = std::thread::scope(|scope| {
            let threads = [(); THREADS as usize].map(|()| listener.clone());
            let threads = threads.into_iter().zip(0..).map(|(listener, thread)| {
                let attacker = Attacker {
                    random: random(seed, thread),
                    listener,
                    authority: &site.authority,
                };
                scope.spawn(move || attacker.attack(requests.div_ceil(THREADS)))
            });
            let threads: Vec<_> = threads.collect();
            let join = |thread: ScopedJoinHandle<'_, u32>| thread.join().expect("no panic");
            threads.into_iter().map(join).sum()
        });
        assert!(
            answered > requests / 2,
            "{name}: only {answered} requests got as far as an answer"
        );
        let took = began.elapsed();
        row.took("time for all of them", None, took);
        row.took(
            "longest pause of another's calls",
            Some(PAUSE),
            site.client.told().longest_gap_after(began),
        );
        assert_eq!(
            site.client.told().failure_after(began),
            None,
            "{name}: another client's call failed"
        );
        for (daemon, (memory, descriptors)) in site.processes().into_iter().zip(before) {
            assert!(daemon.is_alive(), "{name}: a daemon died");
            until_true("the descriptors of strangers are closed", LIMIT, || {
                daemon.descriptors() <= descriptors + 10
            });
            let grown = daemon.anonymous_bytes().saturating_sub(memory);
            assert!(grown < GROWN_BYTES_MAX, "{name}: a daemon grew by {grown} bytes");
        }
        row.ran();
    }
    let (outcomes, _) = site.client.finish();
    assert!(
        outcomes.iter().any(|outcome| outcome.failed.is_none()),
        "no call was answered"
    );
    row.finish();
}
