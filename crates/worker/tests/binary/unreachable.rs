//! Buffers of a client on another host that the worker cannot reach: the client is informed whether its function ran.
//! The client's port makes no progress, like the port of a stopped process, until the worker has given up.

use super::{SHAPE, Worker};
use hotlease_fabric::channel::{CallParameters, ClientChannel, ReplyRing};
use hotlease_fabric::memory::Memory;
use hotlease_fabric::ofi::{Access, Libfabric, OfiRing, Port, PortPeer, Registration, providers};
use hotlease_fabric::socket::Socket;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest};
use hotlease_wire::control::WorkerOrder;
use hotlease_wire::frame::{Flags, InvocationStatus, Span};
use hotlease_wire::ids::{RegionId, SlotIndex};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PATIENCE: Duration = Duration::from_secs(20);
/// More bytes than the buffers of a connection have room for: they do not get through without the client's port.
const LARGE_BYTES: u64 = 64 << 20;
const REGION: RegionId = RegionId(1);
/// Time limit of the worker's attempt.
const TIMEOUT_US: u32 = 200_000;

/// A client on the same machine that reaches the worker over a fabric.
struct Client {
    channel: ClientChannel<OfiRing>,
    port: Arc<Port>,
    _registration: Registration,
    _socket: Socket,
    _peer: Arc<PortPeer>,
}

impl Client {
    /// Connects a client; returns `None` without libfabric.
    fn connect(worker: &mut Worker) -> Option<Self> {
        let library = Libfabric::load();
        let provider = library.and_then(|library| providers::find_provider(&library, "tcp;ofi_rxm", Some(LOCAL)));
        let provider = provider.inspect_err(|error| eprintln!("skipped: {error}")).ok()?;
        let port = Port::open(&provider).unwrap();
        let (socket, theirs) = Socket::pair().unwrap();
        worker.order(&WorkerOrder::Introduce { lent: None }, theirs.into());
        let slot = SlotIndex(0);
        let key = 0x1234_5678_9abc_def0;
        let link = ConnectionRequest::Link {
            slot,
            port: port.address(),
            key,
            host: Some(LOCAL),
        };
        let ConnectionReply::Linked { port: address } = ask(&socket, &link) else {
            panic!("no link")
        };
        let peer = Arc::new(port.peer(&address, key).unwrap());
        port.probe(&peer, PATIENCE).unwrap();
        let replies = ReplyRing::create(SHAPE).unwrap();
        let near = port.open_channel(replies.near()).unwrap();
        let open = ConnectionRequest::OpenFabric {
            slot,
            request: SHAPE,
            key,
            end: *near.end(),
        };
        let ConnectionReply::OpenedFabric { generation, end } = ask(&socket, &open) else {
            panic!("no channel")
        };
        let requests = near.connect(&peer, &end, false).unwrap();
        let memory = Arc::new(Memory::create("test", LARGE_BYTES).unwrap());
        let registration = port.register(&memory, Access::PeerReadsAndWrites).unwrap();
        let register = ConnectionRequest::RegisterFabric {
            region: REGION,
            memory: *registration.remote(),
        };
        assert_eq!(ask(&socket, &register), ConnectionReply::Done);
        Some(Self {
            channel: ClientChannel::over(replies, generation, requests),
            port,
            _registration: registration,
            _socket: socket,
            _peer: peer,
        })
    }

    /// Sends a request and does not drive the port until the worker is done with the request.
    fn call_and_stand_still(&self, worker: &Worker, id: u64, call: &CallParameters, payload: &[u8]) {
        let before = worker.usage.read(0).compute_ns;
        self.channel.publish(id, call, &[payload]).unwrap();
        let until = Instant::now() + PATIENCE;
        while worker.usage.read(0).compute_ns < before + u64::from(TIMEOUT_US) * 1000 {
            assert!(Instant::now() < until, "the worker does not give up");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn reply(&self, id: u64) -> InvocationStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(reply) = self.channel.poll(id) {
                return reply.unwrap().status;
            }
            self.port.progress();
            assert!(Instant::now() < until, "no reply to {id}");
        }
    }
}

fn ask(socket: &Socket, request: &ConnectionRequest) -> ConnectionReply {
    socket.send(request, &[]).unwrap();
    socket.receive().unwrap().expect("the worker lives").0
}

fn whole_buffer() -> [u8; Span::BYTES] {
    let span = Span {
        region: REGION,
        offset: 0,
        length: LARGE_BYTES,
    };
    span.encode()
}

#[test]
fn an_input_that_cannot_be_read_is_told_and_its_function_does_not_run() {
    let mut worker = Worker::start();
    let Some(client) = Client::connect(&mut worker) else {
        return;
    };
    let call = CallParameters {
        flags: Flags::INPUT_BUFFER,
        timeout_us: TIMEOUT_US,
        ..worker.call("claims_64_mib")
    };
    client.call_and_stand_still(&worker, 0, &call, &whole_buffer());
    assert_eq!(client.reply(0), InvocationStatus::InputUnreachable);
    assert_eq!(worker.usage.read(0).invocations, 0, "the function ran");
    assert_goes_on(&worker, &client);
}

#[test]
fn an_output_that_cannot_be_written_is_told_and_its_function_ran() {
    let mut worker = Worker::start();
    let Some(client) = Client::connect(&mut worker) else {
        return;
    };
    let call = CallParameters {
        flags: Flags::OUTPUT_BUFFER,
        timeout_us: TIMEOUT_US,
        ..worker.call("claims_64_mib")
    };
    client.call_and_stand_still(&worker, 0, &call, &whole_buffer());
    assert_eq!(client.reply(0), InvocationStatus::OutputUnreachable);
    assert_eq!(worker.usage.read(0).invocations, 1, "the function did not run");
    assert_goes_on(&worker, &client);
}

/// Uses the same buffer after the client runs again.
fn assert_goes_on(worker: &Worker, client: &Client) {
    let call = CallParameters {
        flags: Flags::OUTPUT_BUFFER,
        ..worker.call("claims_64_mib")
    };
    client.channel.publish(1, &call, &[&whole_buffer()]).unwrap();
    assert_eq!(client.reply(1), InvocationStatus::Ok, "the channel does not go on");
}
