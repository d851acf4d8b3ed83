//! Tests of credentials, and of what each of them permits.

use crate::fixture::{TestManager, connect, wish};
use hotlease_manager::identity::{MungeConfig, TenantPolicy};
use hotlease_manager::{Manager, ManagerConfig, ManagerNetwork};
use hotlease_net::authority::{self, IdentityRequest as Identify};
use hotlease_net::grpc::channel_without_certificate;
use hotlease_net::{Address, CertificateRole, Identity, Limits, Trust};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::identity_client::IdentityClient;
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{
    AddKeyRequest, AuthenticateRequest, BillRequest, ChallengeRequest, InfoRequest, ListKeysRequest, ListRequest,
    ListTenantsRequest, NewKey, PutTenantRequest, RegisterRequest, ReleaseRequest, RemoveTenantRequest,
    RevokeKeyRequest, RotateKeyRequest, ShutdownRequest, Tenant, VerifyRequest,
};
use std::io::Write;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

pub fn alice() -> Tenant {
    Tenant {
        name: "alice".into(),
        enabled: true,
        role: "user".into(),
        ..Tenant::default()
    }
}

pub async fn put(client: &mut ManagerClient<Channel>, tenant: Tenant, is_new: bool) -> Result<(), Rejection> {
    let request = PutTenantRequest {
        tenant: Some(tenant),
        is_new,
    };
    client.put_tenant(request).await.map(|_| ()).map_err(Rejection::from)
}

async fn key(client: &mut ManagerClient<Channel>, role: &str, lasts_ms: u64) -> NewKey {
    let request = AddKeyRequest {
        tenant: "alice".into(),
        role: role.into(),
        label: "test".into(),
        lasts_ms,
    };
    client
        .add_key(request)
        .await
        .expect("an operator makes keys")
        .into_inner()
}

/// Makes a request with this authorization header.
pub fn with<T>(authorization: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert("authorization", authorization.parse().expect("ASCII"));
    request
}

pub fn bearer<T>(secret: &str, message: T) -> Request<T> {
    with(&format!("Bearer {secret}"), message)
}

pub fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn a_key_makes_its_bearer_its_tenant_and_nothing_more() {
    let mut scene = TestManager::new().await;
    let agent = scene.agent(1, 2).await;
    let client = &mut scene.client;
    put(client, alice(), true).await.unwrap();
    let made = key(client, "user", 0).await;
    let secret = made.secret.as_str();
    client.acquire(bearer(secret, wish(1))).await.unwrap();
    assert_eq!(
        agent.lock().unwrap().asked[0].tenant,
        "alice",
        "the key's tenant does not pay"
    );
    client.get_info(bearer(secret, InfoRequest {})).await.unwrap();
    let answers = [
        code(client.shutdown(bearer(secret, ShutdownRequest {})).await),
        code(client.verify(bearer(secret, VerifyRequest::default())).await),
        code(client.register(bearer(secret, RegisterRequest::default())).await),
        code(client.list_tenants(bearer(secret, ListTenantsRequest::default())).await),
        code(client.put_tenant(bearer(secret, PutTenantRequest::default())).await),
        code(
            client
                .remove_tenant(bearer(secret, RemoveTenantRequest { name: "alice".into() }))
                .await,
        ),
        code(client.list_keys(bearer(secret, ListKeysRequest::default())).await),
        code(client.add_key(bearer(secret, AddKeyRequest::default())).await),
        code(client.revoke_key(bearer(secret, RevokeKeyRequest::default())).await),
        code(client.rotate_key(bearer(secret, RotateKeyRequest {})).await),
    ];
    assert_eq!(
        answers,
        [Code::PermissionDenied; 10],
        "a user's key gave the rights of an operator or an agent"
    );
    // The caller sees only its own leases, even if it asks for others.
    let others = ListRequest { tenant: "uid:0".into() };
    let seen = client.list_leases(bearer(secret, others)).await.unwrap().into_inner();
    assert!(seen.leases.iter().all(|lease| lease.tenant == "alice"), "{seen:?}");
}

#[tokio::test]
async fn a_revoked_expired_or_wrong_key_is_not_overlooked_for_the_connections_sake() {
    let mut scene = TestManager::new().await;
    let client = &mut scene.client;
    put(client, alice(), true).await.unwrap();
    let made = key(client, "operator", 0).await;
    let id = made.key.expect("a key").id;
    let other = key(client, "operator", 0).await.secret;
    let short = key(client, "operator", 1).await.secret;
    assert_eq!(
        code(client.verify(bearer(&made.secret, VerifyRequest::default())).await),
        Code::Ok
    );
    client.revoke_key(RevokeKeyRequest { id: id.clone() }).await.unwrap();
    let mixed = format!("hlk_{id}_{}", other.rsplit('_').next().expect("a secret"));
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    // Without a key, the requests on this connection count as requests of an operator.
    for wrong in [
        made.secret.as_str(),
        mixed.as_str(),
        short.as_str(),
        "hlk_",
        "",
        "hls_AAAA",
        "a.b.c",
    ] {
        let answer = client.get_info(bearer(wrong, InfoRequest {})).await;
        assert_eq!(code(answer), Code::Unauthenticated, "{wrong:?} was taken");
    }
    for wrong in ["Basic cm9vdDo=", "MUNGE:", "bearer", "Bearer", " "] {
        let answer = client.get_info(with(wrong, InfoRequest {})).await;
        assert_eq!(code(answer), Code::Unauthenticated, "{wrong:?} was taken");
    }
    let listed = client.list_keys(ListKeysRequest::default()).await.unwrap().into_inner();
    assert!(
        listed.keys.iter().any(|key| key.id == id && key.revoked_ms > 0),
        "{listed:?}"
    );
}

#[tokio::test]
async fn a_removed_or_disabled_tenant_leases_nothing() {
    let mut scene = TestManager::new().await;
    let _agent = scene.agent(1, 2).await;
    let client = &mut scene.client;
    put(client, alice(), true).await.unwrap();
    assert!(put(client, alice(), true).await.is_err(), "added twice");
    let secret = key(client, "user", 0).await.secret;
    let disabled = Tenant {
        enabled: false,
        ..alice()
    };
    put(client, disabled, false).await.unwrap();
    assert_eq!(
        code(client.acquire(bearer(&secret, wish(1))).await),
        Code::PermissionDenied
    );
    put(client, alice(), false).await.unwrap();
    assert_eq!(code(client.get_info(bearer(&secret, InfoRequest {})).await), Code::Ok);
    let name = "alice".to_owned();
    client.remove_tenant(RemoveTenantRequest { name }).await.unwrap();
    assert_eq!(
        code(client.acquire(bearer(&secret, wish(1))).await),
        Code::Unauthenticated
    );
    assert!(
        put(client, alice(), false).await.is_err(),
        "a tenant that is gone was changed"
    );
}

#[tokio::test]
async fn leases_asked_for_at_the_same_time_do_not_pass_a_quota() {
    let mut scene = TestManager::new().await;
    let _agent = scene.agent(1, 64).await;
    let limited = Tenant {
        cores: Some(2),
        ..alice()
    };
    put(&mut scene.client, limited, true).await.unwrap();
    let secret = key(&mut scene.client, "user", 0).await.secret;
    let asked = (0..16).map(|_| {
        let (mut client, secret) = (scene.client.clone(), secret.clone());
        tokio::spawn(async move { client.acquire(bearer(&secret, wish(2))).await })
    });
    let asked: Vec<_> = asked.collect();
    let mut granted = 0;
    for answer in asked {
        match answer.await.unwrap() {
            Ok(_) => granted += 1,
            Err(status) => match Rejection::from(status) {
                Rejection::QuotaExceeded {
                    tenant,
                    what,
                    limit,
                    used,
                } => {
                    assert_eq!((tenant.as_str(), what.as_str(), limit, used), ("alice", "cores", 2, 2));
                }
                refusal => panic!("{refusal}"),
            },
        }
    }
    assert_eq!(granted, 1, "16 requests of 2 cores each, and a quota of 2 cores");
}

#[tokio::test]
async fn nonsense_about_tenants_is_refused() {
    let mut scene = TestManager::new().await;
    let spoiled: [fn(&mut Tenant); 6] = [
        |tenant| tenant.name.clear(),
        |tenant| tenant.name = "a/b".into(),
        |tenant| tenant.role = "root".into(),
        |tenant| tenant.members = vec!["root".into()],
        |tenant| tenant.members = vec!["uid:1".into(), "cert:uid:0".into()],
        |tenant| tenant.window_hours = Some(0),
    ];
    for (number, spoil) in spoiled.iter().enumerate() {
        let mut tenant = alice();
        spoil(&mut tenant);
        assert!(
            put(&mut scene.client, tenant, true).await.is_err(),
            "spoiled tenant {number} was taken"
        );
    }
}

/// A manager on TLS, with and without certificates, and its site's authority.
pub struct Site {
    pub dir: TempDir,
    pub manager: Manager,
    pub local: ManagerClient<Channel>,
}

impl Site {
    pub async fn new(tenants: TenantPolicy) -> Self {
        Self::with(tenants, None).await
    }

    pub async fn with(tenants: TenantPolicy, munge: Option<MungeConfig>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = dir.path().join("authority");
        authority::init(&authority).unwrap();
        let identity = dir.path().join("manager");
        let hosts = vec!["127.0.0.1".into()];
        let request = Identify {
            hosts,
            ..Identify::new(CertificateRole::Manager)
        };
        authority::issue(&authority, &request, &identity).unwrap();
        let sockets = dir.path().join("sockets");
        std::fs::create_dir(&sockets).unwrap();
        let mut config = ManagerConfig::new(&sockets);
        config.tenants = tenants;
        config.munge = munge;
        config.network = Some(ManagerNetwork {
            listen: "127.0.0.1:0".parse().unwrap(),
            identity: Arc::new(Identity::load_as(&identity, CertificateRole::Manager).unwrap()),
            limits: Limits::default(),
            without_certificate: true,
        });
        let manager = Manager::start(config).await.unwrap();
        let local = connect(&sockets).await;
        Self { dir, manager, local }
    }

    /// A connection without a certificate.
    pub fn stranger(&self) -> Channel {
        let port = self.manager.address().expect("it listens").port();
        let trust = Trust::load(&self.dir.path().join("authority/ca.pem")).unwrap();
        channel_without_certificate(
            Address::new("127.0.0.1", port),
            trust,
            CertificateRole::Manager,
            Arc::default(),
        )
    }
}

#[tokio::test]
async fn a_stranger_can_only_authenticate() {
    let site = Site::new(TenantPolicy::Open).await;
    let channel = site.stranger();
    let mut client = ManagerClient::new(channel.clone());
    let answers = [
        code(client.acquire(wish(1)).await),
        code(client.release(ReleaseRequest::default()).await),
        code(client.list_agents(ListRequest::default()).await),
        code(client.list_leases(ListRequest::default()).await),
        code(client.list_workers(ListRequest::default()).await),
        code(client.list_functions(ListRequest::default()).await),
        code(client.get_info(InfoRequest {}).await),
        code(client.shutdown(ShutdownRequest {}).await),
        code(client.bill(BillRequest::default()).await),
        code(client.verify(VerifyRequest::default()).await),
        code(client.register(RegisterRequest::default()).await),
        code(client.list_tenants(ListTenantsRequest::default()).await),
        code(client.add_key(AddKeyRequest::default()).await),
    ];
    assert_eq!(answers, [Code::Unauthenticated; 13]);
    let mut identity = IdentityClient::new(channel);
    assert_eq!(
        identity
            .get_challenge(ChallengeRequest {})
            .await
            .unwrap()
            .into_inner()
            .nonce
            .len(),
        32
    );
    assert_eq!(
        code(identity.authenticate(AuthenticateRequest {}).await),
        Code::Unauthenticated
    );
}

#[tokio::test]
async fn a_key_opens_a_session_that_is_good_on_its_connection_only() {
    let mut site = Site::new(TenantPolicy::Listed).await;
    put(&mut site.local, alice(), true).await.unwrap();
    let secret = key(&mut site.local, "user", 0).await.secret;
    let (channel, other) = (site.stranger(), site.stranger());
    let mut identity = IdentityClient::new(channel.clone());
    let session = identity
        .authenticate(bearer(&secret, AuthenticateRequest {}))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((session.tenant.as_str(), session.role.as_str()), ("alice", "user"));
    let mut client = ManagerClient::new(channel);
    assert_eq!(
        code(client.get_info(bearer(&session.token, InfoRequest {})).await),
        Code::Ok
    );
    let mut thief = ManagerClient::new(other);
    assert_eq!(
        code(thief.get_info(bearer(&session.token, InfoRequest {})).await),
        Code::Unauthenticated
    );
    site.local.rotate_key(RotateKeyRequest {}).await.unwrap();
    let after = client.get_info(bearer(&session.token, InfoRequest {})).await;
    assert_eq!(code(after), Code::Ok, "rotating the key ended a session");
    let disabled = Tenant {
        enabled: false,
        ..alice()
    };
    put(&mut site.local, disabled, false).await.unwrap();
    let after = client.get_info(bearer(&session.token, InfoRequest {})).await;
    assert_eq!(
        code(after),
        Code::PermissionDenied,
        "the session of a disabled tenant goes on"
    );
}

/// Buffer of logged text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn ten_thousand_hostile_requests_are_refused_and_no_secret_is_logged() {
    let log = Log::default();
    let kept = log.clone();
    let logger = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .with_writer(move || kept.clone())
        .finish();
    // The runtime of this test has one thread.
    let _guard = tracing::subscriber::set_default(logger);
    let mut site = Site::new(TenantPolicy::Open).await;
    put(&mut site.local, alice(), true).await.unwrap();
    let good = key(&mut site.local, "operator", 0).await.secret;
    let expired = key(&mut site.local, "operator", 1).await.secret;
    let revoked = key(&mut site.local, "operator", 0).await;
    let id = revoked.key.expect("a key").id;
    site.local.revoke_key(RevokeKeyRequest { id }).await.unwrap();
    let elsewhere = IdentityClient::new(site.stranger())
        .authenticate(bearer(&good, AuthenticateRequest {}))
        .await
        .unwrap()
        .into_inner()
        .token;
    let oversize = "x".repeat(9 << 10);
    let mut refused = 0;
    for connection in 0..10 {
        let channel = site.stranger();
        let mut client = ManagerClient::new(channel.clone());
        let mut identity = IdentityClient::new(channel);
        for round in 0..1000_usize {
            let cut = &good[..round % good.len()];
            let changed = format!("{}!", &good[..good.len() - 1]);
            let credential = match round % 8 {
                0 => format!("Bearer {cut}"),
                1 => format!("Bearer {changed}"),
                2 => format!("Bearer {expired}"),
                3 => format!("Bearer {}", revoked.secret),
                4 => format!("Bearer {elsewhere}"),
                5 => format!("MUNGE MUNGE:{cut}:"),
                6 => format!("Bearer eyJhbGciOiJub25lIn0.{cut}."),
                _ => format!("Bearer {}", &oversize[..round * 9]),
            };
            let answer = match round % 3 {
                0 => code(identity.authenticate(with(&credential, AuthenticateRequest {})).await),
                1 => code(client.shutdown(with(&credential, ShutdownRequest {})).await),
                _ => code(client.verify(with(&credential, VerifyRequest::default())).await),
            };
            assert_eq!(
                answer,
                Code::Unauthenticated,
                "request {round} of connection {connection} got in"
            );
            refused += 1;
        }
    }
    assert_eq!(refused, 10_000);
    assert_eq!(
        code(site.local.get_info(InfoRequest {}).await),
        Code::Ok,
        "it does not serve any more"
    );
    let log = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(log.contains("a key was made"), "the log was not caught");
    // A key is prefix, id and secret; the secret's alphabet contains `_` too.
    let part = |key: &str| key.splitn(3, '_').last().expect("a secret").to_owned();
    for secret in [part(&good), part(&expired), part(&revoked.secret), elsewhere] {
        assert!(!log.contains(&secret), "a secret is in the log");
    }
}
