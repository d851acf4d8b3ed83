//! Start, service and stop of a manager.

use crate::agents::news;
use crate::identity::{Gate, PlaceLimits, RequestPlaces, TenantDirectory};
use crate::identity_service::{self, IdentityService};
use crate::listener::LocalListener;
use crate::request_metrics::RequestMetrics;
use crate::service::Service;
use crate::state::ManagerState;
use crate::state::commits;
use crate::state::machine::{self, ClusterDriver};
use crate::{ManagerConfig, ManagerError, ManagerNetwork, REST_SOCKET, rest, tenants};
use hotlease_lease::manager::{AgentProfile, ClusterEvent};
use hotlease_net::TlsListener;
use hotlease_net::grpc::{PeerStream, StrangerStream};
use hotlease_wire::grpc::identity_server::IdentityServer;
use hotlease_wire::grpc::manager_server::ManagerServer;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::transport::server::Connected;

/// Longest request, bytes: a heartbeat of an agent full of leases.
const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Longest response, bytes: a listing of every lease.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Numbers of requests that are processed at a time, over all connections; others wait.
const PLACES: PlaceLimits = PlaceLimits { group: 512, caller: 64 };
/// Limit of requests of one connection at a time.
const STREAMS_MAX: u32 = 64;
/// Longest headers of a request, bytes.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Time limit for any request, however many agents are asked.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit for a peer's answer to a ping; after it the connection is closed.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Time limit for connections to finish their requests when the manager stops.
const FINISH_WITHIN: Duration = Duration::from_secs(2);
/// Interval at which silent agents, and an ended store, are noticed.
const TICK: Duration = Duration::from_millis(250);
/// Limit of accepted connections that wait for the server.
const ACCEPTED_MAX: usize = 16;

/// A running manager. It stops when told to, or when dropped.
pub struct Manager {
    pub(crate) state: Arc<ManagerState>,
    /// True: the manager is to stop.
    stop: Arc<watch::Sender<bool>>,
    /// True: the manager has stopped; its socket is gone, and no request is being processed.
    stopped: watch::Receiver<bool>,
    address: Option<SocketAddr>,
    rest_address: Option<SocketAddr>,
}

impl Manager {
    /// Binds the socket and serves in background tasks of the current tokio runtime. When this returns, clients and
    /// agents can connect.
    pub async fn start(config: ManagerConfig) -> Result<Self, ManagerError> {
        Self::start_boxed(config).await
    }

    /// Returns a boxed future. The code of an async function is generated in each crate that awaits it. This function
    /// contains the whole server, which took most of the compile time of each test program that starts a manager.
    #[inline(never)]
    fn start_boxed(config: ManagerConfig) -> Pin<Box<dyn Future<Output = Result<Self, ManagerError>> + Send>> {
        Box::pin(Self::bind_and_serve(config))
    }

    async fn bind_and_serve(config: ManagerConfig) -> Result<Self, ManagerError> {
        hotlease_net::raise_descriptor_limit();
        let listener = LocalListener::bind(&config.runtime_dir)?;
        let rest = listener.bind_beside(REST_SOCKET)?;
        let (rest_address, rest_tls) = listen(config.rest.as_ref()).await?.unzip();
        let (address, tls) = listen(config.network.as_ref()).await?.unzip();
        let store = Arc::clone(&config.store);
        let directory = Arc::new(TenantDirectory::new(config.tenants));
        let copy = Arc::clone(&directory);
        let restored = tokio::task::spawn_blocking(move || {
            let latest_ms = store.latest_ms()?;
            copy.refresh(store.as_ref())?;
            copy.measure(store.as_ref(), latest_ms)?;
            Ok::<_, ManagerError>((latest_ms, machine::restore_cluster(store.as_ref())?))
        });
        let (latest_ms, cluster) = restored.await.map_err(|_| ManagerError::ReadingPanicked)??;
        let (commits, writes) = mpsc::unbounded_channel();
        let state = Arc::new(ManagerState::new(
            config,
            latest_ms,
            ClusterDriver::new(cluster, commits),
            directory,
        ));
        state.authenticator.warn_of_members_without_issuer();
        let writing = tokio::spawn(commits::write(Arc::clone(&state), writes));
        let (stop, stopping) = watch::channel(false);
        let stop = Arc::new(stop);
        let watching = tokio::spawn(watch_store(Arc::clone(&state), Arc::clone(&stop)));
        let (finished, stopped) = watch::channel(false);
        let serving = serve(Arc::clone(&state), listener, tls, (rest, rest_tls), stopping);
        tokio::spawn(async move {
            serving.await;
            // No request is left that would wait for a write.
            writing.abort();
            watching.abort();
            finished.send_replace(true);
        });
        Ok(Self {
            state,
            stop,
            stopped,
            address,
            rest_address,
        })
    }

    /// Address on which the manager serves other hosts.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Address on which the manager serves the REST interface to other hosts.
    pub fn rest_address(&self) -> Option<SocketAddr> {
        self.rest_address
    }

    /// Returns once a client has sent `Shutdown`. The manager keeps serving until [`Self::shutdown`]: its owner may
    /// have other things to stop first.
    pub async fn shutdown_requested(&self) {
        wait_for(self.state.asked_to_stop.subscribe()).await;
    }

    /// Waits for an agent and returns its record: from then on leases can be granted.
    pub async fn an_agent(&self) -> AgentProfile {
        let mut newest = self.state.newest_agent.subscribe();
        let registered = newest.wait_for(Option::is_some).await;
        match registered.map(|agent| agent.clone()) {
            Ok(Some(agent)) => agent,
            // Unreachable: the sender is part of our own state.
            _ => std::future::pending().await,
        }
    }

    /// Stops the manager: requests under way get a moment to finish, then the socket is removed. Returns after that.
    pub async fn shutdown(&self) {
        self.stop.send_replace(true);
        self.wait_until_stopped().await;
    }

    /// Returns once the manager has stopped serving.
    pub async fn wait_until_stopped(&self) {
        wait_for(self.stopped.clone()).await;
    }
}

/// Listens for other hosts, if an endpoint is configured.
async fn listen(network: Option<&ManagerNetwork>) -> Result<Option<(SocketAddr, TlsListener)>, ManagerError> {
    let Some(network) = network else {
        return Ok(None);
    };
    let failed = |source| ManagerError::Listen {
        address: network.listen,
        source,
    };
    let bound = TlsListener::bind(network.listen, Arc::clone(&network.identity), network.limits);
    let bound = bound.await.map_err(failed)?;
    Ok(Some((bound.local_addr().map_err(failed)?, bound)))
}

/// Waits until the value is true or its sender is gone.
async fn wait_for(mut watched: watch::Receiver<bool>) {
    // An error says that the sender is gone, which ends the wait, too.
    let _ = watched.wait_for(|value| *value).await;
}

async fn serve(
    state: Arc<ManagerState>,
    listener: LocalListener,
    tls: Option<TlsListener>,
    (rest, rest_tls): (LocalListener, Option<TlsListener>),
    stopping: watch::Receiver<bool>,
) {
    let places = Arc::new(RequestPlaces::new(PLACES));
    let service = Service(Arc::clone(&state));
    let (accepted, connections) = mpsc::channel(ACCEPTED_MAX);
    let accepting = tokio::spawn(listener.accept_into(accepted));
    let is_open = state
        .config
        .network
        .as_ref()
        .is_some_and(|network| network.without_certificate);
    let refreshing = tokio::spawn(tenants::keep_fresh(Arc::clone(&state)));
    let ticking = tokio::spawn(tick(Arc::clone(&state)));
    let announcing = tokio::spawn(news::announce(Arc::clone(&state)));
    let rest = rest::serve(state, rest, rest_tls, stopping.clone());

    let local = serve_on(
        service.clone(),
        Arc::clone(&places),
        ReceiverStream::new(connections),
        stopping.clone(),
    );
    let remote = async {
        let Some(listener) = tls else { return };
        let (admitted, connections) = mpsc::channel(ACCEPTED_MAX);
        let (known_later, strangers) = mpsc::channel(ACCEPTED_MAX);
        let accepting = match is_open {
            true => tokio::spawn(listener.accept_all_into(admitted, known_later)),
            false => tokio::spawn(listener.accept_into(admitted)),
        };
        let connections = ReceiverStream::new(connections).map(|peer| Ok(PeerStream::from(peer)));
        let strangers = ReceiverStream::new(strangers).map(|stranger| Ok(StrangerStream::from(stranger)));
        tokio::join!(
            serve_on(service.clone(), Arc::clone(&places), connections, stopping.clone()),
            serve_on(service, places, strangers, stopping),
        );
        accepting.abort();
    };
    tokio::join!(local, remote, rest);
    tracing::info!("manager stopped");
    ticking.abort();
    announcing.abort();
    refreshing.abort();
    match accepting.await {
        // Removes the socket's file, and only then releases the lock.
        Ok(listener) => drop(listener),
        Err(error) => tracing::error!(%error, "the accepting task failed"),
    }
}

/// Serves connections until told to stop; then lets them finish for [`FINISH_WITHIN`].
async fn serve_on<C>(
    service: Service,
    places: Arc<RequestPlaces>,
    connections: impl Stream<Item = io::Result<C>>,
    stopping: watch::Receiver<bool>,
) where
    C: AsyncRead + AsyncWrite + Connected<ConnectInfo: Clone + Send + Sync> + Send + Unpin + 'static,
{
    let observed = RequestMetrics::new(Arc::clone(&service.0.metrics));
    let gate = Gate::new(Arc::clone(&service.0.authenticator), places);
    let identity = IdentityServer::new(IdentityService(Arc::clone(&service.0)))
        .max_decoding_message_size(identity_service::MESSAGE_BYTES_MAX)
        .max_encoding_message_size(ANSWER_BYTES_MAX);
    let service = ManagerServer::new(service)
        .max_decoding_message_size(REQUEST_BYTES_MAX)
        .max_encoding_message_size(ANSWER_BYTES_MAX);
    let server = Server::builder()
        .layer(observed)
        .layer(gate)
        .timeout(REQUEST_TIMEOUT)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .add_service(service)
        .add_service(identity)
        .serve_with_incoming_shutdown(connections, wait_for(stopping.clone()));
    // When tonic is told to stop, it drops the receiver of connections, which ends the accepting task. Then it waits
    // for connections to close; a connection that does not close in time is cut.
    tokio::pin!(server);
    let stopped_in_time = tokio::select! {
        result = &mut server => Ok(result),
        () = wait_for(stopping) => timeout(FINISH_WITHIN, server).await,
    };
    match stopped_in_time {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "manager failed"),
        Err(_) => tracing::warn!("manager stopped with connections open"),
    }
}

/// Stops the manager when its store has ended. Without its store a manager cannot acknowledge anything; its successor
/// or next run can.
async fn watch_store(state: Arc<ManagerState>, stop: Arc<watch::Sender<bool>>) {
    let mut looks = interval(TICK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if let Some(error) = state.config.store.end_error() {
            tracing::error!(%error, "the manager stops");
            stop.send_replace(true);
            return;
        }
    }
}

async fn tick(state: Arc<ManagerState>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        state.step(ClusterEvent::Tick);
    }
}
