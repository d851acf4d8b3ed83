//! Connections of functions to the agent: the leases that they belong to, their limits, and their ends.

use super::host_places::{HostLimits, HostPlace, HostPlaces};
use super::lease::LeaseStorage;
use super::{StorageState, request};
use hotlease_s3::Fault;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};

/// Largest number of bytes of a request's line and headers.
const HEADERS_BYTES_MAX: usize = 32 << 10;
/// Largest number of headers of a request.
const HEADERS_MAX: usize = 64;
/// Time for a request's line and headers, and longest time that a connection may be idle between two requests.
const HEADERS_WITHIN: Duration = Duration::from_secs(60);
/// Time in which a connection at the host's loopback must prove that it belongs to a lease.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);
/// Largest number of connections of one worker, in a sandbox of its own.
const SANDBOX_CONNECTIONS_MAX: usize = 64;
/// Pause after the system could not accept (no descriptors or memory left), so as not to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Owner of a connection: known from the beginning, or from its first signed request.
pub(super) struct ConnectionOwner {
    known: watch::Sender<Option<Arc<LeaseStorage>>>,
    /// Place among the connections at the host's loopback, if this connection came from there.
    at_host: Option<HostPlace>,
    /// Permit among the connections of its lease, if this connection came from the host's loopback.
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

impl ConnectionOwner {
    fn in_sandbox(lease: Arc<LeaseStorage>) -> Arc<Self> {
        Arc::new(Self {
            known: watch::Sender::new(Some(lease)),
            at_host: None,
            place: Mutex::default(),
        })
    }

    fn at_host(place: HostPlace) -> Arc<Self> {
        Arc::new(Self {
            known: watch::Sender::new(None),
            at_host: Some(place),
            place: Mutex::default(),
        })
    }

    /// The lease that owns these keys, if this connection can belong to it.
    pub fn candidate(&self, open: &StorageState, id: &str) -> Result<Arc<LeaseStorage>, Fault> {
        let unknown = || {
            Fault::new(
                403,
                "InvalidAccessKeyId",
                "these are not the keys of this lease, or it is over; use those in the environment of the lease's workers",
            )
        };
        let known = self.known.borrow().clone();
        let lease = match known {
            Some(own) => (own.keys.id == id).then_some(own),
            None => open.lease(id),
        };
        lease.filter(|lease| !lease.is_over()).ok_or_else(unknown)
    }

    /// Assigns the connection to a lease, after a request with a valid signature.
    pub fn assign(&self, lease: &Arc<LeaseStorage>) -> Result<(), Fault> {
        if self.known.borrow().is_some() {
            return Ok(());
        }
        let too_many = |which: &str| {
            let why = format!("{which} as many connections to storage as it may have; use fewer at a time");
            Fault::new(503, "SlowDown", why)
        };
        let place = Arc::clone(&lease.connections).try_acquire_owned();
        let place = place.map_err(|_| too_many("this lease has"))?;
        if let Some(at_host) = &self.at_host {
            let assigned = at_host.assign(&lease.tenant);
            assigned.map_err(|_| too_many("this lease's tenant has at the host's loopback"))?;
        }
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        self.known.send_replace(Some(Arc::clone(lease)));
        Ok(())
    }

    /// Resolves when the connection's lease has ended, or when the connection has not proved a lease in time.
    async fn wait_for_cut(&self) {
        let mut known = self.known.subscribe();
        let lease = match timeout(KNOWN_WITHIN, known.wait_for(Option::is_some)).await {
            Ok(Ok(lease)) => lease.clone(),
            Ok(Err(_)) | Err(_) => return,
        };
        match lease {
            Some(lease) => lease.wait_for_end().await,
            None => pending().await,
        }
    }
}

/// Serves all leases on the host's network, for ever.
pub(super) async fn serve_host(open: Arc<StorageState>, listener: TcpListener, limits: HostLimits) {
    let places = HostPlaces::new(limits);
    loop {
        let stream = accept(&listener).await;
        match places.enter(&stream).await {
            Ok(place) => drop(tokio::spawn(carry(
                Arc::clone(&open),
                stream,
                ConnectionOwner::at_host(place),
            ))),
            Err(error) => tracing::warn!(%error, "no descriptor is left for a connection to storage"),
        }
    }
}

/// Serves one lease, in the sandbox of one of its workers.
pub(super) async fn serve_sandbox(
    open: Arc<StorageState>,
    listener: OwnedFd,
    lease: Arc<LeaseStorage>,
    gone: impl Future<Output = ()> + Send + 'static,
) {
    let listening = || -> io::Result<TcpListener> {
        let listener = std::net::TcpListener::from(listener);
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    let listener = match listening() {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%error, "a sandbox has no way to storage");
            return;
        }
    };
    let places = Arc::new(Semaphore::new(SANDBOX_CONNECTIONS_MAX));
    let accepting = async {
        loop {
            // While there is no place, new connections wait unread. The semaphore is never closed.
            let place = Arc::clone(&places).acquire_owned().await.ok();
            let stream = accept(&listener).await;
            let (open, holder) = (Arc::clone(&open), ConnectionOwner::in_sandbox(Arc::clone(&lease)));
            tokio::spawn(async move {
                carry(open, stream, holder).await;
                drop(place);
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = lease.wait_for_end() => {}
        () = gone => {}
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to storage");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a connection, from its first request until it has ended or is cut.
async fn carry(open: Arc<StorageState>, stream: TcpStream, holder: Arc<ConnectionOwner>) {
    // Answers are short, and a client waits for each before its next request.
    let _ = stream.set_nodelay(true);
    let of = Arc::clone(&holder);
    let answer = service_fn(move |request| request::answer(Arc::clone(&open), Arc::clone(&of), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(HEADERS_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    tokio::select! {
        ended = connection => if let Err(error) = ended {
            tracing::debug!(%error, "a connection to storage ended");
        },
        () = holder.wait_for_cut() => tracing::debug!("cut a connection to storage"),
    }
}
