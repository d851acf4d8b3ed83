//! A client's session: attach, then requests in turn, with events in between.
//!
//! The socket is also read while a request is being handled, so that the end of a client is noticed at once, during
//! every wait.

use crate::isolation::caller::SessionPeer;
use crate::leases::incarnation::worker_died;
use crate::node::outbox::Outbox;
use crate::node::{Node, SessionHold};
use crate::socket::AsyncSocket;
use crate::workers::worker::{ORDER_LIMIT, OrderError};
use hotlease_fabric::foreign::ForeignDescriptor;
use hotlease_fabric::socket::{Socket, SocketError};
use hotlease_lease::agent::BookEvent;
use hotlease_wire::control::WorkerOrder;
use hotlease_wire::ids::{CodeHash, Epoch, WorkerIndex};
use hotlease_wire::limits::PROTOCOL_VERSION;
use hotlease_wire::session::{SessionReply, SessionRequest};
use hotlease_wire::token::Rights;
use hotlease_wire::{EndReason, Rejection};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, Interval, interval_at, timeout};

/// A session that has not attached within this time is closed.
const ATTACH_LIMIT: Duration = Duration::from_secs(5);
/// Largest number of requests that a client may send ahead of their answers.
const AHEAD_MAX: usize = 8;
/// Number of attempts to connect to a worker that dies in each attempt. After them the client gets an error.
const CONNECT_ATTEMPTS: usize = 3;

type Request = (SessionRequest, Vec<ForeignDescriptor>);

/// Serves a client until it leaves or its lease ends. While `receiving` is set, a long message of the client is
/// arriving, which delays its renewals.
pub(crate) async fn serve(node: Arc<Node>, socket: Socket, caller: SessionPeer, receiving: Arc<AtomicBool>) {
    let socket = match AsyncSocket::new(socket) {
        Ok(socket) => Arc::new(socket),
        Err(error) => {
            tracing::warn!(%error, "cannot serve a session");
            return;
        }
    };
    let session = Session {
        outbox: Arc::new(Outbox::new(Arc::clone(&socket))),
        node,
        socket,
        ahead: VecDeque::new(),
        renewals: None,
        receiving,
    };
    session.run(caller).await;
}

struct Session {
    node: Arc<Node>,
    socket: Arc<AsyncSocket>,
    outbox: Arc<Outbox>,
    ahead: VecDeque<Request>,
    /// Renewals of the lease while requests are handled one after the other, without a pause in which the client could
    /// renew it.
    renewals: Option<Interval>,
    receiving: Arc<AtomicBool>,
}

impl Session {
    async fn run(mut self, caller: SessionPeer) {
        let Ok(Some(first)) = timeout(ATTACH_LIMIT, self.next()).await else {
            return;
        };
        match self.attach(first, caller) {
            Ok(attachment) => self.serve_attached(attachment).await,
            Err(refusal) => self.close(refusal).await,
        }
    }

    /// Sends the refusal and ends the session.
    async fn close(&self, refusal: Rejection) {
        self.outbox.close(SessionReply::Refused(refusal));
        self.outbox.run().await;
    }

    fn attach(&self, (request, _): Request, caller: SessionPeer) -> Result<SessionHold, Rejection> {
        let SessionRequest::Attach { version, token } = request else {
            return Err(Rejection::BadRequest {
                what: "the first request of a session must be to attach".into(),
            });
        };
        if version != PROTOCOL_VERSION {
            return Err(Rejection::Version {
                theirs: version,
                ours: PROTOCOL_VERSION,
            });
        }
        self.node.attach(&token, caller, &self.outbox)
    }

    /// Serves the attached session. The attachment is dropped on every return, which may end the lease.
    async fn serve_attached(&mut self, attachment: SessionHold) {
        let lease = Arc::clone(&attachment.lease);
        match self.run_while_reading(&attachment, lease.wait_for_start()).await {
            None => return,
            Some(Err(refusal)) => return self.close(refusal).await,
            Some(Ok(start)) => {
                let incarnations = lease.incarnations();
                let workers = incarnations.iter().map(|worker| worker.cores());
                let workers = workers.collect();
                let lent = attachment.delegated_slots(&self.node.tables());
                let ttl_ms = self.ttl_ms(&attachment);
                let reply = match lent.and_then(|lent| Ok((lent, ttl_ms?))) {
                    Ok((lent, ttl_ms)) => SessionReply::Attached {
                        lease: lease.id,
                        ttl_ms,
                        workers,
                        start,
                        lent,
                    },
                    // If the lease has ended, an event also reports the end.
                    Err(refusal) => SessionReply::Refused(refusal),
                };
                self.outbox.tell(reply, Vec::new());
            }
        }
        while let Some(request) = self.next_of(&attachment).await {
            let node = Arc::clone(&self.node);
            let Some(answer) = self
                .run_while_reading(&attachment, answer(&node, &attachment, request))
                .await
            else {
                return;
            };
            match answer {
                Ok(Some((reply, fds))) => self.outbox.tell(reply, fds),
                Ok(None) => {}
                Err(refusal) => self.outbox.tell(SessionReply::Refused(refusal), Vec::new()),
            }
        }
    }

    fn ttl_ms(&self, attachment: &SessionHold) -> Result<u64, Rejection> {
        ttl_ms(&self.node, attachment)
    }

    /// Receives the next request; returns `None` when the session has ended.
    async fn next(&mut self) -> Option<Request> {
        if let Some(request) = self.ahead.pop_front() {
            return Some(request);
        }
        self.renewals = None;
        let (socket, outbox) = (Arc::clone(&self.socket), Arc::clone(&self.outbox));
        tokio::select! {
            biased;
            () = outbox.run() => None,
            received = socket.receive() => self.decoded(received).await,
        }
    }

    /// Receives the next request. Keeps the lease alive while its client is sending a large library.
    async fn next_of(&mut self, attachment: &SessionHold) -> Option<Request> {
        let (node, receiving) = (Arc::clone(&self.node), Arc::clone(&self.receiving));
        let (lease, period) = (attachment.lease.id, self.renewal_period(attachment));
        let keep_alive = async {
            let mut renewal = interval_at(Instant::now() + period, period);
            loop {
                renewal.tick().await;
                if receiving.load(Ordering::Relaxed) && attachment.is_holder() {
                    // Fails if the lease has ended; an event then reports the end to the session.
                    let _ = node.step(BookEvent::Renew { lease });
                }
            }
        };
        tokio::select! {
            biased;
            request = self.next() => request,
            () = keep_alive => None,
        }
    }

    /// Runs `work`, reads requests ahead, and renews the lease, because its client cannot renew while it waits for an
    /// answer. Returns `None` when the session has ended.
    async fn run_while_reading<T>(&mut self, attachment: &SessionHold, work: impl Future<Output = T>) -> Option<T> {
        let (socket, outbox) = (Arc::clone(&self.socket), Arc::clone(&self.outbox));
        let lease = attachment.lease.id;
        let period = self.renewal_period(attachment);
        let begin = || interval_at(Instant::now() + period, period);
        let mut renewals = self.renewals.take().unwrap_or_else(begin);
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                () = outbox.run() => return None,
                done = &mut work => {
                    self.renewals = Some(renewals);
                    return Some(done);
                }
                received = socket.receive() => {
                    let request = self.decoded(received).await?;
                    if self.ahead.len() >= AHEAD_MAX {
                        let refusal = Rejection::TooMany {
                            what: "requests without waiting for answers".into(),
                            limit: AHEAD_MAX as u64,
                        };
                        self.close(refusal).await;
                        return None;
                    }
                    self.ahead.push_back(request);
                }
                // Fails if the lease has ended; an event then reports the end to the session.
                _ = renewals.tick(), if attachment.is_holder() => drop(self.node.step(BookEvent::Renew { lease })),
            }
        }
    }

    fn renewal_period(&self, attachment: &SessionHold) -> Duration {
        let ttl_ms = self.ttl_ms(attachment).unwrap_or(1000);
        Duration::from_millis((ttl_ms / 3).max(10))
    }

    async fn decoded(&self, received: Result<Option<Request>, SocketError>) -> Option<Request> {
        match received {
            Ok(request) => request,
            Err(SocketError::Io(error)) => {
                tracing::debug!(%error, "session lost");
                None
            }
            Err(error) => {
                let what = error.to_string();
                self.close(Rejection::BadRequest { what }).await;
                None
            }
        }
    }
}

fn ttl_ms(node: &Node, attachment: &SessionHold) -> Result<u64, Rejection> {
    let tables = node.tables();
    let lease = tables.book.active(attachment.lease.id)?;
    Ok(lease.request.ttl.as_millis() as u64)
}

/// Handles a request; returns `None` if the answer is sent as an event.
async fn answer(
    node: &Arc<Node>,
    attachment: &SessionHold,
    (request, fds): Request,
) -> Result<Option<(SessionReply, Vec<ForeignDescriptor>)>, Rejection> {
    let lease = &attachment.lease;
    let needed = match &request {
        SessionRequest::Attach { .. } | SessionRequest::Connect { .. } => Rights::INVOKE,
        // A peer only asks for the index of a library that the holder has loaded.
        SessionRequest::Load { .. } => Rights::INVOKE,
        SessionRequest::Renew
        | SessionRequest::Release
        | SessionRequest::Delegate { .. }
        | SessionRequest::Revoke { .. } => Rights::HOLDER,
    };
    if !attachment.rights.include(needed) {
        return Err(Rejection::NotPermitted {
            what: "the token only lets its bearer invoke functions".into(),
        });
    }
    match request {
        SessionRequest::Attach { .. } => Err(Rejection::BadRequest {
            what: "the session is attached already".into(),
        }),
        SessionRequest::Load { hash, size_bytes } => {
            let (base, load_us) = load(node, attachment, hash, size_bytes, fds).await?;
            Ok(Some((SessionReply::Loaded { hash, base, load_us }, Vec::new())))
        }
        SessionRequest::Connect { worker, over_fabric } => {
            if over_fabric {
                node.supply.note_fabric();
            }
            let (epoch, socket) = connect(node, attachment, worker).await?;
            Ok(Some((SessionReply::Connected { worker, epoch }, vec![socket.into()])))
        }
        SessionRequest::Renew => {
            node.step(BookEvent::Renew { lease: lease.id })?;
            let ttl_ms = ttl_ms(node, attachment)?;
            let token = node.renewed_token(lease.id, attachment.rights)?;
            Ok(Some((SessionReply::Renewed { ttl_ms, token }, Vec::new())))
        }
        SessionRequest::Release => {
            let (lease, reason) = (lease.id, EndReason::Released);
            node.step(BookEvent::End { lease, reason })?;
            Ok(None)
        }
        SessionRequest::Delegate { places, within_ms } => {
            let (delegation, token) = node.delegate(lease.id, &places, within_ms)?;
            Ok(Some((SessionReply::Delegated { delegation, token }, Vec::new())))
        }
        SessionRequest::Revoke { delegation } => {
            let lease = lease.id;
            node.step(BookEvent::Revoke { lease, delegation })?;
            Ok(Some((SessionReply::Revoked { delegation }, Vec::new())))
        }
    }
}

async fn load(
    node: &Arc<Node>,
    attachment: &SessionHold,
    hash: CodeHash,
    size_bytes: u64,
    fds: Vec<ForeignDescriptor>,
) -> Result<(u16, u64), Rejection> {
    node.check_active(attachment.lease.id)?;
    if attachment.lease.terms.is_memory_alone() {
        return Err(Rejection::BadRequest {
            what: "a lease of memory alone has no slots, and runs no functions".into(),
        });
    }
    if !attachment.rights.include(Rights::HOLDER) {
        let codes = attachment.lease.libraries.codes.lock().await;
        let loaded = codes.iter().find(|loaded| loaded.code.hash == hash);
        let loaded = loaded.ok_or_else(|| Rejection::NotPermitted {
            what: "to load a library into slots that were lent; their holder has not loaded it".into(),
        })?;
        return Ok((loaded.base, 0));
    }
    let mut fds = fds.into_iter();
    if hash == hotlease_wire::python::library() {
        let codes = attachment.lease.libraries.codes.lock().await;
        let loaded = codes.iter().find(|loaded| loaded.code.hash == hash);
        let loaded = loaded.ok_or_else(|| Rejection::CodeRejected {
            why: "the workers of this lease are native; Python tasks need a lease that asks for Python".into(),
        })?;
        return Ok((loaded.base, 0));
    }
    let code = match (fds.next(), fds.next()) {
        (None, _) => node.codes.get(hash).ok_or(Rejection::NeedCode(hash))?,
        (Some(memory), None) => {
            let memory = memory.into_memory().map_err(|_| Rejection::BadRequest {
                what: "the function library's descriptor is not memory".into(),
            })?;
            node.codes.admit(memory, hash, size_bytes).await?
        }
        (Some(_), Some(_)) => {
            return Err(Rejection::BadRequest {
                what: "a function library is one descriptor".into(),
            });
        }
    };
    // Runs as a separate task: if the client leaves meanwhile, the library must still reach all workers.
    let loading = Arc::clone(&attachment.lease).load(Arc::clone(node), code);
    tokio::spawn(loading).await.map_err(|error| Rejection::Unavailable {
        what: format!("loading failed inside the agent: {error}"),
    })?
}

/// Introduces the client to a worker; returns the client's end of a new socket between them.
async fn connect(node: &Arc<Node>, attachment: &SessionHold, index: WorkerIndex) -> Result<(Epoch, Socket), Rejection> {
    let mut death = None;
    // Checked first, so that no dead worker is started again for a client that may not use it.
    attachment.delegated_slots_of(&node.tables(), index)?;
    attachment.lease.check_restored().await?;
    for _ in 0..CONNECT_ATTEMPTS {
        let (incarnation, worker) = attachment.lease.worker(node, index).await?;
        let (ours, theirs) = Socket::pair().map_err(|error| Rejection::Unavailable {
            what: format!("a socket to the worker: {error}"),
        })?;
        // The worker, which is not trusted, may send descriptors to `ours` before the client receives `ours`. Closing
        // `ours` closes these descriptors too, which may block.
        let ours = ours.closed_aside();
        let introduced = {
            // Sent under the lock, so that a revocation at this moment also ends this connection.
            let tables = node.tables();
            let lent = attachment.delegated_slots_of(&tables, index)?;
            worker.send(&WorkerOrder::Introduce { lent }, &[theirs.as_fd()])
        };
        drop(theirs);
        match introduced.wait_for_answer(ORDER_LIMIT).await {
            Ok(()) => {
                incarnation.start.record_connection();
                return Ok((incarnation.epoch, ours));
            }
            Err(OrderError::Failed(what)) => return Err(Rejection::Unavailable { what }),
            Err(OrderError::TimedOut) => {
                return Err(Rejection::Timeout {
                    what: format!("worker {index}"),
                    after_ms: ORDER_LIMIT.as_millis() as u64,
                });
            }
            // The book has not recorded the death yet. Once it has, another worker replaces the dead worker.
            Err(OrderError::Died) => death = Some(incarnation.wait_for_end().await),
        }
    }
    Err(match death {
        Some(death) => worker_died(death),
        None => Rejection::UnknownLease,
    })
}
