//! Both ends of the raw exchange over libfabric.

use hotlease_fabric::memory::Memory;
use hotlease_fabric::ofi::endpoint::{CompletionRead, Endpoint, PostResult, RegionKeys};
use hotlease_fabric::ofi::ffi::{self, fi_addr_t, fi_cq_msg_entry};
use hotlease_fabric::ofi::{OfiError, Provider};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);
/// Number of polls between two looks at the clock.
const SPINS: u32 = 1 << 12;
/// Length of the longest message.
pub const MESSAGE_BYTES: usize = 8192;
/// Number of posted receives: messages that may arrive before one is taken.
const RECEIVES: usize = 4;
/// Length of the longest address of an endpoint.
const ADDRESS_BYTES_MAX: usize = 256;
/// Numbers of the operations other than receives: a send, and writes.
const SEND: usize = RECEIVES;
const WRITES: usize = 8;

/// Error of an operation, or of another end that has not answered for ten seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawError(pub String);

impl std::fmt::Display for RawError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the raw ping-pong stopped: {}", self.0)
    }
}

impl std::error::Error for RawError {}

/// Address and keys that one end sends to the other.
#[derive(Debug, Clone)]
pub struct EndAddress {
    address: Vec<u8>,
    memory: u64,
    key: u64,
}

impl EndAddress {
    /// Encodes address and keys for the other process.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.address.len() + 16);
        bytes.extend(self.memory.to_le_bytes());
        bytes.extend(self.key.to_le_bytes());
        bytes.extend(&self.address);
        bytes
    }

    /// Decodes the bytes of [`to_bytes`](Self::to_bytes); returns `None` for all other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (memory, rest) = bytes.split_first_chunk()?;
        let (key, address) = rest.split_first_chunk()?;
        (!address.is_empty() && address.len() <= ADDRESS_BYTES_MAX).then(|| Self {
            address: address.to_vec(),
            memory: u64::from_le_bytes(*memory),
            key: u64::from_le_bytes(*key),
        })
    }
}

#[repr(C, align(64))]
struct Context([u64; 8]);

/// One end: an endpoint, message buffers, and memory for RMA.
struct End {
    endpoint: Endpoint,
    contexts: Box<[Context]>,
    buffers: Arc<Memory>,
    buffer_descriptor: *mut c_void,
    memory: Arc<Memory>,
    keys: RegionKeys,
    peer: fi_addr_t,
    ordered: bool,
    sends: usize,
    writes: usize,
    sleeps: bool,
}

// SAFETY: handles and addresses have no thread affinity; one thread uses them at a time.
unsafe impl Send for End {}

impl End {
    fn open(provider: &Provider, memory: &Arc<Memory>, sleeps: bool) -> Result<Self, OfiError> {
        let mut endpoint = Endpoint::open(provider, sleeps)?;
        let buffers = Arc::new(Memory::create("raw-buffers", ((RECEIVES + 1) * MESSAGE_BYTES) as u64)?);
        let access = ffi::FI_SEND | ffi::FI_RECV | ffi::FI_READ | ffi::FI_WRITE;
        // The regions are never closed: they end with the process, and the endpoint does not outlive it.
        // SAFETY: both memories are held by self, which also holds the endpoint and drops it first.
        let (buffer_descriptor, keys) = unsafe {
            let bytes = buffers.size_bytes() as usize;
            let (_, local) = endpoint.register(buffers.start(), bytes, access, 1)?;
            let bytes = memory.size_bytes() as usize;
            let remote = access | ffi::FI_REMOTE_READ | ffi::FI_REMOTE_WRITE;
            (local.descriptor, endpoint.register(memory.start(), bytes, remote, 2)?.1)
        };
        let mut end = Self {
            endpoint,
            contexts: (0..=SEND + 1).map(|_| Context([0; 8])).collect(),
            buffers,
            buffer_descriptor,
            memory: memory.clone(),
            keys,
            peer: 0,
            ordered: provider.keeps_write_order(),
            sends: 0,
            writes: 0,
            sleeps,
        };
        for number in 0..RECEIVES {
            end.post(number);
        }
        Ok(end)
    }

    fn hello(&self) -> Result<EndAddress, OfiError> {
        let address = self.endpoint.address()?;
        Ok(EndAddress {
            address,
            memory: self.keys.address,
            key: self.keys.key,
        })
    }

    fn meet(&mut self, other: &EndAddress) -> Result<(), OfiError> {
        // SAFETY: `address` is that of an endpoint of the same provider.
        self.peer = unsafe { self.endpoint.insert(&other.address) }?;
        Ok(())
    }

    fn buffer(&self, number: usize) -> *mut u8 {
        // SAFETY: the result is inside the buffers.
        unsafe { self.buffers.start().as_ptr().add(number * MESSAGE_BYTES) }
    }

    fn context(&mut self, number: usize) -> *mut c_void {
        (&raw mut self.contexts[number]).cast()
    }

    fn post(&mut self, number: usize) {
        let (buffer, context) = (self.buffer(number), self.context(number));
        // SAFETY: buffer and context belong to this receive until it completes, and live with self.
        while unsafe {
            self.endpoint
                .receive(buffer, MESSAGE_BYTES, self.buffer_descriptor, context)
        } == PostResult::Again
        {}
    }

    /// Takes one completion; returns number and length of a message that arrived.
    #[inline]
    fn poll(&mut self) -> Result<Option<(usize, usize)>, RawError> {
        let mut entry = [fi_cq_msg_entry {
            op_context: std::ptr::null_mut(),
            flags: 0,
            len: 0,
        }];
        match self.endpoint.completions(&mut entry, &mut [0]) {
            CompletionRead::Read(0) => Ok(None),
            CompletionRead::Read(_) => {
                let offset = entry[0].op_context as usize - self.contexts.as_ptr() as usize;
                match offset / size_of::<Context>() {
                    SEND => self.sends -= 1,
                    number if number < RECEIVES => return Ok(Some((number, entry[0].len))),
                    _ => self.writes -= 1,
                }
                Ok(None)
            }
            CompletionRead::Error(failure) => Err(RawError(self.endpoint.text(failure.code))),
            CompletionRead::Failed(result) => Err(RawError(self.endpoint.text(result as i32))),
        }
    }

    /// Sends the first bytes of the send buffer.
    #[inline]
    fn send(&mut self, bytes: usize) -> Result<(), RawError> {
        let (buffer, context) = (self.buffer(SEND), self.context(SEND));
        let begin = Instant::now();
        loop {
            let posted = if bytes <= self.endpoint.inject_bytes() {
                // SAFETY: the send buffer, which is not written meanwhile.
                self.endpoint
                    .inject(unsafe { std::slice::from_raw_parts(buffer, bytes) }, self.peer)
            } else {
                self.sends += 1;
                let descriptor = self.buffer_descriptor;
                // SAFETY: the buffer is not written until `sends` is 0 again.
                let posted = unsafe { self.endpoint.send(buffer, bytes, descriptor, self.peer, context) };
                self.sends -= usize::from(posted != PostResult::Yes);
                posted
            };
            match posted {
                PostResult::Yes => return Ok(()),
                PostResult::Failed(result) => return Err(RawError(self.endpoint.text(result as i32))),
                PostResult::Again if begin.elapsed() > PATIENCE => return Err(RawError("no room".into())),
                // Happens only during connection set-up, when no other message can arrive.
                PostResult::Again => drop(self.poll()?),
            }
        }
    }

    /// Waits for the next message; returns `None` if told to stop.
    #[inline]
    fn next(&mut self, stop: Option<&AtomicBool>) -> Result<Option<(usize, usize)>, RawError> {
        let begin = Instant::now();
        loop {
            for _ in 0..SPINS {
                if let Some(message) = self.poll()? {
                    return Ok(Some(message));
                }
                if self.sleeps && self.endpoint.prepare_sleep() {
                    self.wait_readable();
                    break;
                }
            }
            match stop {
                Some(stop) if stop.load(Ordering::Relaxed) => return Ok(None),
                None if begin.elapsed() > PATIENCE => return Err(RawError("no answer".into())),
                _ => {}
            }
        }
    }

    fn wait_readable(&self) {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        if let Some(fd) = self.endpoint.wait_fd() {
            // The caller looks again after a signal, as after readiness.
            let _ = poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::from(100u8));
        }
    }

    /// Waits until the send buffer is free.
    #[inline]
    fn settle(&mut self) -> Result<(), RawError> {
        while self.sends > 0 {
            self.poll()?;
        }
        Ok(())
    }
}

/// End that answers.
pub struct Peer(End);

impl Peer {
    /// Opens an end with memory that clients may write to. With `sleeps` it waits on the descriptor instead of polling.
    pub fn open(provider: &Provider, memory: &Arc<Memory>, sleeps: bool) -> Result<Self, OfiError> {
        End::open(provider, memory, sleeps).map(Self)
    }

    /// Returns address and keys for the client.
    pub fn hello(&self) -> Result<EndAddress, OfiError> {
        self.0.hello()
    }

    /// Sets the client that the peer answers from now on.
    pub fn meet(&mut self, client: &EndAddress) -> Result<(), OfiError> {
        self.0.meet(client)
    }

    /// Sends back each message, copied once, until told to stop.
    pub fn answer(&mut self, stop: &AtomicBool) -> Result<(), RawError> {
        while let Some(message) = self.0.next(Some(stop))? {
            self.reply(message)?;
        }
        Ok(())
    }

    /// Sends back each message until [`Client::stop`], for a client in another process.
    pub fn serve(&mut self) -> Result<(), RawError> {
        while let Some(message) = self.0.next(None)? {
            if self.reply(message)? == 0 {
                return self.0.settle();
            }
        }
        Ok(())
    }

    #[inline]
    fn reply(&mut self, (number, bytes): (usize, usize)) -> Result<usize, RawError> {
        let end = &mut self.0;
        end.settle()?;
        let bytes = bytes.min(MESSAGE_BYTES);
        // SAFETY: two buffers of the same size, with no operation on either.
        unsafe { std::ptr::copy_nonoverlapping(end.buffer(number), end.buffer(SEND), bytes) };
        end.post(number);
        end.send(bytes)?;
        Ok(bytes)
    }
}

/// End that asks.
pub struct Client {
    end: End,
    far: EndAddress,
}

impl Client {
    /// Opens an end with memory to write from. With `sleeps` it waits on the descriptor instead of polling.
    pub fn open(provider: &Provider, memory: &Arc<Memory>, peer: &EndAddress, sleeps: bool) -> Result<Self, OfiError> {
        let mut end = End::open(provider, memory, sleeps)?;
        end.meet(peer)?;
        Ok(Self { end, far: peer.clone() })
    }

    /// Returns address and keys for the peer.
    pub fn hello(&self) -> Result<EndAddress, OfiError> {
        self.end.hello()
    }

    /// Does one round trip of at most [`MESSAGE_BYTES`]; returns how many bytes came back.
    #[inline]
    pub fn echo(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize, RawError> {
        let end = &mut self.end;
        let bytes = input.len().min(MESSAGE_BYTES);
        end.settle()?;
        // SAFETY: the send buffer is free, and at least that long.
        unsafe { std::ptr::copy_nonoverlapping(input.as_ptr(), end.buffer(SEND), bytes) };
        end.send(bytes)?;
        let Some((number, bytes)) = end.next(None)? else {
            return Ok(0);
        };
        let bytes = bytes.min(output.len());
        // SAFETY: a message of that length lies in its buffer.
        unsafe { std::ptr::copy_nonoverlapping(end.buffer(number), output.as_mut_ptr(), bytes) };
        end.post(number);
        Ok(bytes)
    }

    /// Tells a peer in [`Peer::serve`] to stop: sends an empty message, which is the last one that the peer returns.
    pub fn stop(&mut self) -> Result<(), RawError> {
        self.echo(&[], &mut []).map(drop)
    }

    /// Writes the first `bytes` of this end's memory to the peer's, in pieces of `chunk`, and returns when they have
    /// arrived, which the echo behind them shows.
    pub fn write(&mut self, bytes: usize, chunk: usize) -> Result<(), RawError> {
        self.copy(Rma::Write, 0, bytes, chunk)?;
        self.echo(&[1; 8], &mut [0; 8]).map(drop)
    }

    /// Copies between the first `bytes` of this end's memory and as many bytes of the peer's memory from `at` on, in
    /// pieces of `chunk`, and returns when all operations are complete.
    pub fn copy(&mut self, rma: Rma, at: usize, bytes: usize, chunk: usize) -> Result<(), RawError> {
        let end = &mut self.end;
        let context = end.context(SEND + 1);
        let mut done = 0;
        let begin = Instant::now();
        while done < bytes || end.writes > 0 {
            if done < bytes && end.writes < WRITES {
                let length = chunk.min(bytes - done);
                // SAFETY: inside the memory, which is registered and not used meanwhile. The context is shared: no
                // provider that is used here needs a separate context (its mode bits are clear).
                let posted = unsafe {
                    let start = end.memory.start().as_ptr().add(done);
                    let (address, key) = (self.far.memory + (at + done) as u64, self.far.key);
                    let descriptor = end.keys.descriptor;
                    let delivered = rma == Rma::WriteDelivered || !end.ordered;
                    match rma {
                        Rma::Read => end
                            .endpoint
                            .read(start, length, descriptor, end.peer, address, key, context),
                        Rma::Write | Rma::WriteDelivered => end
                            .endpoint
                            .write(start, length, descriptor, end.peer, address, key, context, delivered),
                    }
                };
                match posted {
                    PostResult::Yes => {
                        end.writes += 1;
                        done += length;
                        continue;
                    }
                    PostResult::Failed(result) => return Err(RawError(end.endpoint.text(result as i32))),
                    PostResult::Again => {}
                }
            }
            end.poll()?;
            if begin.elapsed() > 6 * PATIENCE {
                return Err(RawError("RMA does not complete".into()));
            }
        }
        Ok(())
    }
}

/// Kind of RMA operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rma {
    /// Reads of the peer's memory.
    Read,
    /// Writes to the peer's memory, complete when the provider no longer needs this end's memory.
    Write,
    /// Writes to the peer's memory, complete when the bytes are there.
    WriteDelivered,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_decoded_as_encoded_and_invalid_bytes_are_refused() {
        let hello = EndAddress {
            address: vec![1, 2, 3],
            memory: 4,
            key: u64::MAX,
        };
        let read = EndAddress::from_bytes(&hello.to_bytes()).expect("its own bytes");
        assert_eq!(
            (read.address, read.memory, read.key),
            (hello.address, hello.memory, hello.key)
        );
        assert!(EndAddress::from_bytes(&[0; 16]).is_none(), "no address");
        assert!(
            EndAddress::from_bytes(&[0; 17 + ADDRESS_BYTES_MAX]).is_none(),
            "too long"
        );
    }
}
