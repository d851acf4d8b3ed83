//! Simulated agents of one process. Each has its own port, and its own connection to the manager.

use super::agent::SimulatedAgent;
use super::fleet::SimulatedAgentsArgs;
use super::site::{AGENTS_PER_IDENTITY, raise_descriptors};
use anyhow::Context;
use hotlease_lease::agent::{Membership, MembershipAction, MembershipEvent};
use hotlease_net::grpc::{PeerStream, channel};
use hotlease_net::{CertificateRole, Identity, Limits, TlsListener};
use hotlease_wire::grpc::RegisterRequest;
use hotlease_wire::grpc::agent_server::AgentServer;
use hotlease_wire::grpc::manager_client::ManagerClient;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Server};

/// Largest number of agents that connect at the same time; a manager handshakes with at most 64 peers of one address.
const CONNECTING_MAX: usize = 32;
/// Longest wait for the next agent to register.
const REGISTER_WITHIN: Duration = Duration::from_secs(60);

/// Simulated agents of one process.
pub(super) struct ProcessAgents {
    agents: Vec<SimulatedAgent>,
    tasks: JoinSet<()>,
    heard: Arc<AtomicU64>,
}

impl ProcessAgents {
    /// Starts the agents. Returns when all of them are registered.
    pub(super) async fn start(args: &SimulatedAgentsArgs) -> anyhow::Result<Self> {
        // Each agent has a listener, an incoming connection and an outgoing connection.
        raise_descriptors(u64::from(args.agents) * 3)?;
        let identities = args.identities.iter().map(|folder| Identity::load(folder));
        let identities: Vec<_> = identities
            .map(|identity| Ok(Arc::new(identity?)))
            .collect::<anyhow::Result<_>>()?;
        let connecting = Arc::new(Semaphore::new(CONNECTING_MAX));
        let heard = Arc::new(AtomicU64::new(0));
        let mut members = Self {
            agents: Vec::new(),
            tasks: JoinSet::new(),
            heard: Arc::clone(&heard),
        };
        let mut registered = JoinSet::new();
        for number in 0..args.agents {
            let identity = identities.get((number / AGENTS_PER_IDENTITY) as usize);
            let identity = Arc::clone(identity.context("there are too few identities")?);
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let listener = TlsListener::bind(any, Arc::clone(&identity), Limits::default()).await?;
            let agent = SimulatedAgent::new(format!("https://{}", listener.local_addr()?), args.cores);
            members.tasks.spawn(serve(listener, agent.clone()));
            let (told, mut is_member) = watch::channel(false);
            let membership = MembershipTask {
                agent: agent.clone(),
                manager: ManagerClient::new(channel(args.manager.clone(), identity, CertificateRole::Manager)),
                connecting: Arc::clone(&connecting),
                registered: told,
                heard: Arc::clone(&heard),
            };
            members.tasks.spawn(membership.run());
            members.agents.push(agent);
            registered.spawn(async move { is_member.wait_for(|member| *member).await.is_ok() });
        }
        while let Some(done) = timeout(REGISTER_WITHIN, registered.join_next())
            .await
            .context("agents cannot register")?
        {
            anyhow::ensure!(done?, "an agent gave up");
        }
        Ok(members)
    }

    /// Reports that the manager has accepted so far.
    pub(super) fn accepted_reports(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Leases that all agents hold.
    pub(super) fn leases(&self) -> usize {
        self.agents.iter().map(SimulatedAgent::leases).sum()
    }
}

async fn serve(listener: TlsListener, agent: SimulatedAgent) {
    let (admitted, connections) = mpsc::channel(4);
    let accepting = tokio::spawn(listener.accept_into(admitted));
    use tokio_stream::StreamExt;
    let connections = ReceiverStream::new(connections).map(|peer| io::Result::Ok(PeerStream::from(peer)));
    let served = Server::builder()
        .add_service(AgentServer::new(agent))
        .serve_with_incoming(connections)
        .await;
    accepting.abort();
    if let Err(error) = served {
        tracing::error!(%error, "a simulated agent failed");
    }
}

/// Membership of one agent at the manager, maintained as `hotlease agent` maintains it.
struct MembershipTask {
    agent: SimulatedAgent,
    manager: ManagerClient<Channel>,
    connecting: Arc<Semaphore>,
    registered: watch::Sender<bool>,
    heard: Arc<AtomicU64>,
}

impl MembershipTask {
    async fn run(mut self) {
        let mut machine = Membership::new(self.agent.now());
        while let Some(due) = machine.next_step() {
            sleep_until(Instant::from_std(self.agent.instant(due))).await;
            let mut event = Some(MembershipEvent::Tick);
            // Only one request is under way at a time. Its response is the next event.
            while let Some(happened) = event.take() {
                for action in machine.step(happened, self.agent.now()) {
                    if let Some(answer) = self.carry_out(action).await {
                        event = Some(answer);
                    }
                }
            }
        }
    }

    async fn carry_out(&mut self, action: MembershipAction) -> Option<MembershipEvent> {
        match action {
            MembershipAction::Register { ask, proof } => {
                let _turn = self.connecting.acquire().await.ok()?;
                let agent = Some(self.agent.info("serving"));
                let answer = self.manager.register(RegisterRequest { agent, proof }).await;
                Some(match answer.map(tonic::Response::into_inner) {
                    Ok(reply) if reply.challenge != 0 => MembershipEvent::Challenged {
                        ask,
                        challenge: reply.challenge,
                    },
                    Ok(reply) => MembershipEvent::Registered {
                        ask,
                        heartbeat: Duration::from_millis(reply.heartbeat_ms),
                        ledger: reply.ledger,
                    },
                    Err(_) => MembershipEvent::Failed { ask },
                })
            }
            MembershipAction::Report { ask, whole, leaving } => {
                let report = self.agent.heartbeat(ask, whole, leaving);
                let answer = self.manager.heartbeat(report).await;
                Some(match answer.map(tonic::Response::into_inner) {
                    Ok(reply) => MembershipEvent::ReportAnswered {
                        ask,
                        known: reply.known,
                        heartbeat: Duration::from_millis(reply.heartbeat_ms),
                        totals_every: Duration::from_millis(reply.totals_every_ms),
                    },
                    Err(_) => MembershipEvent::Failed { ask },
                })
            }
            MembershipAction::Acknowledged { ask } => {
                self.heard.fetch_add(1, Ordering::Relaxed);
                self.agent.acknowledge(ask);
                None
            }
            MembershipAction::Joined => {
                self.registered.send_replace(true);
                None
            }
            MembershipAction::Unacknowledged { .. }
            | MembershipAction::OweAgain
            | MembershipAction::Lost
            | MembershipAction::Left => None,
        }
    }
}
