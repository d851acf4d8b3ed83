//! Requests to the manager, by gRPC: over its Unix socket, or to another host over TLS.

use crate::Error;
use crate::options::LeaseOptions;
use hotlease_fabric::forks::PerProcess;
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_net::job::JobFolder;
use hotlease_net::{CertificateRole, NetError, Proof, SiteAccess, SiteChannel, SiteOptions, grpc};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::agent_client::AgentClient;
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{
    AcquireRequest, AgentInfo, FindOffersRequest, Grant, LeaseInfo, ListRequest, ReleaseRequest, SlotOffer,
    VouchRequest, WithdrawOfferRequest,
};
use hotlease_wire::ids::LeaseId;
use hotlease_wire::session::UsageTotals;
use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::net::UnixStream;
use tonic::{Code, Request, Response, Status};

/// Limit for a grant: it may wait for a worker of the agent.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(10);
/// Limit for every other request.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// Address of a manager.
#[derive(Clone)]
enum ManagerAddress {
    /// On this host, at this socket.
    SameHost(PathBuf),
    /// On another host.
    OtherHost(SiteAccess),
}

impl ManagerAddress {
    fn name(&self) -> String {
        match self {
            Self::SameHost(socket) => socket.display().to_string(),
            Self::OtherHost(site) => format!("{site} {}", site.proof.name()),
        }
    }
}

/// Client of a manager.
#[derive(Clone)]
pub(crate) struct ManagerConnection {
    at: ManagerAddress,
    client: ManagerClient<SiteChannel>,
}

/// One HTTP/2 connection for each daemon (and identity), made at first use and again when it breaks.
static CHANNELS: PerProcess<Mutex<HashMap<String, SiteChannel>>> = PerProcess::new();
/// Largest number of connections in the table; at this number the table is emptied, and all connections are made anew.
const CHANNELS_MAX: usize = 1024;

fn cached_channel(name: String, make: impl FnOnce() -> SiteChannel) -> SiteChannel {
    let mut channels = CHANNELS.get().lock().unwrap_or_else(PoisonError::into_inner);
    if channels.len() >= CHANNELS_MAX {
        channels.clear();
    }
    channels.entry(name).or_insert_with(make).clone()
}

impl ManagerConnection {
    /// The manager that the options name. Runs on the control thread.
    pub(crate) fn of(options: &LeaseOptions) -> Result<Self, Error> {
        let site = site_of(options)?;
        let at = match (site, &options.runtime_dir) {
            (Some(site), _) => ManagerAddress::OtherHost(site),
            (None, Some(path)) => ManagerAddress::SameHost(RuntimeDir::at(path)?.join("manager.sock")),
            (None, None) => ManagerAddress::SameHost(RuntimeDir::resolve()?.join("manager.sock")),
        };
        let channel = cached_channel(at.name(), || match &at {
            ManagerAddress::SameHost(socket) => grpc::channel_to_socket(socket.clone()).into(),
            ManagerAddress::OtherHost(site) => site.channel(),
        });
        Ok(Self {
            client: ManagerClient::new(channel),
            at,
        })
    }

    /// Name of this manager together with the identity that asks it; no other such pair has this name.
    pub(crate) fn name(&self) -> String {
        self.at.name()
    }

    /// The agents that are registered with the manager.
    pub(crate) async fn agents(&self) -> Result<Vec<AgentInfo>, Error> {
        let mut client = self.client.clone();
        let list = client.list_agents(Request::new(ListRequest::default()));
        Ok(self.ask(REQUEST_LIMIT, list).await?.agents)
    }

    /// The leases that this client's user may see.
    pub(crate) async fn leases(&self) -> Result<Vec<LeaseInfo>, Error> {
        let mut client = self.client.clone();
        let list = client.list_leases(Request::new(ListRequest::default()));
        Ok(self.ask(REQUEST_LIMIT, list).await?.leases)
    }

    /// Time at which an agent last joined a manager of this host. Returns `None` if the manager is on another host, or
    /// does not run.
    pub(crate) fn last_joined(&self) -> Option<SystemTime> {
        let ManagerAddress::SameHost(socket) = &self.at else {
            return None;
        };
        std::fs::metadata(socket).and_then(|socket| socket.modified()).ok()
    }

    /// Asks one of the agents for a lease.
    pub(crate) async fn acquire_of(&self, agent: &AgentInfo, request: AcquireRequest) -> Result<Grant, Error> {
        let channel = match &self.at {
            ManagerAddress::SameHost(_) if !agent.address.contains("://") => {
                let socket = PathBuf::from(&agent.address);
                cached_channel(agent.address.clone(), || grpc::channel_to_socket(socket).into())
            }
            ManagerAddress::OtherHost(site) if !agent.endpoint.is_empty() => {
                let Proof::Certificate(identity) = &site.proof else {
                    let what = "agents grant leases themselves only to clients with a certificate; ask the manager";
                    return Err(Rejection::NotPermitted { what: what.into() }.into());
                };
                let address = agent.endpoint.parse()?;
                let name = format!("{} {}", agent.endpoint, site.proof.name());
                cached_channel(name, || {
                    grpc::channel(address, identity.clone(), CertificateRole::Agent).into()
                })
            }
            _ => {
                let what = format!(
                    "agent {}: it is on another host, and cannot be reached from this client",
                    agent.id
                );
                return Err(Rejection::Unavailable { what }.into());
            }
        };
        let mut client = AgentClient::new(channel);
        let mut request = Request::new(request);
        request.set_timeout(ACQUIRE_LIMIT);
        match tokio::time::timeout(ACQUIRE_LIMIT, client.grant_direct(request)).await {
            Ok(granted) => granted.map(Response::into_inner).map_err(status_error),
            Err(_) => Err(Error::no_answer(format!("agent {}", agent.id), ACQUIRE_LIMIT)),
        }
    }

    /// Reports that this client holds a lease which an agent granted directly, and for how long it has held the lease.
    pub(crate) async fn vouch(&self, options: &LeaseOptions, grant: &Grant, held: Duration) -> Result<(), Error> {
        let vouch = VouchRequest {
            lease: grant.lease.clone(),
            agent: grant.agent.clone(),
            boot: grant.boot.clone(),
            epoch: grant.epoch,
            cores: grant.cores.clone(),
            workers: grant.cores.len() as u32 / u32::from(options.slots).max(1),
            slots_per_worker: options.slots.into(),
            memory_bytes: grant.memory_bytes / u64::from(grant.workers.max(1)),
            gpus: options.gpus.into(),
            label: options.label.clone(),
            job: options.job.clone(),
            held_ms: u64::try_from(held.as_millis()).unwrap_or(u64::MAX),
        };
        let mut client = self.client.clone();
        self.ask(REQUEST_LIMIT, client.vouch(Request::new(vouch))).await?;
        Ok(())
    }

    /// Publishes slots that this client lends.
    pub(crate) async fn put_offer(&self, offer: SlotOffer) -> Result<(), Error> {
        let mut client = self.client.clone();
        self.ask(REQUEST_LIMIT, client.put_offer(Request::new(offer))).await?;
        Ok(())
    }

    /// Slots that other clients of the same tenant and job lend.
    pub(crate) async fn find_offers(&self, job: String) -> Result<Vec<SlotOffer>, Error> {
        let mut client = self.client.clone();
        let find = client.find_offers(Request::new(FindOffersRequest { job }));
        Ok(self.ask(REQUEST_LIMIT, find).await?.offers)
    }

    /// Withdraws a published offer.
    pub(crate) async fn withdraw_offer(&self, lease: String, delegation: u32) -> Result<(), Error> {
        let mut client = self.client.clone();
        let withdraw = WithdrawOfferRequest { lease, delegation };
        self.ask(REQUEST_LIMIT, client.withdraw_offer(Request::new(withdraw)))
            .await?;
        Ok(())
    }

    /// The site of a manager on another host, through which its agents are reached; `None` for a manager on this host.
    pub(crate) fn site(&self) -> Option<&SiteAccess> {
        match &self.at {
            ManagerAddress::SameHost(_) => None,
            ManagerAddress::OtherHost(site) => Some(site),
        }
    }

    async fn ask<T>(
        &self,
        limit: Duration,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) if status.code() == Code::Unavailable && status.details().is_empty() => {
                Err(self.unavailable(status).await)
            }
            Ok(Err(status)) => Err(status_error(status)),
            Err(_) => Err(Error::no_answer("the manager", limit)),
        }
    }

    /// The error when the transport failed: either no manager runs, or the manager does not serve this client.
    async fn unavailable(&self, status: Status) -> Error {
        let ManagerAddress::SameHost(socket) = &self.at else {
            return status_error(status);
        };
        match UnixStream::connect(socket).await {
            Err(_) => Error::NotRunning { socket: socket.clone() },
            Ok(_) => Rejection::Unavailable {
                what: format!("the manager at {}: {}", socket.display(), status.message()),
            }
            .into(),
        }
    }

    /// Asks for a lease.
    pub(crate) async fn acquire(&self, request: AcquireRequest) -> Result<Grant, Error> {
        let mut client = self.client.clone();
        let mut request = Request::new(request);
        request.set_timeout(ACQUIRE_LIMIT);
        self.ask(ACQUIRE_LIMIT, client.acquire(request)).await
    }

    /// Releases a lease that has no session.
    pub(crate) async fn release(&self, lease: String) -> Result<(), Error> {
        let mut client = self.client.clone();
        let release = ReleaseRequest {
            lease,
            tenant: String::new(),
            reason: "its client could not use it".into(),
        };
        self.ask(REQUEST_LIMIT, client.release(Request::new(release))).await?;
        Ok(())
    }

    /// Total usage of these leases so far, as the manager has recorded it.
    pub(crate) async fn usage(&self, leases: &[LeaseId]) -> Result<UsageTotals, Error> {
        let list = self.leases().await?;
        let mut used = UsageTotals::default();
        for lease in leases {
            let id = lease.to_string();
            let lease = list.iter().find(|lease| lease.id == id);
            let usage = lease.ok_or(Rejection::UnknownLease)?.usage.unwrap_or_default();
            used.allocated_ns += usage.allocated_ns;
            used.hot_ns += usage.hot_ns;
            used.compute_ns += usage.compute_ns;
            used.invocations += usage.invocations;
        }
        Ok(used)
    }
}

/// The site that the options name; `None` for this host.
pub(crate) fn site_of(options: &LeaseOptions) -> Result<Option<SiteAccess>, Error> {
    Ok(SiteAccess::find(SiteOptions {
        manager: options.manager.as_deref(),
        is_local: options.runtime_dir.is_some(),
        identity: options.identity.as_deref(),
        credential: options.credential.as_ref(),
        authority: options.authority.as_deref(),
    })?)
}

/// Addresses of the manager that serves this batch job, with commas between them; empty if the manager is starting.
/// Returns `None` if the job has no platform of its own, or if this process belongs to no job.
pub fn job_managers() -> Result<Option<String>, Error> {
    let Some(folder) = JobFolder::in_use() else {
        return Ok(None);
    };
    match folder.is_there()? {
        true => Ok(Some(
            folder.manager()?.map(|manager| manager.addresses).unwrap_or_default(),
        )),
        false => Ok(None),
    }
}

/// The error in a manager's answer, or of the transport.
fn status_error(status: Status) -> Error {
    match grpc::cause(&status) {
        Some(NetError::Refused(refusal)) => refusal.clone().into(),
        Some(error) => error.clone().into(),
        None => Rejection::from(status).into(),
    }
}
