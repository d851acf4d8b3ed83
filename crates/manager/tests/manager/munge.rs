//! Tests of MUNGE, with a real `munged` for each test.

use crate::credentials::{Site, alice, bearer, code, put, with};
use crate::munged::Munged;
use hotlease_manager::identity::{MungeConfig, TenantPolicy, munge_payload};
use hotlease_wire::grpc::identity_client::IdentityClient;
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{AuthenticateRequest, ChallengeRequest, InfoRequest, Tenant};
use tonic::Code;
use tonic::transport::Channel;

async fn answered(door: &mut IdentityClient<Channel>, credential: &str) -> Result<String, Code> {
    let request = with(&format!("MUNGE {credential}"), AuthenticateRequest {});
    let answer = door.authenticate(request).await;
    answer
        .map(|session| session.into_inner().token)
        .map_err(|status| status.code())
}

async fn challenged(door: &mut IdentityClient<Channel>) -> String {
    let challenge = door.get_challenge(ChallengeRequest {}).await.unwrap().into_inner();
    munge_payload(&challenge.nonce, &challenge.server)
}

async fn site(munged: &Munged) -> Site {
    let config = MungeConfig {
        socket: Some(munged.socket()),
        ..MungeConfig::default()
    };
    let mut site = Site::with(TenantPolicy::Open, Some(config)).await;
    let tenant = Tenant {
        members: vec![format!("uid:{}", nix::unistd::geteuid())],
        ..alice()
    };
    put(&mut site.local, tenant, true).await.unwrap();
    site
}

#[tokio::test]
async fn a_credential_opens_one_session_of_its_users_tenant() {
    let Some(munged) = Munged::start() else { return };
    let site = site(&munged).await;
    let channel = site.stranger();
    let mut door = IdentityClient::new(channel.clone());
    let credential = munged.credential(&challenged(&mut door).await);
    let token = answered(&mut door, &credential).await.expect("let in");
    let mut client = ManagerClient::new(channel);
    assert_eq!(code(client.get_info(bearer(&token, InfoRequest {})).await), Code::Ok);
    let shut = client
        .shutdown(bearer(&token, hotlease_wire::grpc::ShutdownRequest {}))
        .await;
    assert_eq!(
        code(shut),
        Code::PermissionDenied,
        "root of the cluster is an operator of the site"
    );
    // Replays: on this connection with its next challenge, and on another connection.
    assert_eq!(
        answered(&mut door, &credential).await,
        Err(Code::Unauthenticated),
        "replayed without a challenge"
    );
    challenged(&mut door).await;
    assert_eq!(
        answered(&mut door, &credential).await,
        Err(Code::Unauthenticated),
        "replayed with another challenge"
    );
    let mut other = IdentityClient::new(site.stranger());
    challenged(&mut other).await;
    assert_eq!(
        answered(&mut other, &credential).await,
        Err(Code::Unauthenticated),
        "replayed elsewhere"
    );
}

/// Credentials that `munged` itself accepts, because they are not replays.
#[tokio::test]
async fn a_fresh_credential_for_something_else_is_refused() {
    let Some(munged) = Munged::start() else { return };
    let site = site(&munged).await;
    let mut door = IdentityClient::new(site.stranger());
    let uid = format!("--restrict-uid={}", nix::unistd::geteuid());
    let mut other = IdentityClient::new(site.stranger());
    let others = munged.credential(&challenged(&mut other).await);
    challenged(&mut door).await;
    assert_eq!(
        answered(&mut door, &others).await,
        Err(Code::Unauthenticated),
        "another connection's nonce"
    );

    let challenge = door.get_challenge(ChallengeRequest {}).await.unwrap().into_inner();
    let elsewhere = munged.credential(&munge_payload(&challenge.nonce, &[7; 32]));
    assert_eq!(
        answered(&mut door, &elsewhere).await,
        Err(Code::Unauthenticated),
        "made for another server"
    );

    let payload = challenged(&mut door).await;
    let unrestricted = munged.try_credential(&payload, &["--ttl=60"]).expect("made");
    assert_eq!(
        answered(&mut door, &unrestricted).await,
        Err(Code::Unauthenticated),
        "anybody may decode it"
    );

    let payload = challenged(&mut door).await;
    let long = munged.try_credential(&payload, &[&uid, "--ttl=1000"]).expect("made");
    assert_eq!(
        answered(&mut door, &long).await,
        Err(Code::Unauthenticated),
        "it lives for too long"
    );

    let payload = challenged(&mut door).await;
    let for_another = munged
        .try_credential(&payload, &["--restrict-uid=54321", "--ttl=60"])
        .expect("made");
    assert_eq!(
        answered(&mut door, &for_another).await,
        Err(Code::Unauthenticated),
        "it is for another user"
    );

    let good = munged.credential(&challenged(&mut door).await);
    let cut = format!("{}:", &good[..good.len() / 2]);
    assert_eq!(
        answered(&mut door, &cut).await,
        Err(Code::Unauthenticated),
        "half of one"
    );
    assert_eq!(
        answered(&mut door, &good).await,
        Err(Code::Unauthenticated),
        "its nonce was used by the wrong one"
    );

    // A good credential is still accepted afterwards.
    let good = munged.credential(&challenged(&mut door).await);
    assert!(answered(&mut door, &good).await.is_ok());
}

#[tokio::test]
async fn a_key_of_another_cluster_is_refused() {
    let (Some(munged), Some(foreign)) = (Munged::start(), Munged::start()) else {
        return;
    };
    let site = site(&munged).await;
    let mut door = IdentityClient::new(site.stranger());
    let credential = foreign.credential(&challenged(&mut door).await);
    assert_eq!(answered(&mut door, &credential).await, Err(Code::Unauthenticated));
}
