//! Requests that begin and do not end: they hold up their caller alone.

use crate::credentials::{Site, code};
use hotlease_manager::identity::TenantPolicy;
use hotlease_net::authority::{self, IdentityRequest as Identify};
use hotlease_net::grpc::channel;
use hotlease_net::{Address, CertificateRole, Identity};
use hotlease_wire::grpc::identity_client::IdentityClient;
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{AgentList, AuthenticateRequest, ListRequest, Session};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

/// Connections of a caller, and requests on each: more than the manager processes at a time.
const CONNECTIONS: usize = 9;
const REQUESTS: usize = 64;
/// Limit for an answer. An unfinished request is given up after 10 s at the earliest.
const LIMIT: Duration = Duration::from_secs(3);

/// Begins requests to a route, without ever sending their message. They end when the value is dropped.
fn begin<I, O>(channels: &[Channel], path: &'static str) -> JoinSet<()>
where
    I: prost::Message + Default + 'static,
    O: prost::Message + Default + 'static,
{
    let mut begun = JoinSet::new();
    for channel in channels
        .iter()
        .flat_map(|channel| std::iter::repeat_n(channel, REQUESTS))
    {
        let mut client = Grpc::new(channel.clone());
        begun.spawn(async move {
            client.ready().await.expect("connected");
            let request = Request::new(tokio_stream::pending::<I>());
            let codec = ProstCodec::<I, O>::default();
            let _ = client
                .client_streaming(request, path.parse().expect("a path"), codec)
                .await;
        });
    }
    begun
}

/// Waits until the requests of a channel get no answer any more, because its caller has no place left.
async fn until_full(channel: &Channel) {
    loop {
        let mut client = ManagerClient::new(channel.clone());
        let asked = timeout(Duration::from_millis(300), client.list_agents(ListRequest::default()));
        if asked.await.is_err() {
            return;
        }
    }
}

async fn list(client: &mut ManagerClient<Channel>) -> Code {
    let asked = timeout(LIMIT, client.list_agents(ListRequest::default()));
    code(asked.await.expect("others' requests hold it up"))
}

impl Site {
    /// A connection with a certificate of this tenant.
    fn member(&self, tenant: &str) -> Channel {
        let folder = self.dir.path().join(tenant);
        if !folder.exists() {
            let request = Identify {
                tenant: Some(tenant.into()),
                ..Identify::new(CertificateRole::Client)
            };
            authority::issue(&self.dir.path().join("authority"), &request, &folder).unwrap();
        }
        let identity = Arc::new(Identity::load_as(&folder, CertificateRole::Client).unwrap());
        let port = self.manager.address().expect("it listens").port();
        channel(Address::new("127.0.0.1", port), identity, CertificateRole::Manager)
    }
}

#[tokio::test]
async fn unfinished_requests_of_a_tenant_hold_up_no_other_caller() {
    let mut site = Site::new(TenantPolicy::Open).await;
    let of_ann: Vec<Channel> = (0..CONNECTIONS).map(|_| site.member("ann")).collect();
    let _begun = begin::<ListRequest, AgentList>(&of_ann, "/hotlease.v1.Manager/ListAgents");
    until_full(&site.member("ann")).await;
    assert_eq!(list(&mut ManagerClient::new(site.member("bob"))).await, Code::Ok);
    assert_eq!(list(&mut site.local).await, Code::Ok);
}

#[tokio::test]
async fn unfinished_requests_of_strangers_hold_up_no_other_caller() {
    let mut site = Site::new(TenantPolicy::Open).await;
    let strangers: Vec<Channel> = (0..CONNECTIONS).map(|_| site.stranger()).collect();
    let _begun = begin::<AuthenticateRequest, Session>(&strangers, "/hotlease.v1.Identity/Authenticate");
    until_full(&strangers[0]).await;
    let mut other = IdentityClient::new(site.stranger());
    let asked = timeout(LIMIT, other.authenticate(AuthenticateRequest::default()));
    assert_ne!(code(asked.await.expect("others' requests hold it up")), Code::Ok);
    assert_eq!(list(&mut ManagerClient::new(site.member("bob"))).await, Code::Ok);
    assert_eq!(list(&mut site.local).await, Code::Ok);
}
