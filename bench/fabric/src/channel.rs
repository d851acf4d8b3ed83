//! Channel of the transport between two ports of this process, as benchmarks use it.

use super::Failure;
use hotlease_fabric::channel::{CallParameters, ClientChannel, ReplyRing, RequestRing, WorkerChannel};
use hotlease_fabric::memory::Memory;
use hotlease_fabric::ofi::{Access, OfiRing, Port, PortOptions, PortPeer, Provider, Registration, TransferSpans};
use hotlease_wire::connection::RingShape;
use hotlease_wire::frame::{Flags, InvocationStatus};
use hotlease_wire::ids::{Epoch, FunctionIndex};
use hotlease_wire::limits::{ENTRY_BYTES_DEFAULT, RING_DEPTH_DEFAULT};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const CALL: CallParameters = CallParameters {
    epoch: Epoch(1),
    function: FunctionIndex(0),
    flags: Flags::NONE,
    timeout_us: 0,
    output_capacity: u32::MAX,
};

/// Both ends of a channel.
pub struct Channel {
    asking: ClientEnd,
    serving: WorkerEnd,
}

/// Client's end of a channel.
pub struct ClientEnd {
    client: ClientChannel<OfiRing>,
    port: Arc<Port>,
    to_worker: Arc<PortPeer>,
    next: u64,
    sleeps: bool,
}

/// Worker's end of a channel; its function is an echo.
pub struct WorkerEnd {
    worker: WorkerChannel<OfiRing>,
    port: Arc<Port>,
    to_client: Arc<PortPeer>,
    sleeps: bool,
}

/// Registered memory of both ends.
pub struct RegisteredPair {
    from: Registration,
    to: Registration,
}

impl Channel {
    pub fn open(provider: &Provider, sleeps: bool) -> Result<Self, Failure> {
        let options = PortOptions {
            sleep: sleeps,
            ..PortOptions::default()
        };
        let (client, slot) = (Port::open_with(provider, options)?, Port::open_with(provider, options)?);
        let to_worker = Arc::new(client.peer(&slot.address(), 1)?);
        let to_client = Arc::new(slot.peer(&client.address(), 1)?);
        let shape = RingShape {
            depth: RING_DEPTH_DEFAULT,
            entry_bytes: ENTRY_BYTES_DEFAULT,
        };
        let (replies, requests) = (ReplyRing::create(shape)?, RequestRing::create(shape)?);
        let client_end = client.open_channel(replies.near())?;
        let worker_end = slot.open_channel(requests.near())?;
        let (client_says, worker_says) = (*client_end.end(), *worker_end.end());
        let far_replies = worker_end.connect(&to_client, &client_says, true)?;
        let far_requests = client_end.connect(&to_worker, &worker_says, false)?;
        Ok(Self {
            asking: ClientEnd {
                client: ClientChannel::over(replies, 7, far_requests),
                port: client,
                to_worker,
                next: 0,
                sleeps,
            },
            serving: WorkerEnd {
                worker: WorkerChannel::over(requests, 7, far_replies),
                port: slot,
                to_client,
                sleeps,
            },
        })
    }

    pub fn split(&mut self) -> (&mut ClientEnd, &mut WorkerEnd) {
        (&mut self.asking, &mut self.serving)
    }

    pub fn lend(&self, from: &Arc<Memory>, to: &Arc<Memory>) -> Result<RegisteredPair, Failure> {
        let from = self.asking.port.register(from, Access::PeerReads)?;
        let to = self.serving.port.register(to, Access::PeerWrites)?;
        Ok(RegisteredPair { from, to })
    }
}

impl ClientEnd {
    pub fn round_trip(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), Failure> {
        let express = self.client.express();
        let number = self.next;
        self.next += 1;
        express.publish_quiet(number, &CALL, &[input])?;
        let reply = express.awaited(number);
        let begin = Instant::now();
        let mut looks = 0u32;
        let header = loop {
            if let Some(header) = reply.poll() {
                break header?;
            }
            if self.sleeps {
                self.port.sleep(PATIENCE, || reply.poll().is_some());
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(4096) && begin.elapsed() > PATIENCE {
                return Err("no reply".into());
            }
        };
        express.read(&header, output);
        Ok(())
    }

    /// Writes to the worker, as a worker writes a result into a client's buffer; then does an invocation behind it.
    pub fn write(&mut self, lent: &RegisteredPair, length: u64) -> Result<(), Failure> {
        let spans = TransferSpans {
            remote: lent.to.remote(),
            remote_offset: 0,
            local: &lent.from,
            local_offset: 0,
            length,
        };
        self.port.write(&self.to_worker, &[spans], PATIENCE)?;
        self.round_trip(&[1; 8], &mut [0; 8])
    }
}

impl WorkerEnd {
    pub fn echo(&mut self, stop: &AtomicBool) -> Result<(), Failure> {
        self.serve(stop, |_, _| Ok(()))
    }

    /// Serves like a worker that reads a client's buffer before it runs a function.
    pub fn read(&mut self, lent: &RegisteredPair, length: u64, stop: &AtomicBool) -> Result<(), Failure> {
        let spans = TransferSpans {
            remote: lent.from.remote(),
            remote_offset: 0,
            local: &lent.to,
            local_offset: 0,
            length,
        };
        self.serve(stop, |port, peer| Ok(port.read(peer, &[spans], PATIENCE)?))
    }

    fn serve(
        &mut self,
        stop: &AtomicBool,
        before: impl Fn(&Port, &PortPeer) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        while !stop.load(Ordering::Relaxed) {
            let Some(request) = self.worker.take() else {
                if self.sleeps {
                    let worker = &self.worker;
                    self.port.sleep(Duration::from_millis(100), || {
                        worker.has_request() || stop.load(Ordering::Relaxed)
                    });
                } else {
                    self.port.progress();
                }
                continue;
            };
            before(&self.port, &self.to_client)?;
            let input = self.worker.input(&request);
            // SAFETY: input and output of one request; `take` has checked its length against both entries.
            unsafe { hotlease_bench_fabric::copy(input.start, self.worker.output(&request), input.bytes) };
            self.worker
                .reply_with_output(&request, InvocationStatus::Ok, 0, input.bytes);
            self.worker.settle();
        }
        Ok(())
    }
}
