//! Requests to the manager, by gRPC: over its Unix socket, or to another host over TLS.

use crate::Error;
use crate::options::LeaseOptions;
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_net::{NetError, Site, grpc};
use hotlease_wire::Refusal;
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{AcquireRequest, Grant, ListRequest, ReleaseRequest};
use hotlease_wire::ids::LeaseId;
use hotlease_wire::session::UsageTotals;
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Response, Status};
use tower::service_fn;

/// A grant may wait for a worker of the agent.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(10);
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// Where a manager is.
#[derive(Clone)]
enum At {
    /// On this machine, at this socket.
    Machine(PathBuf),
    /// On another host.
    Elsewhere(Site),
}

/// A manager.
#[derive(Clone)]
pub(crate) struct Manager {
    at: At,
    client: ManagerClient<Channel>,
}

/// One HTTP/2 connection for each manager (and identity), made when first used and again when it breaks.
static CHANNELS: LazyLock<Mutex<HashMap<String, Channel>>> = LazyLock::new(Mutex::default);

impl Manager {
    /// The one that the options name. On the control thread.
    pub(crate) fn of(options: &LeaseOptions) -> Result<Self, Error> {
        let local = options.runtime_dir.is_some();
        let site = Site::find(options.manager.as_deref(), options.identity.as_deref(), local)?;
        let at = match (site, &options.runtime_dir) {
            (Some(site), _) => At::Elsewhere(site),
            (None, Some(path)) => At::Machine(RuntimeDir::at(path)?.join("manager.sock")),
            (None, None) => At::Machine(RuntimeDir::resolve()?.join("manager.sock")),
        };
        let name = match &at {
            At::Machine(socket) => socket.display().to_string(),
            At::Elsewhere(site) => format!("{site} {}", site.identity.dir().display()),
        };
        let mut channels = CHANNELS.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = channels.entry(name).or_insert_with(|| match &at {
            At::Machine(socket) => local_channel(socket.clone()),
            At::Elsewhere(site) => site.channel(),
        });
        Ok(Self {
            client: ManagerClient::new(channel.clone()),
            at,
        })
    }

    /// For a manager on another host: what its agents are reached with.
    pub(crate) fn site(&self) -> Option<&Site> {
        match &self.at {
            At::Machine(_) => None,
            At::Elsewhere(site) => Some(site),
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
            Ok(Err(status)) => Err(failed(status)),
            Err(_) => Err(Error::Refused(Refusal::Timeout {
                what: "the manager".into(),
                after_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            })),
        }
    }

    /// The transport failed: nobody there, or somebody who does not speak to us?
    async fn unavailable(&self, status: Status) -> Error {
        let At::Machine(socket) = &self.at else {
            return failed(status);
        };
        match UnixStream::connect(socket).await {
            Err(_) => Error::NotRunning {
                socket: socket.clone(),
            },
            Ok(_) => Refusal::Unavailable {
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

    /// Gives back a lease that has no session.
    pub(crate) async fn release(&self, lease: String) -> Result<(), Error> {
        let mut client = self.client.clone();
        let release = ReleaseRequest {
            lease,
            tenant: String::new(),
            reason: "its client could not use it".into(),
        };
        self.ask(REQUEST_LIMIT, client.release(Request::new(release)))
            .await?;
        Ok(())
    }

    /// What a lease has used so far, as the manager knows it.
    pub(crate) async fn usage(&self, lease: LeaseId) -> Result<UsageTotals, Error> {
        let mut client = self.client.clone();
        let list = self
            .ask(
                REQUEST_LIMIT,
                client.list_leases(Request::new(ListRequest::default())),
            )
            .await?;
        let id = lease.to_string();
        let lease = list.leases.into_iter().find(|lease| lease.id == id);
        let usage = lease.ok_or(Refusal::UnknownLease)?.usage.unwrap_or_default();
        Ok(UsageTotals {
            allocated_ns: usage.allocated_ns,
            hot_ns: usage.hot_ns,
            compute_ns: usage.compute_ns,
            invocations: usage.invocations,
        })
    }
}

fn local_channel(socket: PathBuf) -> Channel {
    // The address is only what HTTP/2 calls the peer; the connector goes to the socket.
    Endpoint::from_static("http://manager.hotlease").connect_with_connector_lazy(service_fn(move |_: Uri| {
        let path = socket.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    }))
}

/// What a manager answered, or why it did not.
fn failed(status: Status) -> Error {
    match grpc::cause(&status) {
        Some(NetError::Refused(refusal)) => refusal.clone().into(),
        Some(error) => error.clone().into(),
        None => Refusal::from(status).into(),
    }
}
