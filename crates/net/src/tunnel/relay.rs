//! Relay between a local socket and a stream to another host: passes messages in both directions until one ends.

use super::arrivals::{Arrival, Arrivals};
use super::client::Dialler;
use super::frames::{FrameReader, FrameWriter};
use super::local::LocalSocket;
use super::memory::{self, SealedMemory};
use super::tickets::{TicketHolder, Tickets};
use crate::NetError;
use hotlease_fabric::foreign::ForeignDescriptor;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest};
use hotlease_wire::limits::CODE_BYTES_MAX;
use hotlease_wire::session::SessionReply;
use hotlease_wire::tunnel::{Attachment, TunnelFrame};
use hotlease_wire::{Rejection, decode, encode};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Shortest and longest pause between frames that only say that this host is alive.
const ALIVE_MIN: Duration = Duration::from_millis(50);
const ALIVE_MAX: Duration = Duration::from_secs(2);
/// Limit for passing on the last data after one end has closed, and for closing the stream.
const FAREWELL: Duration = Duration::from_secs(2);
/// Limit of requests to a worker that wait for their responses.
const WAITING_MAX: usize = 64;
/// Time limit for a library to arrive: this time, and a second more for each MiB.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(10);

/// Position of a relay; it decides how descriptors are passed on.
pub(super) enum RelaySide {
    /// Agent's end of a session: a socket is kept under a ticket, which the client's end presents to fetch the socket;
    /// memory is received.
    AgentSession {
        tickets: Arc<Tickets>,
        holder: TicketHolder,
        /// Bound on memory that arrives, over all sessions.
        arrivals: Arc<Arrivals>,
        /// Memory that arrived with each request that the agent has not answered yet, in the order of the requests.
        unanswered: StdMutex<VecDeque<Option<Arrival>>>,
        /// Set while memory is arriving.
        receiving: Arc<AtomicBool>,
    },
    /// Client's end of a session: sockets are fetched by their tickets, memory is sent.
    ClientSession { dialler: Arc<Dialler> },
    /// Agent's end of a worker's connection: messages only.
    Worker,
    /// Client's end of a worker's connection: requests with shared memory are answered by the relay.
    Connection { sources: Mutex<VecDeque<ResponseSource>> },
}

/// Source of the next response to the client.
pub(super) enum ResponseSource {
    /// The worker.
    Worker,
    /// This relay, with the response.
    Relay(Vec<u8>),
}

impl RelaySide {
    pub fn connection() -> Self {
        Self::Connection {
            sources: Mutex::default(),
        }
    }
}

/// Passes messages on until one end closes, fails, or is silent for too long; then closes both ends.
pub(super) async fn relay<S: AsyncRead + AsyncWrite>(
    local: LocalSocket,
    (mut incoming, mut outgoing): (FrameReader<S>, FrameWriter<S>),
    side: RelaySide,
) {
    let alive = (incoming.silence / 4).clamp(ALIVE_MIN, ALIVE_MAX);
    let ended = {
        let mut outward = std::pin::pin!(outward(&local, &mut outgoing, &side, alive));
        let mut inward = std::pin::pin!(inward(&mut incoming, &local, &side));
        // Messages that an end sent before it closed are still passed on, for example a response or a lease's last
        // total.
        tokio::select! {
            ended = &mut outward => match ended {
                // The other host receives nothing more, but its last messages may not have been read yet.
                Err(closed @ NetError::Closed { .. }) => {
                    timeout(FAREWELL, inward).await.unwrap_or(Err(closed))
                }
                ended => ended,
            },
            ended = &mut inward => match ended {
                Ok(()) => timeout(FAREWELL, outward).await.unwrap_or(Ok(())),
                failed => failed,
            },
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to another host ended");
    }
    // Close the local end first: the process that waits there need not wait for the farewell.
    drop(local);
    let _ = timeout(FAREWELL, outgoing.close()).await;
}

/// Passes messages from the local end on; returns when the local end has closed. Sends signs of life meanwhile.
async fn outward<S: AsyncWrite>(
    local: &LocalSocket,
    outgoing: &mut FrameWriter<S>,
    side: &RelaySide,
    alive: Duration,
) -> Result<(), NetError> {
    let mut ticks = interval(alive);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let received = tokio::select! {
            received = local.receive() => received,
            _ = ticks.tick() => {
                outgoing.send(&TunnelFrame::Alive).await?;
                continue;
            }
        };
        let received = received.map_err(|error| NetError::Protocol {
            peer: "the local end".into(),
            why: error.to_string(),
        })?;
        let Some((bytes, fds)) = received else {
            return Ok(());
        };
        send(local, outgoing, side, bytes, fds).await?;
    }
}

/// Sends one message of the local end, or answers it here. Depending on the relay's position, descriptors become
/// tickets or bytes.
async fn send<S: AsyncWrite>(
    local: &LocalSocket,
    outgoing: &mut FrameWriter<S>,
    side: &RelaySide,
    bytes: Vec<u8>,
    fds: Vec<ForeignDescriptor>,
) -> Result<(), NetError> {
    let mut memories = Vec::new();
    let mut attachments = Vec::new();
    match side {
        RelaySide::AgentSession {
            tickets,
            holder,
            unanswered,
            ..
        } => {
            if decode::<SessionReply>(&bytes).is_ok_and(|reply| reply.is_answer()) {
                lock(unanswered).pop_front();
            }
            for socket in fds {
                let ticket = tickets.insert(socket, holder).map_err(NetError::Refused)?;
                attachments.push(Attachment::Socket { ticket });
            }
        }
        RelaySide::ClientSession { .. } => {
            for fd in fds {
                let sealed = fd.into_memory().ok().and_then(SealedMemory::of);
                let sealed = sealed.filter(|memory| (1..=CODE_BYTES_MAX).contains(&memory.size_bytes));
                let sealed = sealed.ok_or_else(|| unexpected("the client", "memory that is not sealed"))?;
                attachments.push(Attachment::Memory {
                    size_bytes: sealed.size_bytes,
                });
                memories.push(sealed);
            }
        }
        RelaySide::Worker if fds.is_empty() => {}
        RelaySide::Worker => return Err(unexpected("the worker", "a descriptor")),
        RelaySide::Connection { sources } => {
            let mut sources = sources.lock().await;
            if sources.len() >= WAITING_MAX {
                return Err(unexpected(
                    "the client",
                    "too many requests without waiting for answers",
                ));
            }
            if !fds.is_empty() {
                let refusal = refusal(&bytes);
                if sources.is_empty() {
                    return local.send(&refusal, &[]).await.map_err(NetError::local("answer"));
                }
                sources.push_back(ResponseSource::Relay(refusal));
                return Ok(());
            }
            sources.push_back(ResponseSource::Worker);
        }
    }
    outgoing.send(&TunnelFrame::Message { bytes, attachments }).await?;
    for memory in &memories {
        memory.send(outgoing).await?;
    }
    if !memories.is_empty() {
        // Any frame would do: sending a frame also flushes the bytes of the memories.
        outgoing.send(&TunnelFrame::Alive).await?;
    }
    Ok(())
}

/// Response to a request with shared memory, which cannot be sent to another host.
fn refusal(request: &[u8]) -> Vec<u8> {
    let what = match decode::<ConnectionRequest>(request) {
        Ok(ConnectionRequest::Open { .. }) => "a channel's ring",
        Ok(ConnectionRequest::Register { .. }) => "a registered buffer",
        _ => "the memory that belongs to this request",
    };
    encode(&ConnectionReply::Refused(Rejection::NeedsSharedMemory {
        what: what.into(),
    }))
}

/// Passes messages from the other host on; returns when the local end receives nothing more.
async fn inward<S: AsyncRead>(
    incoming: &mut FrameReader<S>,
    local: &LocalSocket,
    side: &RelaySide,
) -> Result<(), NetError> {
    loop {
        let (bytes, attachments) = match incoming.next().await? {
            TunnelFrame::Message { bytes, attachments } => (bytes, attachments),
            TunnelFrame::Alive => continue,
            TunnelFrame::Refused(refusal) => return Err(NetError::Refused(refusal)),
            _ => return Err(unexpected(incoming.peer(), "a first message in mid-stream")),
        };
        let (fds, arrival) = descriptors(incoming, side, attachments).await?;
        if let RelaySide::AgentSession { unanswered, .. } = side {
            // Recorded before the agent can answer.
            lock(unanswered).push_back(arrival);
        }
        let RelaySide::Connection { sources } = side else {
            if local.send(&bytes, &fds).await.is_err() {
                return Ok(());
            }
            continue;
        };
        // Locked until the response is delivered, so that no later response overtakes it.
        let mut sources = sources.lock().await;
        if local.send(&bytes, &fds).await.is_err() {
            return Ok(());
        }
        if matches!(sources.front(), Some(ResponseSource::Worker)) {
            sources.pop_front();
        }
        while let Some(ResponseSource::Relay(answer)) = sources.front() {
            local.send(answer, &[]).await.map_err(NetError::local("answer"))?;
            sources.pop_front();
        }
    }
}

/// Turns attachments of a message into descriptors. A message to an agent has at most one memory, whose arrival is
/// returned, too.
async fn descriptors<S: AsyncRead>(
    incoming: &mut FrameReader<S>,
    side: &RelaySide,
    attachments: Vec<Attachment>,
) -> Result<(Vec<ForeignDescriptor>, Option<Arrival>), NetError> {
    let mut fds = Vec::new();
    let mut arrival = None;
    for attachment in attachments {
        let fd: ForeignDescriptor = match (attachment, side) {
            (
                Attachment::Memory { size_bytes },
                RelaySide::AgentSession {
                    arrivals,
                    holder,
                    receiving,
                    ..
                },
            ) if arrival.is_none() => {
                let _receiving = ReceivingFlag::begin(receiving);
                let limit = ARRIVAL_LIMIT + Duration::from_secs(size_bytes >> 20);
                let arrived = timeout(limit, async {
                    // Fails only if the bound is closed, which never happens.
                    arrival = arrivals.make_room(holder.tenant(), size_bytes).await.ok();
                    memory::receive(incoming, size_bytes).await
                });
                arrived
                    .await
                    .unwrap_or_else(|_| {
                        Err(NetError::Silent {
                            peer: "a function library".into(),
                            after: limit,
                        })
                    })?
                    .into()
            }
            (Attachment::Socket { ticket }, RelaySide::ClientSession { dialler }) => {
                dialler.fetch(ticket).await?.into()
            }
            _ => {
                return Err(unexpected(incoming.peer(), "an attachment that does not belong there"));
            }
        };
        fds.push(fd);
    }
    Ok((fds, arrival))
}

fn lock<T>(mutex: &StdMutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Flag that is set while memory is arriving; cleared when this is dropped.
struct ReceivingFlag<'a>(&'a AtomicBool);

impl<'a> ReceivingFlag<'a> {
    fn begin(flag: &'a AtomicBool) -> Self {
        flag.store(true, Ordering::Relaxed);
        Self(flag)
    }
}

impl Drop for ReceivingFlag<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

fn unexpected(peer: &str, what: &str) -> NetError {
    NetError::Protocol {
        peer: peer.to_owned(),
        why: format!("it sent {what}"),
    }
}

#[cfg(test)]
mod tests;
