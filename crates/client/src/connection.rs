//! The connection to one incarnation of a worker: opens channels, registers memory, notices its end.

use crate::Error;
use crate::channel::Channel;
use crate::death::{Death, Kind};
use crate::link::Link;
use crate::options::{Completion, LeaseOptions};
use crate::session;
use hotlease_fabric::channel::{ClientChannel, ReplyRing};
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::memory::Memory;
use hotlease_fabric::socket::Socket;
use hotlease_wire::Refusal;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest};
use hotlease_wire::ids::{Epoch, RegionId, SlotIndex, WorkerIndex};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::task::AbortHandle;

const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// After one of the two has come, how long to wait for the other: the worker's end of file, or the
/// agent's word about it. Together with the agent's own latency well under the promised 250 ms.
const NEWS_LIMIT: Duration = Duration::from_millis(100);
const WORKER: &str = "the worker";

/// A client's connection to a worker.
pub(crate) struct Connection {
    id: u64,
    link: Link<ConnectionReply>,
    worker: WorkerIndex,
    epoch: Epoch,
    death: OnceLock<Death>,
    channels: Mutex<Vec<Weak<Channel>>>,
    /// On which this client's threads sleep.
    doorbell: Arc<Doorbell>,
}

/// Keeps a connection watched. When dropped, the connection and its channels are closed.
pub(crate) struct Watched {
    connection: Arc<Connection>,
    watcher: AbortHandle,
}

impl Watched {
    /// On the control thread.
    pub(crate) fn start(
        socket: Socket,
        worker: WorkerIndex,
        epoch: Epoch,
        session: Arc<session::Shared>,
        doorbell: Arc<Doorbell>,
    ) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let connection = Arc::new(Connection {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            link: Link::new(socket)?,
            worker,
            epoch,
            death: OnceLock::new(),
            channels: Mutex::new(Vec::new()),
            doorbell,
        });
        let watcher = tokio::spawn(connection.clone().watch(session)).abort_handle();
        Ok(Self { connection, watcher })
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watcher.abort();
        self.connection.deallocate();
    }
}

impl Connection {
    /// Unique in the process, never 0.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How it ended, if it has.
    pub(crate) fn death(&self) -> Option<&Death> {
        self.death.get()
    }

    /// Exchanges rings with a slot.
    pub(crate) async fn open(&self, slot: SlotIndex, options: &LeaseOptions) -> Result<ClientChannel, Error> {
        let (request, reply) = (options.request_shape(), options.reply_shape());
        let replies = ReplyRing::create(reply)?;
        let open = ConnectionRequest::Open { slot, request, reply };
        let fds = [replies.fd(), self.doorbell.fd()];
        match self.link.ask(&open, &fds, WORKER, REQUEST_LIMIT).await {
            Ok((ConnectionReply::Opened { generation }, fds)) => {
                let Ok([ring, doorbell]) = <[OwnedFd; 2]>::try_from(fds) else {
                    return Err(Error::protocol("the worker's Opened has not two descriptors"));
                };
                if generation == 0 {
                    return Err(Error::protocol("the worker's channel has generation 0"));
                }
                Ok(ClientChannel::open(replies, generation, request, ring, doorbell)?)
            }
            other => Err(unexpected("Open", other)),
        }
    }

    /// Makes a channel of exchanged rings; it is closed with the connection. `base`: index of the code's
    /// first function.
    pub(crate) fn channel(
        self: &Arc<Self>,
        rings: ClientChannel,
        base: u16,
        completion: Completion,
    ) -> Arc<Channel> {
        let channel = Channel::new(rings, self.clone(), self.doorbell.clone(), base, completion);
        let channel = Arc::new(channel);
        self.channels().push(Arc::downgrade(&channel));
        if self.death.get().is_some() {
            // It ended before it could learn of this channel.
            channel.close();
        }
        channel
    }

    /// Makes memory known to the worker.
    pub(crate) async fn register(&self, region: RegionId, memory: &Memory) -> Result<(), Error> {
        let register = ConnectionRequest::Register {
            region,
            size_bytes: memory.size_bytes(),
        };
        match self
            .link
            .ask(&register, &[memory.fd()], WORKER, REQUEST_LIMIT)
            .await
        {
            Ok((ConnectionReply::Done, _)) => Ok(()),
            // On a dead worker the channel says it better, with the cause. That may not be known yet when
            // the socket is closed already.
            Err(_) if self.death.get().is_some() => Ok(()),
            Err(Error::Refused(Refusal::Unavailable { .. })) => Ok(()),
            other => Err(unexpected("Register", other)),
        }
    }

    /// Makes the worker forget it. A worker that does not answer is dying, and forgets everything.
    pub(crate) async fn deregister(&self, region: RegionId) {
        let deregister = ConnectionRequest::Deregister { region };
        let answer = self.link.ask(&deregister, &[], WORKER, REQUEST_LIMIT).await;
        if let Ok((ConnectionReply::Refused(refusal), _)) = answer {
            tracing::debug!(%refusal, "the worker kept a buffer");
        }
    }

    /// Closes it because its lease is being given back.
    pub(crate) fn deallocate(&self) {
        self.close(Death {
            kind: Kind::Deallocated,
            gone: false,
        });
    }

    /// Closes all channels; only the first reason counts.
    pub(crate) fn close(&self, death: Death) {
        if self.death.set(death).is_err() {
            return;
        }
        for channel in self.channels().iter().filter_map(Weak::upgrade) {
            channel.close();
        }
        self.link.close();
        self.doorbell.ring_always();
    }

    fn channels(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Channel>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end, from the worker's socket and from the agent, and closes the channels with what
    /// is known then.
    async fn watch(self: Arc<Self>, session: Arc<session::Shared>) {
        let end_of_file = async {
            while let Some((reply, fds)) = self.link.next().await {
                self.link.answer(reply, fds);
            }
        };
        tokio::pin!(end_of_file);
        let news = session.death_of(self.worker, self.epoch);
        tokio::pin!(news);
        let death = tokio::select! {
            biased;
            death = &mut news => match death.kind {
                Kind::Worker { .. } => death,
                // Its workers are being killed; only their end of file proves that they are gone.
                kind => {
                    let gone = tokio::time::timeout(NEWS_LIMIT, &mut end_of_file).await.is_ok()
                        && matches!(kind, Kind::Lease(_));
                    Death { kind, gone }
                }
            },
            () = &mut end_of_file => match tokio::time::timeout(NEWS_LIMIT, &mut news).await {
                Ok(Death { kind: kind @ Kind::Lease(_), .. }) => Death { kind, gone: true },
                Ok(death) => death,
                Err(_) => Death { kind: Kind::Silent, gone: false },
            },
        };
        tracing::debug!(
            worker = self.worker.0,
            epoch = self.epoch.0,
            ?death,
            "worker lost"
        );
        self.close(death);
    }
}

/// The error in an answer that is not the expected one.
fn unexpected(request: &str, answer: Result<(ConnectionReply, Vec<OwnedFd>), Error>) -> Error {
    match answer {
        Err(error) => error,
        Ok((ConnectionReply::Refused(refusal), _)) => refusal.into(),
        Ok(_) => Error::protocol(format!("the worker answered {request} with something else")),
    }
}
