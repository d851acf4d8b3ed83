//! Calls of one slot of the worker, over a channel like any client's channel.

use crate::guest::monitor_sender::MonitorSender;
use crate::guest::power_off;
use hotlease_fabric::buffer::SharedBuffer;
use hotlease_fabric::channel::{CallParameters, ClientChannel, ReplyRing};
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::socket::Socket;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest, RingShape};
use hotlease_wire::frame::{Flags, InvocationStatus, ReplyHeader, Span};
use hotlease_wire::ids::{Epoch, FunctionIndex, RegionId, SlotIndex};
use hotlease_wire::machine::{FromGuest, ToGuest};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Entry size; larger data goes through buffers. Memory is allocated as it is used.
const ENTRY_BYTES: u32 = 1 << 20;
/// One call at a time.
const SHAPE: RingShape = RingShape {
    depth: 1,
    entry_bytes: ENTRY_BYTES,
};
/// Interval at which a sleeping thread checks for the reply even if the doorbell does not ring.
const SLEEP: Duration = Duration::from_secs(1);

/// A call that the monitor has sent.
pub struct CallRequest {
    function: u16,
    timeout_us: u32,
    capacity: u64,
    input: Vec<u8>,
}

impl CallRequest {
    /// The call in this message; `None` if the message is no call.
    pub fn new(message: &ToGuest, input: Vec<u8>) -> Option<Self> {
        match *message {
            ToGuest::Call {
                function,
                timeout_us,
                capacity,
                ..
            } => Some(Self {
                function,
                timeout_us,
                capacity,
                input,
            }),
            _ => None,
        }
    }
}

/// The client's side of a slot.
pub struct GuestSlot {
    index: u16,
    epoch: Epoch,
    connection: Arc<Mutex<Socket>>,
    teller: MonitorSender,
    channel: ClientChannel,
    doorbell: Doorbell,
    number: u64,
    input: GrowingBuffer,
    output: GrowingBuffer,
}

impl GuestSlot {
    /// Opens a channel to the slot.
    pub fn open(
        index: u16,
        epoch: Epoch,
        connection: &Arc<Mutex<Socket>>,
        teller: MonitorSender,
    ) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| format!("slot {index}: {error}");
        let doorbell = Doorbell::create().map_err(|error| text(&error))?;
        let replies = ReplyRing::create(SHAPE).map_err(|error| text(&error))?;
        let open = ConnectionRequest::Open {
            slot: SlotIndex(index),
            request: SHAPE,
            reply: SHAPE,
        };
        let (reply, fds) = ask(connection, &open, &[replies.fd(), doorbell.fd()])?;
        let (ConnectionReply::Opened { generation }, Ok([ring, bell])) = (reply, <[OwnedFd; 2]>::try_from(fds)) else {
            return Err(text(&"the worker opens no channel"));
        };
        let channel = ClientChannel::open(replies, generation, SHAPE, ring, bell).map_err(|error| text(&error))?;
        Ok(Self {
            index,
            epoch,
            connection: Arc::clone(connection),
            teller,
            channel,
            doorbell,
            number: 0,
            input: GrowingBuffer::numbered(2 * u32::from(index)),
            output: GrowingBuffer::numbered(2 * u32::from(index) + 1),
        })
    }

    /// Makes calls as long as the machine lives.
    pub fn serve(mut self, calls: &Receiver<CallRequest>) {
        while let Ok(called) = calls.recv() {
            let (status, code, bytes, output) = match self.call(called) {
                Ok((header, output)) => (header.status, header.code, header.length, output),
                Err(why) => {
                    eprintln!("hotlease-machine: {why}");
                    (InvocationStatus::BadSpan, 0, 0, Vec::new())
                }
            };
            let returned = FromGuest::Returned {
                slot: self.index,
                status: status as u16,
                code,
                bytes,
            };
            self.teller.tell(&returned, &output);
        }
    }

    fn call(&mut self, mut called: CallRequest) -> Result<(ReplyHeader, Vec<u8>), String> {
        let entry = ENTRY_BYTES as usize - 2 * Span::BYTES;
        let (mut flags, mut spans) = (Flags::NONE, Vec::new());
        let mut inline: &[u8] = &called.input;
        if called.input.len() > entry {
            let buffer = self.input.of(called.input.len(), &self.connection)?;
            buffer[..called.input.len()].copy_from_slice(&called.input);
            spans.extend(self.input.span(called.input.len() as u64).encode());
            flags = flags.with(Flags::INPUT_BUFFER);
            inline = &[];
        }
        let is_large = called.capacity > u64::from(ENTRY_BYTES);
        if is_large {
            let capacity = usize::try_from(called.capacity).map_err(|error| error.to_string())?;
            self.output.of(capacity, &self.connection)?;
            spans.extend(self.output.span(called.capacity).encode());
            flags = flags.with(Flags::OUTPUT_BUFFER);
        }
        let call = CallParameters {
            epoch: self.epoch,
            function: FunctionIndex(called.function),
            flags,
            timeout_us: called.timeout_us,
            output_capacity: if is_large { 0 } else { called.capacity as u32 },
        };
        let number = self.number;
        self.number += 1;
        self.channel
            .publish(number, &call, &[inline, &spans])
            .map_err(|error| error.to_string())?;
        // Frees the input: the memory of the machine is for the function.
        called.input = Vec::new();
        let header = self.wait(number)?;
        if !matches!(header.status, InvocationStatus::Ok | InvocationStatus::FunctionError) {
            return Ok((header, Vec::new()));
        }
        let bytes = usize::try_from(header.length.min(called.capacity)).map_err(|error| error.to_string())?;
        let output = match is_large {
            true => self.output.read(bytes),
            false => {
                let mut output = vec![0; bytes];
                let read = self.channel.read(number, &header, &mut output);
                output.truncate(read);
                output
            }
        };
        Ok((header, output))
    }

    /// Sleeps until the reply has arrived; if the worker dies, the machine ends too.
    fn wait(&self, number: u64) -> Result<ReplyHeader, String> {
        loop {
            if let Some(reply) = self.channel.poll(number) {
                return reply.map_err(|error| error.to_string());
            }
            self.doorbell
                .sleep_unless(|| self.channel.poll(number).is_some(), Some(SLEEP));
            self.doorbell.disarm();
        }
    }
}

/// A buffer for data that does not fit into a ring entry; grows.
struct GrowingBuffer {
    region: RegionId,
    buffer: Option<SharedBuffer<u8>>,
}

impl GrowingBuffer {
    fn numbered(number: u32) -> Self {
        Self {
            region: RegionId(number),
            buffer: None,
        }
    }

    /// The buffer, with room for this many bytes.
    fn of(&mut self, bytes: usize, connection: &Mutex<Socket>) -> Result<&mut SharedBuffer<u8>, String> {
        if self.buffer.as_ref().is_some_and(|buffer| buffer.elements() < bytes) {
            self.buffer = None;
            done(ask(
                connection,
                &ConnectionRequest::Deregister { region: self.region },
                &[],
            )?)?;
        }
        if self.buffer.is_none() {
            let buffer = SharedBuffer::new(bytes.next_power_of_two()).map_err(|error| error.to_string())?;
            let register = ConnectionRequest::Register {
                region: self.region,
                size_bytes: buffer.size_bytes() as u64,
            };
            done(ask(connection, &register, &[buffer.memory().fd()])?)?;
            self.buffer = Some(buffer);
        }
        self.buffer.as_mut().ok_or_else(|| "no buffer".into())
    }

    fn span(&self, length: u64) -> Span {
        Span {
            region: self.region,
            offset: 0,
            length,
        }
    }

    fn read(&self, bytes: usize) -> Vec<u8> {
        let all = self.buffer.as_deref().unwrap_or_default();
        all.get(..bytes).unwrap_or_default().to_vec()
    }
}

fn done((reply, _): (ConnectionReply, Vec<OwnedFd>)) -> Result<(), String> {
    match reply {
        ConnectionReply::Done => Ok(()),
        ConnectionReply::Refused(refusal) => Err(refusal.to_string()),
        _ => power_off(),
    }
}

/// Sends a request to the worker, and receives its reply.
fn ask(
    connection: &Mutex<Socket>,
    request: &ConnectionRequest,
    fds: &[BorrowedFd<'_>],
) -> Result<(ConnectionReply, Vec<OwnedFd>), String> {
    let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
    let gone = |error: String| format!("the worker does not answer: {error}");
    connection.send(request, fds).map_err(|error| gone(error.to_string()))?;
    match connection.receive() {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(gone("it has ended".into())),
        Err(error) => Err(gone(error.to_string())),
    }
}
