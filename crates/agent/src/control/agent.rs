//! Life of an agent: start, service, stop.

mod departure;

use crate::batch::control_groups::ControlGroups;
use crate::batch::job_watch::JobWatch;
use crate::batch::policy_watch::PolicyWatch;
use crate::config::{AGENT_SOCKET, NODE_SOCKET, SESSION_SOCKET};
use crate::control::batch::NodeSocket;
use crate::control::cores;
use crate::control::grpc_server::{ACCEPTED_MAX, FINISH_LIMIT, serve_grpc, serve_on, until_true};
use crate::control::listener::{GrpcListener, SessionListener};
use crate::control::lock::{DirectoryLock, keep_identity, kept_identity};
use crate::control::membership::ManagerMembership;
use crate::control::network;
use crate::control::service::Service;
use crate::control::session_places::SessionPlaces;
use crate::control::stops;
use crate::control::turns;
use crate::control::watchdog;
use crate::data::image_transfer::{ImageSender, OtherAgents};
use crate::data::images::Images;
use crate::data::storage::Storage;
use crate::data::swap::{self, SwapOptions};
use crate::isolation::caller::Tenants;
use crate::isolation::reach::Grants;
use crate::isolation::sandboxes::{self, Sandboxes};
use crate::leases::sharing::SharingTerms;
use crate::leases::supply::WorkerSupply;
use crate::node::eviction;
use crate::node::idleness;
use crate::node::journalling;
use crate::node::lifetime::Lifetime;
use crate::node::{Node, NodeSettings};
use crate::workers::borrowing::Borrowing;
use crate::workers::fabric_demand::FabricDemand;
use crate::workers::idle_memory::IdleMemory;
use crate::workers::pool::{POOL_MAX, PoolTarget, Pools};
use crate::workers::spares::Spares;
use crate::{AgentConfig, AgentError};
use hotlease_fabric::clock::measure_tick_hz;
use hotlease_image::Neighbours;
use hotlease_journal::{StateDir, UsageJournal};
use hotlease_lease::agent::BookEvent;
use hotlease_net::grpc::channel_to_first;
use hotlease_net::peer::is_tenant_name;
use hotlease_net::{Address, CertificateRole, TlsListener};
use hotlease_sandbox::Launcher;
use hotlease_wire::ids::{AgentId, BootId};
use hotlease_wire::limits::GPUS_PER_AGENT_MAX;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

/// Time for which the time-stamp counter is compared with the clock.
const TICK_MEASUREMENT: Duration = Duration::from_millis(5);
/// Time in which a manager on this host must accept.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Time in which killed workers must be gone when the agent stops.
const WORKERS_GONE_LIMIT: Duration = Duration::from_secs(5);

/// A running agent. It stops on [`Agent::shutdown`], or when it is dropped.
pub struct Agent {
    id: AgentId,
    stop: watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
    registered: watch::Receiver<bool>,
    endpoint: Option<Address>,
    node: Arc<Node>,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Agent({})", self.id)
    }
}

impl Agent {
    /// Takes the runtime directory, binds the sockets, and serves in background tasks of the current tokio runtime.
    /// When this function returns, clients and managers can connect; workers may still be starting.
    pub async fn start(config: AgentConfig) -> Result<Self, AgentError> {
        if let Some(what) = config.fault() {
            return Err(AgentError::Config { what });
        }
        config.swap.as_ref().map_or(Ok(()), SwapOptions::check)?;
        let saving = swap::ending_limit(config.swap.as_ref());
        let lifetime = config.until.map(|until| Lifetime::until(until, saving)).transpose()?;
        let tenants = tenants(&config)?;
        let offered = cores::offered(&config.cores)?;
        if !config.unseen_gpus {
            cores::check_gpus(config.gpus)?;
        }
        let launcher = match &config.worker_binary {
            Some(binary) => Launcher::new(binary)?,
            None => Launcher::new(&Launcher::find()?)?,
        };
        let launcher = launcher
            .with_policy(config.policy_of_sandboxes())
            .with_container(config.sandbox_container.clone())
            .with_machine(config.sandbox_machine.clone());
        hotlease_net::raise_descriptor_limit();
        let lock = DirectoryLock::take(&config.runtime_dir)?;
        let (agent, journal) = match &config.state_dir {
            Some(state) => {
                let journal = journal(state, &lock)?;
                (journal.0, Some(journal.1))
            }
            None => (lock.identity()?, None),
        };
        sandboxes::check(&launcher, config.sandbox).await?;
        let others = config
            .network
            .as_ref()
            .map(|network| OtherAgents::new(agent, Arc::clone(&network.identity)));
        let neighbours = others.clone().map(|others| Arc::new(others) as Arc<dyn Neighbours>);
        let images = Images::open(&config.environments, launcher.clone(), neighbours).await?;
        let storage = Storage::open(config.storage.as_deref()).await?;
        let policy = PolicyWatch::start(config.batch_policy.clone())?;
        let grpc = GrpcListener::bind(&lock, AGENT_SOCKET)?;
        let sessions = SessionListener::bind(&lock, SESSION_SOCKET)?;
        let node_socket = NodeSocket::bind(&lock, NODE_SOCKET)?;
        let tls = match &config.network {
            Some(network) => Some(network::listen(network).await?),
            None => None,
        };
        let endpoint = match (&config.network, &tls) {
            (Some(network), Some((_, address))) => Some(network::endpoint(network, *address)),
            _ => None,
        };
        let elsewhere = config.network.as_ref().filter(|network| !network.managers.is_empty());
        let fabric = Arc::<FabricDemand>::default();
        let pools = Pools::new(
            &launcher,
            &fabric,
            PoolTarget {
                kind: config.sandbox,
                fixed: config.pool,
                cores: offered.len().min(POOL_MAX),
            },
        );
        let memory = Arc::new(IdleMemory::of_node());
        let spares = Spares::new(
            launcher.clone(),
            Arc::clone(&fabric),
            Arc::clone(&memory),
            config.spares,
        );
        let identity = NodeSettings {
            agent,
            boot: BootId(rand::random()),
            address: match (&endpoint, elsewhere) {
                (Some(endpoint), Some(_)) => endpoint.to_string(),
                _ => config.runtime_dir.join(AGENT_SOCKET).display().to_string(),
            },
            endpoint: endpoint.clone(),
            tenants,
            session_socket: config.runtime_dir.join(SESSION_SOCKET),
            host: config.node_name.clone().unwrap_or_else(cores::host_name),
            usable: cores::allowed(),
            cores: offered,
            memory_bytes: config.memory_bytes.unwrap_or_else(cores::memory_bytes),
            usable_memory_bytes: cores::memory_bytes(),
            gpus: config.gpus.min(GPUS_PER_AGENT_MAX),
            ttl: config.ttl,
            bounds: config.bounds,
            lifetime,
            sharing: SharingTerms {
                places_per_core: config.warm_slots_per_core,
                call_limit: config.shared_call_limit,
            },
            direct: config.direct,
            direct_gpus: config.direct_gpus,
            sandboxes: Sandboxes {
                default: config.sandbox,
                own_user: nix::unistd::geteuid().as_raw(),
            },
            images: Arc::new(images),
            sending: ImageSender::default(),
            swap: config.swap.clone().map(Arc::new),
            grants: Grants {
                directories: config.sandbox_grants.clone(),
                network: config.sandbox_policy.network,
                node: cores::host_name(),
            },
        };
        tracing::info!(%agent, cores = ?identity.cores, gpus = identity.gpus, worker = %launcher.binary().display(), "agent starts");
        let groups = ControlGroups::new(config.batch_groups.clone());
        let batch = JobWatch::new(policy, config.batch_jobs.clone(), groups, identity.parts());
        let given = (identity.sharing, identity.gpus);
        let supply = WorkerSupply::new(launcher, (pools, Arc::new(spares), fabric), storage, given);
        let node = Arc::new(Node::new(identity, supply, Borrowing::new(memory), batch, journal));
        node.recall_jobs().map_err(|refusal| AgentError::Config {
            what: refusal.to_string(),
        })?;
        let (registered, is_registered) = watch::channel(false);
        let manager = match (elsewhere, &config.manager_socket) {
            (Some(network), _) => {
                let identity = Arc::clone(&network.identity);
                Some(channel_to_first(
                    network.managers.clone(),
                    identity,
                    CertificateRole::Manager,
                ))
            }
            (_, Some(socket)) => Some(local_manager(socket)?),
            _ => None,
        };
        if let (Some(others), Some(manager)) = (&others, &manager) {
            others.set_manager(manager.clone());
        }
        let membership = manager.map(|manager| ManagerMembership::new(Arc::clone(&node), manager, registered));
        let served = Arc::clone(&node);
        let (stop, stopping) = watch::channel(false);
        let (finished, stopped) = watch::channel(false);
        let parts = AgentParts {
            node,
            grpc,
            sessions,
            node_socket,
            tls: tls.map(|(listener, _)| {
                let is_open = config
                    .network
                    .as_ref()
                    .is_some_and(|network| network.without_certificate);
                (listener, is_open)
            }),
            membership,
            token_key_rotation: config.token_key_rotation,
            stopped_limit: config.stopped_limit,
        };
        tokio::spawn(async move {
            parts.run(stopping).await;
            drop(lock);
            finished.send_replace(true);
        });
        Ok(Self {
            id: agent,
            stop,
            stopped,
            registered: is_registered,
            endpoint,
            node: served,
        })
    }

    /// Address to which other hosts connect.
    pub fn endpoint(&self) -> Option<&Address> {
        self.endpoint.as_ref()
    }

    /// Identifier of the agent.
    pub fn id(&self) -> AgentId {
        self.id
    }

    /// Returns once the agent is registered with the manager; never returns for an agent without a manager.
    pub async fn registered(&self) {
        let mut registered = self.registered.clone();
        if registered.wait_for(|registered| *registered).await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns once the agent has not been registered with a manager for `limit`.
    pub async fn without_manager(&self, limit: Duration) {
        let mut registered = self.registered.clone();
        loop {
            // An error means that the agent has stopped, so it will not be registered again.
            let _ = registered.wait_for(|registered| !*registered).await;
            if timeout(limit, registered.wait_for(|registered| *registered))
                .await
                .is_err()
            {
                return;
            }
        }
    }

    /// Stops the agent: all leases end. When this function returns, no worker, socket or lock is left.
    pub async fn shutdown(&self) {
        self.stop.send_replace(true);
        self.wait_until_stopped().await;
    }

    /// Returns once the agent has stopped serving.
    pub async fn wait_until_stopped(&self) {
        until_true(self.stopped.clone()).await;
    }
}

/// Opens the journal of a state directory; also returns the agent's identity, from the first of these that has one: the
/// state directory, the runtime directory (of an earlier version), the journal. New records of a journal must have the
/// identity of its old records.
fn journal(state: &Path, lock: &DirectoryLock) -> Result<(AgentId, UsageJournal), AgentError> {
    let dir = StateDir::take(state)?;
    let kept = kept_identity(state);
    let elsewhere = lock.known_identity();
    let mut agent = AgentId(rand::random());
    let journal = UsageJournal::open(dir, |written| {
        agent = kept.or(written).or(elsewhere).unwrap_or(agent);
        agent
    })?;
    if kept != Some(agent) {
        keep_identity(state, agent)?;
    }
    Ok((agent, journal))
}

/// Tenants that the agent serves. Fails if the agent may not serve all of them together.
fn tenants(config: &AgentConfig) -> Result<Tenants, AgentError> {
    let Some(network) = &config.network else {
        return Ok(Tenants::default());
    };
    let refused = |what| Err(AgentError::Config { what });
    if let Some(tenant) = network.tenants.iter().find(|tenant| !is_tenant_name(tenant)) {
        return refused(format!("{tenant:?} is no name of a tenant"));
    }
    let tenants = Tenants(network.tenants.clone());
    match tenants.separation_fault(config.sandbox, nix::unistd::geteuid().is_root(), network.shared) {
        None => Ok(tenants),
        Some(what) => refused(what),
    }
}

fn local_manager(socket: &Path) -> Result<Channel, AgentError> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
    let endpoint = endpoint.map_err(|error| AgentError::Config {
        what: format!("the manager's socket {}: {error}", socket.display()),
    })?;
    Ok(endpoint.connect_timeout(CONNECT_LIMIT).connect_lazy())
}

struct AgentParts {
    node: Arc<Node>,
    grpc: GrpcListener,
    sessions: SessionListener,
    node_socket: NodeSocket,
    /// Listener of the TLS port, and whether it admits clients without a certificate, which show the token of a lease.
    tls: Option<(TlsListener, bool)>,
    membership: Option<ManagerMembership>,
    token_key_rotation: Duration,
    stopped_limit: Duration,
}

impl AgentParts {
    async fn run(self, stopping: watch::Receiver<bool>) {
        let node = self.node;
        measure_ticks(Arc::clone(&node));
        let mut background = JoinSet::new();
        background.spawn(watchdog::expire_leases(Arc::clone(&node)));
        background.spawn(watchdog::enforce_deadlines(Arc::clone(&node)));
        background.spawn(stops::replace_stopped(Arc::clone(&node), self.stopped_limit));
        background.spawn(watchdog::enforce_memory(Arc::clone(&node)));
        background.spawn(idleness::end_idle_leases(Arc::clone(&node)));
        background.spawn(turns::keep_turns(Arc::clone(&node)));
        background.spawn(journalling::note_running(Arc::clone(&node)));
        background.spawn(eviction::swap_out_idle_ones(Arc::clone(&node)));
        background.spawn(Arc::clone(&node).follow_policy());
        background.spawn(Arc::clone(&node).follow_jobs());
        for pool in node.supply.pools.iter() {
            background.spawn(Arc::clone(pool).keep_filled());
        }
        background.spawn(Arc::clone(&node.supply.spares).keep_them());
        background.spawn(Arc::clone(&node).keep_borrowing());
        background.spawn(Arc::clone(&node).keep_rotating(self.token_key_rotation));

        // The parts stop at different moments.
        let (leave, leaving) = watch::channel(false);
        let (close, closing) = watch::channel(false);
        let membership = self.membership.map(|membership| tokio::spawn(membership.run(leaving)));
        let places = SessionPlaces::default();
        let local = self.sessions.serve(Arc::clone(&node), places.clone(), closing.clone());
        let sessions = tokio::spawn(local);
        let batch = tokio::spawn(self.node_socket.serve(Arc::clone(&node), closing.clone()));
        let service = Service {
            node: Arc::clone(&node),
        };
        let network = self.tls.map(|listener| {
            let (requests, connections) = mpsc::channel(ACCEPTED_MAX);
            let server = serve_on(service.clone(), connections, closing.clone());
            let accepting = network::serve(listener, Arc::clone(&node), places, requests, closing.clone());
            tokio::spawn(async {
                tokio::join!(accepting, server);
            })
        });
        let grpc = tokio::spawn(serve_grpc(service, self.grpc, closing));

        until_true(stopping).await;
        tracing::info!("agent stops");
        // The book cannot refuse this event. From here on the agent grants no leases.
        let _ = node.step(BookEvent::Stop);
        let mut active = node.active_leases();
        let limit = WORKERS_GONE_LIMIT + swap::ending_limit(node.identity.swap.as_deref());
        if timeout(limit, active.wait_for(|leases| *leases == 0)).await.is_err() {
            tracing::error!("there are leases left whose workers cannot be killed");
        }
        if timeout(FINISH_LIMIT, node.all_told()).await.is_err() {
            tracing::warn!("some clients were not told the end of their lease: the journal's disk is slow");
        }
        // The membership ends after the leases, so that the last report contains their final usage.
        leave.send_replace(true);
        if let Some(membership) = membership {
            finish("membership", membership).await;
        }
        close.send_replace(true);
        finish("sessions", sessions).await;
        finish("the node socket", batch).await;
        if let Some(network) = network {
            finish("the TLS port", network).await;
        }
        node.supply.pools.iter().for_each(|pool| pool.close());
        node.supply.spares.close();
        if timeout(WORKERS_GONE_LIMIT, node.supply.launcher.all_gone())
            .await
            .is_err()
        {
            tracing::error!(workers = node.supply.launcher.living(), "workers cannot be killed");
        }
        let unmounted = node.identity.images.all_unmounted();
        if timeout(WORKERS_GONE_LIMIT, unmounted).await.is_err() {
            tracing::error!("environments are still mounted; the next agent unmounts them");
        }
        finish("gRPC", grpc).await;
        background.shutdown().await;
        tracing::info!("agent stopped");
    }
}

async fn finish(what: &str, task: tokio::task::JoinHandle<()>) {
    if let Err(error) = task.await {
        tracing::error!(what, %error, "a part of the agent failed");
    }
}

fn measure_ticks(node: Arc<Node>) {
    tokio::task::spawn_blocking(move || node.supply.set_tick_hz(measure_tick_hz(TICK_MEASUREMENT)));
}
