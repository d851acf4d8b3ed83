//! Session with an agent for one lease: attach, load, connect, renew, release, lend, and news from the agent.

mod renewals;

use crate::Error;
use crate::code::Code;
use crate::session::death::{Death, DeathKind};
use crate::session::long_requests::LongRequests;
use crate::session::request_socket::RequestSocket;
use crate::session::transport::WorkerRoute;
use crate::session::{Expectations, RoomNotice};
use hotlease_fabric::foreign::ForeignDescriptor;
use hotlease_fabric::ofi::Libfabric;
use hotlease_fabric::socket::Socket;
use hotlease_lease::client::Renewal;
use hotlease_net::tunnel::{self, silence_of};
use hotlease_net::{SiteAccess, node_id};
use hotlease_wire::grpc::Grant;
use hotlease_wire::ids::{Epoch, LeaseId, WorkerIndex};
use hotlease_wire::limits::PROTOCOL_VERSION;
use hotlease_wire::session::{SessionReply, SessionRequest, SlotPlace, StartPhases, UsageTotals};
use hotlease_wire::{EndReason, Rejection};
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Time limit of loading, which runs constructors and restores a state: the agent gives up on constructors after 5 s,
/// and on a restore after a minute.
const LOAD_LIMIT: Duration = Duration::from_secs(90);
const RENEW_LIMIT: Duration = Duration::from_secs(5);
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
const LEND_LIMIT: Duration = Duration::from_secs(5);
const AGENT: &str = "the agent";

/// End of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SessionEnd {
    /// The lease ended, and the session with it.
    Lease { reason: EndReason, usage: UsageTotals },
    /// The agent is gone or has closed the session.
    Lost,
}

struct SessionNews {
    /// The latest death of each worker: as many entries as the lease has workers.
    deaths: HashMap<WorkerIndex, (Epoch, Death)>,
    /// The reason for which the agent is ending the lease, announced before the end itself is reported.
    ending: Option<EndReason>,
    end: Option<SessionEnd>,
}

/// A session with an agent for one lease. The session ends when this value and all other references to its
/// [`SessionState`] are dropped. If it was the last session of the lease's holder, the lease ends with it.
pub(crate) struct Session {
    shared: Arc<SessionState>,
    tasks: Vec<AbortHandle>,
    /// Answer of the agent to the attach.
    pub(crate) attached: AttachAnswer,
}

/// Answer of the agent to the attach.
pub(crate) struct AttachAnswer {
    pub(crate) lease: LeaseId,
    /// Number of slots of each worker.
    pub(crate) slots: Vec<usize>,
    pub(crate) start: Box<StartPhases>,
    /// The slots that the lease's holder lends to this client; `None` if this client is the holder.
    pub(crate) lent: Option<Vec<SlotPlace>>,
}

/// State of a session. Connections to workers, and tasks that wait for news from the agent, hold references, too, so it
/// may outlive the [`Session`].
pub(crate) struct SessionState {
    link: RequestSocket<SessionReply>,
    /// Route to the agent's host, if it is another host.
    route: Option<WorkerRoute>,
    expected: Expectations,
    /// The lease, once the agent has named it.
    lease: OnceLock<LeaseId>,
    news: Mutex<SessionNews>,
    changed: watch::Sender<()>,
    /// Whether `news` has an end; read without the lock.
    over: AtomicBool,
    /// The pending requests during which the agent renews the lease itself if they take long: load, connect.
    long_requests: LongRequests,
    wanted: OnceLock<Arc<RoomNotice>>,
}

impl Session {
    /// Attaches to the lease of a grant. `site`: access to agents on other hosts; `None` if the agent is on this host.
    /// Runs on the control thread.
    pub(crate) async fn attach(
        grant: &Grant,
        site: Option<&SiteAccess>,
        expected: Expectations,
    ) -> Result<Self, Error> {
        let path = Path::new(&grant.session_socket);
        let Some(site) = site else {
            let socket = Socket::connect(path).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Error::NotRunning {
                    socket: path.to_owned(),
                },
                _ => Error::local("connect to the agent")(error),
            })?;
            return Self::over(socket, grant.token.clone(), expected, None).await;
        };
        if let Some(socket) = local_agent_socket(grant, path) {
            match Self::over(socket, grant.token.clone(), expected, None).await {
                // The socket at this path belongs to another agent.
                Err(Error::Refused(refusal @ (Rejection::BadToken | Rejection::WrongTenant))) => {
                    tracing::debug!(%refusal, "another agent serves the same socket path on this host");
                }
                attached => return attached,
            }
        }
        if grant.endpoint.is_empty() {
            let what = "the agent that granted the lease serves its own machine only".into();
            return Err(Rejection::Unavailable { what }.into());
        }
        // The workers are reached over a fabric; libfabric loads while they are started.
        drop(Libfabric::preload());
        let silence = silence_of(Duration::from_millis(grant.ttl_ms));
        let tunnelled = tunnel::session(grant.endpoint.parse()?, site.proof.clone(), &grant.token, silence).await?;
        let route = WorkerRoute {
            host: tunnelled.host,
            local: tunnelled.local,
        };
        Self::over(tunnelled.socket, grant.token.clone(), expected, Some(route)).await
    }

    /// Attaches to the lease of a token over a connected socket. `route`: route to the agent's host, if it is another
    /// host.
    pub(crate) async fn over(
        socket: Socket,
        token: Vec<u8>,
        expected: Expectations,
        route: Option<WorkerRoute>,
    ) -> Result<Self, Error> {
        let shared = Arc::new(SessionState {
            link: RequestSocket::new(socket)?,
            route,
            expected,
            lease: OnceLock::new(),
            news: Mutex::new(SessionNews {
                deaths: HashMap::new(),
                ending: None,
                end: None,
            }),
            changed: watch::Sender::new(()),
            over: AtomicBool::new(false),
            long_requests: LongRequests::default(),
            wanted: OnceLock::new(),
        });
        let reader = tokio::spawn(shared.clone().read()).abort_handle();
        let attach = SessionRequest::Attach {
            version: PROTOCOL_VERSION,
            token,
        };
        let start = Instant::now();
        let answer = shared.link.ask(&attach, &[], AGENT, expected.start_limit).await;
        let (attached, ttl_ms) = match answer {
            Ok((
                SessionReply::Attached {
                    lease,
                    ttl_ms,
                    workers,
                    start,
                    lent,
                },
                _,
            )) => (
                AttachAnswer {
                    lease,
                    slots: workers.iter().map(Vec::len).collect(),
                    start: Box::new(start),
                    lent,
                },
                ttl_ms,
            ),
            other => {
                reader.abort();
                return Err(unexpected("Attach", other));
            }
        };
        let _ = shared.lease.set(attached.lease);
        // The agent keeps a lease alive while its workers start, and answers once they have started: the time to live
        // counts from the answer.
        let now = start.elapsed();
        let renewal = Renewal::new(Duration::from_millis(ttl_ms), now, now);
        let renewal = match expected.renewal {
            true => renewal,
            false => renewal.without_asking(),
        };
        let mut tasks = vec![reader];
        // The holder renews a lent lease. The agent reports its end, or closes the session if the agent is gone.
        if attached.lent.is_none() {
            tasks.push(tokio::spawn(shared.clone().renew(renewal, start)).abort_handle());
        }
        Ok(Self {
            shared,
            tasks,
            attached,
        })
    }

    /// State of the session, on which callers wait.
    pub(crate) fn shared(&self) -> &Arc<SessionState> {
        &self.shared
    }

    /// How the session ended; `None` if it has not ended.
    pub(crate) fn end(&self) -> Option<SessionEnd> {
        self.shared.news().end
    }

    /// Waits at most this long for the end of the session; returns how it ended.
    pub(crate) async fn end_within(&self, limit: Duration) -> Option<SessionEnd> {
        let ended = self.shared.wait_for(|session| session.news().end);
        tokio::time::timeout(limit, ended).await.ok()
    }

    /// Ends the lease; returns its usage. A session of a peer returns no usage, because the lease goes on.
    pub(crate) async fn release(self) -> Result<UsageTotals, Error> {
        if self.attached.lent.is_some() {
            // The usage is reported to the holder.
            return Ok(UsageTotals::default());
        }
        let answer = self
            .shared
            .link
            .ask(&SessionRequest::Release, &[], AGENT, RELEASE_LIMIT)
            .await;
        // The agent answers requests in their order, but answers a release only after the end of the lease is recorded.
        // A renewal that was requested after the release is refused earlier, and its refusal is taken for the answer to
        // the release.
        if matches!(&answer, Ok((SessionReply::Refused(Rejection::LeaseEnded(_)), _))) {
            // If the lease does not end in time, the refusal stands.
            self.end_within(RELEASE_LIMIT).await;
        }
        // The event of the end contains the total as well, and may have arrived first: a lease that had ended counts as
        // released.
        match (self.end(), answer) {
            (Some(SessionEnd::Lease { usage, .. }), _) => Ok(usage),
            (_, answer) => Err(unexpected("Release", answer)),
        }
    }
}

/// Connects to an agent's local socket if the grant names this host, and the process at the socket runs as this user:
/// no other user's process gets the token. Whether that process is the agent that granted the lease is known only when
/// the process accepts the token.
fn local_agent_socket(grant: &Grant, path: &Path) -> Option<Socket> {
    let here = node_id().is_some_and(|node| node.to_string() == grant.node);
    if !here {
        return None;
    }
    let socket = Socket::connect(path).ok()?;
    let own = nix::unistd::geteuid().as_raw();
    (socket.peer().ok()?.uid == own).then_some(socket)
}

impl Drop for Session {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl SessionState {
    /// The lease of the session.
    pub(crate) fn lease(&self) -> Option<LeaseId> {
        self.lease.get().copied()
    }

    fn news(&self) -> MutexGuard<'_, SessionNews> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the end of the session. Later ends are ignored.
    fn set_end(&self, end: SessionEnd) {
        self.news().end.get_or_insert(end);
        self.over.store(true, Ordering::Release);
        self.changed.send_replace(());
    }

    /// Whether the session has ended, and its workers have ended or soon will.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Route to the workers' host, if it is another host.
    pub(crate) fn route(&self) -> Option<&WorkerRoute> {
        self.route.as_ref()
    }

    /// Loads a library; returns the index of its first function and the workers' time. Its bytes are sent only if
    /// the node does not have them.
    pub(crate) async fn load(&self, code: &Code) -> Result<(u16, Duration), Error> {
        let _pending = self.long_requests.begin();
        let load = SessionRequest::Load {
            hash: code.hash(),
            size_bytes: code.size_bytes(),
        };
        let mut answer = self.link.ask(&load, &[], AGENT, LOAD_LIMIT).await;
        if let Ok((SessionReply::Refused(Rejection::NeedCode(_)), _)) = &answer {
            let sealed = code.sealed()?;
            answer = self.link.ask(&load, &[sealed.as_fd()], AGENT, LOAD_LIMIT).await;
        }
        match answer {
            Ok((SessionReply::Loaded { hash, base, load_us }, _)) if hash == code.hash() => {
                let last = usize::from(base) + code.functions().len() - 1;
                if last > usize::from(u16::MAX) {
                    return Err(Error::protocol("the agent's base leaves no room for the functions"));
                }
                Ok((base, Duration::from_micros(load_us)))
            }
            other => Err(unexpected("Load", other)),
        }
    }

    /// Returns a socket to a worker, and the epoch of its incarnation. The agent starts a dead worker again first.
    /// `over_fabric`: whether channels to it will go over a fabric.
    pub(crate) async fn connect(&self, worker: WorkerIndex, over_fabric: bool) -> Result<(Socket, Epoch), Error> {
        let _pending = self.long_requests.begin();
        let connect = SessionRequest::Connect { worker, over_fabric };
        match self.link.ask(&connect, &[], AGENT, self.expected.start_limit).await {
            Ok((SessionReply::Connected { worker: which, epoch }, fds)) if which == worker => {
                let mut fds = fds.into_iter();
                match (fds.next(), fds.next()) {
                    (Some(fd), None) => Ok((Socket::from(fd), epoch)),
                    _ => Err(Error::protocol("the agent's Connected must have one descriptor")),
                }
            }
            other => Err(unexpected("Connect", other)),
        }
    }

    /// Lends slots; returns the delegation's number, and the token for peers. `lasts`: time limit; if it is `None`, the
    /// delegation lasts as long as the lease.
    pub(crate) async fn delegate(
        &self,
        places: Vec<SlotPlace>,
        lasts: Option<Duration>,
    ) -> Result<(u32, Vec<u8>), Error> {
        let delegate = SessionRequest::Delegate {
            places,
            within_ms: lasts.map_or(0, |lasts| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX)),
        };
        match self.link.ask(&delegate, &[], AGENT, LEND_LIMIT).await {
            Ok((SessionReply::Delegated { delegation, token }, _)) => Ok((delegation, token)),
            other => Err(unexpected("Delegate", other)),
        }
    }

    /// Revokes a delegation.
    pub(crate) async fn revoke(&self, delegation: u32) -> Result<(), Error> {
        let revoke = SessionRequest::Revoke { delegation };
        match self.link.ask(&revoke, &[], AGENT, LEND_LIMIT).await {
            Ok((SessionReply::Revoked { .. }, _)) => Ok(()),
            other => Err(unexpected("Revoke", other)),
        }
    }

    /// Waits for the news of how an incarnation of a worker ended.
    pub(crate) async fn death_of(&self, worker: WorkerIndex, epoch: Epoch) -> Death {
        self.wait_for(|session| session.death_now(worker, epoch)).await
    }

    /// Waits until the agent announces that it ends the lease; returns the reason.
    pub(crate) async fn announced_end(&self) -> EndReason {
        self.wait_for(|session| session.news().ending).await
    }

    async fn wait_for<T>(&self, find: impl Fn(&Self) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(found) = find(self) {
                return found;
            }
            // The sender is a field of self, so this never fails.
            let _ = changed.changed().await;
        }
    }

    /// Makes the session notify this receiver when other clients find no room on the agent's node.
    pub(crate) fn report_wanted_room(&self, to: Arc<RoomNotice>) {
        // Set once for each session.
        let _ = self.wanted.set(to);
    }

    fn death_now(&self, worker: WorkerIndex, epoch: Epoch) -> Option<Death> {
        let news = self.news();
        if let Some((died, death)) = news.deaths.get(&worker)
            && *died == epoch
        {
            return Some(death.clone());
        }
        match news.end? {
            SessionEnd::Lease { reason, .. } => Some(Death {
                kind: DeathKind::Lease(reason),
                gone: false,
            }),
            SessionEnd::Lost => Some(Death {
                kind: DeathKind::Agent,
                gone: false,
            }),
        }
    }

    /// Reads messages until the session ends: records events, and passes answers to their requesters.
    async fn read(self: Arc<Self>) {
        while let Some((reply, fds)) = self.link.next().await {
            match reply {
                SessionReply::WorkerDied {
                    worker,
                    epoch,
                    cause,
                    output,
                    begun,
                } => {
                    let begun = begun.into();
                    let death = Death {
                        kind: DeathKind::Worker { cause, output, begun },
                        gone: true,
                    };
                    if usize::from(worker.0) < self.expected.workers {
                        self.news().deaths.insert(worker, (epoch, death));
                    }
                    self.changed.send_replace(());
                }
                SessionReply::LeaseEnding { reason } => {
                    self.news().ending = Some(reason);
                    self.changed.send_replace(());
                }
                SessionReply::RoomWanted => self.wanted.get().into_iter().for_each(|wanted| wanted.tell()),
                SessionReply::LeaseEnded { reason, usage } => {
                    self.set_end(SessionEnd::Lease { reason, usage });
                    self.link.answer(reply, fds);
                }
                other => self.link.answer(other, fds),
            }
        }
        self.set_end(SessionEnd::Lost);
        self.link.close();
    }
}

/// Error for an answer other than the expected one: the refusal, if the answer is a refusal.
fn unexpected(request: &str, answer: Result<(SessionReply, Vec<ForeignDescriptor>), Error>) -> Error {
    match answer {
        Err(error) => error,
        Ok((SessionReply::Refused(refusal), _)) => refusal.into(),
        Ok((SessionReply::LeaseEnded { reason, .. }, _)) => Rejection::LeaseEnded(reason).into(),
        Ok(_) => Error::protocol(format!("the agent answered {request} with something else")),
    }
}
