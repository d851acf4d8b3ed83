//! The connection to one incarnation of a worker: opens channels, registers memory, notices its end.

mod memory;
mod registration;

pub(crate) use memory::{AccessError, BlockAccess};

use crate::Error;
use crate::channel::Channel;
use crate::code::Code;
use crate::options::{Completion, LeaseOptions};
use crate::session;
use crate::session::death::{Death, DeathKind};
use crate::session::registrations::{RegistrationLimits, Registrations};
use crate::session::request_socket::RequestSocket;
use crate::session::transport::{self, Transport};
use hotlease_fabric::channel::{ClientChannel, ReplyRing};
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::foreign::ForeignDescriptor;
use hotlease_fabric::ofi::{OfiError, Port, PortOptions, PortPeer, Provider};
use hotlease_fabric::socket::Socket;
use hotlease_fabric::transport::TransportRing;
use hotlease_wire::Rejection;
use hotlease_wire::comm::seat::Seat;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest};
use hotlease_wire::ids::{Epoch, LeaseId, SlotIndex, WorkerIndex};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, JoinSet};

const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// How long to wait for the second of two signals after the first: the worker's end of file and the agent's report of
/// it. The second signal usually follows within a millisecond. On a node whose cores are all busy, the agent's report
/// takes some hundred milliseconds; a client that did not wait for the report would not know the outcome of its call.
pub(crate) const NEWS_LIMIT: Duration = Duration::from_secs(1);
/// How long to wait for the report of an end that the agent has announced.
const END_LIMIT: Duration = Duration::from_millis(100);
/// How long the last replies of a dead worker may take.
const REPLIES_LIMIT: Duration = Duration::from_millis(50);
/// Pause between two looks for late replies.
const REPLIES_LOOK: Duration = Duration::from_millis(1);
const WORKER: &str = "the worker";

/// A channel's rings, over any transport.
pub(crate) type Rings = ClientChannel<TransportRing>;

/// A client's connection to a worker.
pub(crate) struct WorkerConnection {
    id: u64,
    link: RequestSocket<ConnectionReply>,
    worker: WorkerIndex,
    epoch: Epoch,
    session: Arc<session::SessionState>,
    death: OnceLock<Death>,
    channels: Mutex<Vec<Weak<Channel>>>,
    /// Doorbell on which this client's threads sleep.
    doorbell: Arc<Doorbell>,
    transport: Transport,
    /// The port that was found to work, if the worker is reached over a fabric.
    port: OnceLock<Arc<Port>>,
    /// Memory registered with the worker.
    pub(crate) registrations: tokio::sync::Mutex<Registrations>,
}

/// Keeps a connection watched. When dropped, the connection and its channels are closed.
pub(crate) struct ConnectionGuard {
    connection: Arc<WorkerConnection>,
    watcher: JoinHandle<()>,
}

impl ConnectionGuard {
    /// Starts to watch a connection. Runs on the control thread.
    pub(crate) fn start(
        socket: Socket,
        worker: WorkerIndex,
        epoch: Epoch,
        session: Arc<session::SessionState>,
        doorbell: Arc<Doorbell>,
        transport: Transport,
        limits: RegistrationLimits,
    ) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let connection = Arc::new(WorkerConnection {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            link: RequestSocket::new(socket)?,
            worker,
            epoch,
            session,
            death: OnceLock::new(),
            channels: Mutex::new(Vec::new()),
            doorbell,
            transport,
            port: OnceLock::new(),
            registrations: tokio::sync::Mutex::new(Registrations::new(limits)),
        });
        let watcher = tokio::spawn(connection.clone().watch());
        Ok(Self { connection, watcher })
    }

    pub(crate) fn connection(&self) -> &Arc<WorkerConnection> {
        &self.connection
    }

    /// Waits until the connection has ended by itself, and its channels are closed with the reason as far as it is
    /// known.
    async fn ended(mut self) {
        let _ = (&mut self.watcher).await;
    }
}

/// Drops connections of a lost lease, each once it has noticed how it ended: if it were closed earlier, it would report
/// to its invocations that the lease was released.
pub(crate) async fn await_ends(connections: impl IntoIterator<Item = ConnectionGuard>) {
    let ended: JoinSet<()> = connections.into_iter().map(ConnectionGuard::ended).collect();
    // A connection whose agent still lives may never end.
    let _ = tokio::time::timeout(2 * NEWS_LIMIT, ended.join_all()).await;
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.watcher.abort();
        self.connection.deallocate();
    }
}

impl WorkerConnection {
    /// Number of the connection: unique in the process, never 0.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The worker's lease, index and epoch.
    pub(crate) fn worker_id(&self) -> (Option<LeaseId>, WorkerIndex, Epoch) {
        (self.session.lease(), self.worker, self.epoch)
    }

    /// Whether the lease of the worker is over: nothing more is sent to the worker, although its end has not been
    /// reported yet.
    pub(crate) fn is_doomed(&self) -> bool {
        self.session.is_over()
    }

    /// How the worker ended; `None` if no end is known.
    pub(crate) fn death(&self) -> Option<&Death> {
        self.death.get()
    }

    /// Name of the transport: `shm`, or the provider over which the worker is reached.
    pub(crate) fn transport(&self) -> &'static str {
        match (&self.transport, self.port.get()) {
            (Transport::Ofi { .. }, Some(port)) => port.provider(),
            (Transport::Ofi { .. }, None) => "ofi",
            (Transport::Shm, _) => "shm",
        }
    }

    /// Whether the worker is reached through shared memory.
    pub(crate) fn is_shm(&self) -> bool {
        matches!(self.transport, Transport::Shm)
    }

    /// Exchanges rings with a slot.
    pub(crate) async fn open(&self, slot: SlotIndex, options: &LeaseOptions) -> Result<Rings, Error> {
        match &self.transport {
            Transport::Shm => Ok(self.open_shm(slot, options).await?.map(TransportRing::Shm)),
            Transport::Ofi { provider, route } => {
                let (port, key) = match self.port.get() {
                    Some(port) => (port.clone(), self.link(port, slot, route.host).await?),
                    None => {
                        let port = transport::port_options(options.completion);
                        let link = |port: Arc<Port>| async move {
                            let peer = self.link(&port, slot, route.host).await?;
                            Ok((port, peer))
                        };
                        self.find_provider(provider.as_deref(), port, link).await?
                    }
                };
                self.open_fabric(port, key, slot, options).await
            }
        }
    }

    async fn open_shm(&self, slot: SlotIndex, options: &LeaseOptions) -> Result<ClientChannel, Error> {
        let (request, reply) = (options.request_shape(), options.reply_shape());
        let replies = ReplyRing::create(reply)?;
        let open = ConnectionRequest::Open { slot, request, reply };
        let fds = [replies.fd(), self.doorbell.fd()];
        match self.link.ask(&open, &fds, WORKER, REQUEST_LIMIT).await {
            Ok((ConnectionReply::Opened { generation }, fds)) => {
                let memory = fds.into_iter().map(ForeignDescriptor::into_memory);
                let memory: Vec<OwnedFd> = memory.collect::<Result<_, _>>().unwrap_or_default();
                let Ok([ring, doorbell]) = <[OwnedFd; 2]>::try_from(memory) else {
                    return Err(Error::protocol(
                        "the worker's Opened must have two descriptors of memory",
                    ));
                };
                if generation == 0 {
                    return Err(Error::protocol("the worker's channel has generation 0"));
                }
                Ok(ClientChannel::open(replies, generation, request, ring, doorbell)?)
            }
            other => Err(unexpected("Open", other)),
        }
    }

    /// Tries one provider after the other, until `link` has exchanged bytes over a port of it.
    async fn find_provider<L, F: Future<Output = Result<L, Error>>>(
        &self,
        provider: Option<&str>,
        port: PortOptions,
        link: impl Fn(Arc<Port>) -> F,
    ) -> Result<L, Error> {
        let Transport::Ofi { route, .. } = &self.transport else {
            return Err(Error::protocol("no fabric was asked for"));
        };
        let (wanted, local) = (provider.map(str::to_owned), route.local);
        let candidates = blocking(move || transport::candidates(wanted.as_deref(), local)).await?;
        let candidates = candidates.map_err(|error| transport::no_transport(route.host, &[error.to_string()]))?;
        let mut tried = Vec::new();
        for provider in candidates {
            let name = provider.name();
            let linked = match open_port(provider, port).await {
                Ok(port) => link(port.clone()).await.map(|linked| (port, linked)),
                Err(error) => Err(error),
            };
            match linked {
                Ok((port, linked)) => {
                    tracing::debug!(provider = name, host = %route.host, "reaching a worker over a fabric");
                    let _ = self.port.set(port);
                    return Ok(linked);
                }
                // The worker is gone: no other provider will reach it.
                Err(error) if self.death.get().is_some() => return Err(error),
                Err(error) => tried.push(format!("{name}: {error}")),
            }
        }
        Err(transport::no_transport(route.host, &tried))
    }

    /// Exchanges the addresses of a slot's port and this client's port, and checks that bytes pass over the link.
    async fn link(&self, port: &Arc<Port>, slot: SlotIndex, host: IpAddr) -> Result<FabricPeer, Error> {
        let key = Port::draw_key();
        let link = ConnectionRequest::Link {
            slot,
            port: port.address(),
            key,
            host: Some(host),
        };
        let worker = match self.link.ask(&link, &[], WORKER, REQUEST_LIMIT).await {
            Ok((ConnectionReply::Linked { port }, _)) => port,
            other => return Err(unexpected("Link", other)),
        };
        let reaching = port.clone();
        let peer = blocking(move || transport::connect_peer(&reaching, &worker, key)).await?;
        let peer = peer.map_err(|error| failed(&error))?;
        Ok(FabricPeer { key, peer })
    }

    async fn open_fabric(
        &self,
        port: Arc<Port>,
        link: FabricPeer,
        slot: SlotIndex,
        options: &LeaseOptions,
    ) -> Result<Rings, Error> {
        let replies = ReplyRing::create(options.reply_shape())?;
        let near = port.open_channel(replies.near()).map_err(|error| failed(&error))?;
        let open = ConnectionRequest::OpenFabric {
            slot,
            request: options.request_shape(),
            key: link.key,
            end: *near.end(),
        };
        let (generation, worker) = match self.link.ask(&open, &[], WORKER, REQUEST_LIMIT).await {
            Ok((ConnectionReply::OpenedFabric { generation, end }, _)) => (generation, end),
            other => return Err(unexpected("OpenFabric", other)),
        };
        if generation == 0 || worker.shape != options.request_shape() {
            return Err(Error::protocol(
                "the worker's end of the channel is not the requested one",
            ));
        }
        let requests = near
            .connect(&link.peer, &worker, false)
            .map_err(|error| failed(&error))?;
        let requests = TransportRing::Ofi(Box::new(requests));
        Ok(ClientChannel::over(replies, generation, requests))
    }

    /// Assigns a slot its seat in a gang.
    pub(crate) async fn seat(&self, slot: SlotIndex, seat: Seat) -> Result<(), Error> {
        let request = ConnectionRequest::Seat { slot, seat };
        match self.link.ask(&request, &[], WORKER, REQUEST_LIMIT).await {
            Ok((ConnectionReply::Done, _)) => Ok(()),
            other => Err(unexpected("Seat", other)),
        }
    }

    /// Makes a channel of exchanged rings; the channel is closed with the connection. `code`: the code with the index
    /// of its first function in the worker.
    pub(crate) fn channel(self: &Arc<Self>, rings: Rings, code: (u16, Code), completion: Completion) -> Arc<Channel> {
        let channel = Channel::new(rings, self.clone(), self.doorbell.clone(), code, completion);
        let channel = Arc::new(channel);
        self.channels().push(Arc::downgrade(&channel));
        if self.death.get().is_some() {
            // The connection ended before the channel was added to its list.
            channel.close();
        }
        channel
    }

    /// Closes the connection because its lease is being released.
    pub(crate) fn deallocate(&self) {
        self.close(Death {
            kind: DeathKind::Deallocated,
            gone: false,
        });
    }

    /// Closes all channels; only the first reason is recorded.
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

    /// Closes the channels because the fabric has lost the worker, unless the agent reports the reason within
    /// [`NEWS_LIMIT`]. `since`: when the loss was seen first.
    pub(crate) fn close_unreachable(&self, why: &OfiError, since: Instant) {
        if since.elapsed() >= NEWS_LIMIT {
            self.close(Death {
                kind: DeathKind::Unreachable(why.to_string()),
                gone: false,
            });
        }
    }

    /// Whether the end of file proves that nothing of the worker runs any more. After the agent's end, a worker's
    /// connection closes only when the worker ends: the kernel closes it after the worker's last thread has stopped.
    /// Over a tunnel the agent's own end closes the connection, which proves nothing.
    fn is_end_proof(&self, kind: &DeathKind) -> bool {
        match kind {
            DeathKind::Lease(_) => true,
            DeathKind::Agent => self.is_shm(),
            _ => false,
        }
    }

    /// Waits until the worker's socket or the agent reports the end, and closes the channels with the reason that is
    /// known then.
    async fn watch(self: Arc<Self>) {
        let end_of_file = async {
            while let Some((reply, fds)) = self.link.next().await {
                self.link.answer(reply, fds);
            }
        };
        tokio::pin!(end_of_file);
        let news = self.session.death_of(self.worker, self.epoch);
        tokio::pin!(news);
        let death = tokio::select! {
            biased;
            death = &mut news => match death.kind {
                DeathKind::Worker { .. } => death,
                // The workers are being killed; only their end of file proves that they are gone.
                kind => {
                    let ended = tokio::time::timeout(NEWS_LIMIT, &mut end_of_file).await.is_ok();
                    let gone = ended && self.is_end_proof(&kind);
                    Death { kind, gone }
                }
            },
            () = &mut end_of_file => self.find_reason(news).await,
        };
        tracing::debug!(worker = self.worker.0, epoch = self.epoch.0, ?death, "worker lost");
        self.await_replies(&death).await;
        self.close(death);
    }

    /// Waits for the reason of an end of file: from the agent's report, or from its announcement that the lease ends.
    async fn find_reason(&self, news: impl Future<Output = Death>) -> Death {
        let unproven = |kind| Death { kind, gone: false };
        let announced = async {
            let reason = self.session.announced_end().await;
            // The agent's report of the end proves more, but it may take long to become durable.
            tokio::time::sleep(END_LIMIT).await;
            reason
        };
        tokio::select! {
            biased;
            death = news => match death.kind {
                DeathKind::Worker { .. } => death,
                kind => Death { gone: self.is_end_proof(&kind), kind },
            },
            reason = announced => unproven(DeathKind::Lease(reason)),
            () = tokio::time::sleep(NEWS_LIMIT) => unproven(DeathKind::Silent),
        }
    }

    /// Waits for late replies: over a fabric the news of a death may arrive before replies that the worker sent
    /// while it lived.
    async fn await_replies(&self, death: &Death) {
        let lacks = || {
            let channels = self.channels();
            let mut channels = channels.iter().filter_map(Weak::upgrade);
            channels.any(|channel| channel.is_missing_replies(death))
        };
        let come = async {
            while !self.is_shm() && lacks() {
                tokio::time::sleep(REPLIES_LOOK).await;
            }
        };
        // Replies that have not arrived by then were lost with the worker.
        let _ = tokio::time::timeout(REPLIES_LIMIT, come).await;
    }
}

/// A link to a slot's port.
struct FabricPeer {
    key: u64,
    peer: Arc<PortPeer>,
}

async fn open_port(provider: Provider, options: PortOptions) -> Result<Arc<Port>, Error> {
    // Blocks while the hardware is set up.
    let port = blocking(move || Port::open_with(&provider, options)).await?;
    port.map_err(|error| failed(&error))
}

/// Runs work off the control thread, because other tasks wait for that thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::failed_task(&error))
}

fn failed(error: &OfiError) -> Error {
    Rejection::Unavailable {
        what: error.to_string(),
    }
    .into()
}

/// The error for an answer that is not the expected one.
fn unexpected(request: &str, answer: Result<(ConnectionReply, Vec<ForeignDescriptor>), Error>) -> Error {
    match answer {
        Err(error) => error,
        Ok((ConnectionReply::Refused(refusal), _)) => refusal.into(),
        Ok(_) => Error::protocol(format!("the worker answered {request} with something else")),
    }
}
