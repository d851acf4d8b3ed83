//! A channel whose worker echoes in a thread of its own.

use crate::transport::{Ends, LONG, Side};
use hotlease_fabric::channel::{CallParameters, ClientChannel, WorkerChannel};
use hotlease_fabric::ring::FarRing;
use hotlease_wire::frame::{Flags, InvocationStatus, ReplyHeader};
use hotlease_wire::ids::{Epoch, FunctionIndex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

pub const CALL: CallParameters = CallParameters {
    epoch: Epoch(1),
    function: FunctionIndex(0),
    flags: Flags::NONE,
    timeout_us: 0,
    output_capacity: u32::MAX,
};

/// Way in which an end waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Poll,
    Sleep,
}

/// Flag that ends a serving thread.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Returns a guard that sets the flag when dropped, so that a failing test ends its threads too.
    pub fn guard(&self) -> StopGuard {
        StopGuard(self.clone())
    }
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

pub struct StopGuard(Stop);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Answers requests with their input until `stop` is set.
pub fn echo<F: FarRing>(workers: &mut [WorkerChannel<F>], side: &Side, stop: &Stop, wait: Wait) {
    while !stop.is_set() {
        let mut idle = true;
        for worker in workers.iter_mut() {
            while let Some(request) = worker.take() {
                idle = false;
                let (input, output) = (worker.input(&request), worker.output(&request));
                // SAFETY: input and output are at least `input.bytes` long and do not overlap.
                unsafe {
                    std::ptr::copy_nonoverlapping(input.start.as_ptr(), output.as_ptr(), input.bytes);
                }
                worker.reply_with_output(&request, InvocationStatus::Ok, 0, input.bytes);
            }
            worker.settle();
        }
        match wait {
            Wait::Sleep if idle => {
                side.sleep(|| stop.is_set() || workers.iter().any(WorkerChannel::has_request));
            }
            _ => side.progress(),
        }
    }
}

/// The client's end of a channel whose worker is served by a thread.
pub struct Served<F: FarRing> {
    pub client: Arc<ClientChannel<F>>,
    pub side: Arc<Side>,
    stop: Stop,
    worker: Option<JoinHandle<()>>,
    wait: Wait,
}

impl<F: FarRing + 'static> Served<F> {
    pub fn start(ends: Ends<F>, client_waits: Wait, worker_waits: Wait) -> Self {
        let stop = Stop::default();
        let worker = {
            let (side, stop, worker) = (ends.worker_side, stop.clone(), ends.worker);
            std::thread::spawn(move || echo(&mut [worker], &side, &stop, worker_waits))
        };
        Self {
            client: Arc::new(ends.client),
            side: ends.client_side,
            stop,
            worker: Some(worker),
            wait: client_waits,
        }
    }

    /// Waits for the reply to `number`, which must come.
    pub fn reply(&self, number: u64) -> ReplyHeader {
        self.within_express(number, false)
    }

    pub fn express_reply(&self, number: u64) -> ReplyHeader {
        self.within_express(number, true)
    }

    fn within_express(&self, number: u64, express: bool) -> ReplyHeader {
        let begin = Instant::now();
        loop {
            let polled = match express {
                true => self.client.express().poll(number),
                false => self.client.poll(number),
            };
            if let Some(reply) = polled {
                return reply.unwrap();
            }
            assert!(begin.elapsed() < LONG, "no reply to invocation {number}");
            if self.wait == Wait::Sleep {
                let there = || match express {
                    true => self.client.express().poll(number).is_some(),
                    false => self.client.poll(number).is_some(),
                };
                self.side.sleep(there);
            }
        }
    }

    /// Makes one invocation through the ring, from begin to end, and checks it.
    pub fn round_trip(&self, number: u64, input: &[u8]) {
        self.client.publish(number, &CALL, &[input]).unwrap();
        let header = self.reply(number);
        self.check(number, &header, input);
    }

    pub fn check(&self, number: u64, header: &ReplyHeader, input: &[u8]) {
        let mut output = vec![0; input.len()];
        assert_eq!(header.status, InvocationStatus::Ok, "invocation {number}");
        assert_eq!(header.length, input.len() as u64, "invocation {number}");
        assert_eq!(self.client.read(number, header, &mut output), input.len());
        assert!(
            output == input,
            "invocation {number} of {} bytes came back wrong",
            input.len()
        );
    }
}

impl<F: FarRing> Drop for Served<F> {
    fn drop(&mut self) {
        self.stop.set();
        if let Some(worker) = self.worker.take()
            && worker.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the worker's thread panicked");
        }
    }
}

/// Bytes that differ between invocations and positions.
pub fn pattern(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ number.wrapping_mul(197)) as u8)
        .collect()
}
