//! Tokens of leases, and of the sessions that leased with them.

use super::{Credentials, OPEN};
use crate::remote::LONG;
use hotlease_net::Credential;
use hotlease_tests::library::library;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::wait::until_true;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{InfoRequest, ListRequest};
use hotlease_wire::session::{SessionReply, SessionRequest};
use std::fs;
use std::time::Duration;

#[test]
fn an_agent_takes_no_client_without_a_certificate_unless_it_was_told_to() {
    let scene = Credentials::new(&[], &[]);
    let channel = scene.channel(&Credential::KeyFile(scene.key("key", &[])));
    let grant = scene.acquire(&channel, LONG).expect("a lease");
    let error = scene.session(&grant, &grant.token).map(drop).expect_err("refused");
    assert!(error.to_string().contains("no peer without a certificate"), "{error}");
}

#[test]
fn a_token_opens_its_own_living_lease_on_its_own_agent_and_nothing_else() {
    let scene = Credentials::new(&[], &OPEN);
    let channel = scene.channel(&Credential::KeyFile(scene.key("key", &[])));
    let grant = scene.acquire(&channel, LONG).expect("a lease");
    // A token of another agent of the same manager is made with another key.
    let elsewhere = Credentials::new(&[], &OPEN);
    let its_channel = elsewhere.channel(&Credential::KeyFile(elsewhere.key("key", &[])));
    let other = elsewhere.acquire(&its_channel, LONG).expect("a lease");
    assert_eq!(
        scene.refused(&grant, &other.token),
        Rejection::BadToken,
        "another agent's token"
    );
    for cut in [0, 1, grant.token.len() / 2, grant.token.len() - 1] {
        assert_eq!(
            scene.refused(&grant, &grant.token[..cut]),
            Rejection::BadToken,
            "cut to {cut}"
        );
    }
    for bit in [40, 8 * 20, 8 * grant.token.len() - 1] {
        let mut forged = grant.token.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(scene.refused(&grant, &forged), Rejection::BadToken, "bit {bit}");
    }
    let mut session = scene.attached(&grant, &grant.token);
    session
        .load(&fs::read(library("echo")).expect("the library"))
        .expect("loaded");
    let (_connection, epoch) = session.worker(0).expect("a connection to the worker");
    assert_eq!(epoch.0, grant.epoch);
    session.release();
    let refusal = scene.refused(&grant, &grant.token);
    assert!(
        matches!(refusal, Rejection::LeaseEnded(_) | Rejection::UnknownLease),
        "replayed after the release: {refusal}"
    );
    let brief = Duration::from_millis(300);
    let expired = scene.acquire(&channel, brief).expect("a lease");
    std::thread::sleep(brief * 2);
    // A busy agent may not have ended the lease yet, but the lease's token has expired anyway.
    until_true("it is over", LIMIT, || match scene.refused(&expired, &expired.token) {
        Rejection::LeaseEnded(_) | Rejection::UnknownLease => true,
        refusal => {
            let said = refusal.to_string();
            assert!(
                said.contains("the token's time to attach is over"),
                "of a lease that expired: {said}"
            );
            false
        }
    });
}

#[test]
fn a_key_that_was_replaced_twice_opens_nothing_and_renewing_gets_a_token_of_the_present_one() {
    let scene = Credentials::new(&[], &OPEN);
    let channel = scene.channel(&Credential::KeyFile(scene.key("key", &[])));
    let grant = scene.acquire(&channel, LONG).expect("a lease");
    let mut session = scene.attached(&grant, &grant.token);
    let rotate = || scene.operator(&["admin", "key", "rotate"]);
    let told = rotate();
    assert!(told.contains("1 agents"), "{told}");
    drop(scene.attached(&grant, &grant.token));
    rotate();
    let refusal = scene.refused(&grant, &grant.token);
    assert!(refusal.to_string().contains("replaced twice"), "{refusal}");
    // A session that was let in goes on, and renewal returns a token that opens a session now.
    let token = match session.ask(&SessionRequest::Renew, &[]) {
        Ok(SessionReply::Renewed { token, .. }) => token,
        other => panic!("not renewed: {other:?}"),
    };
    drop(scene.attached(&grant, &token));
    session.release();
    let mut manager = ManagerClient::new(channel);
    let leases = scene.runtime.block_on(manager.list_leases(ListRequest::default()));
    assert!(leases.is_ok(), "the manager's session was replaced as well: {leases:?}");
}

#[test]
fn a_revoked_key_ends_the_session_that_it_opened() {
    let scene = Credentials::new(&[], &OPEN);
    let path = scene.key("key", &[]);
    let channel = scene.channel(&Credential::KeyFile(path.clone()));
    let info = || {
        let mut manager = ManagerClient::new(channel.clone());
        let asked = scene.runtime.block_on(manager.get_info(InfoRequest {}));
        asked.map(|_| ()).map_err(hotlease_net::grpc::refusal)
    };
    info().expect("signed in");
    let secret = fs::read_to_string(path).expect("a key");
    let id = secret.split('_').nth(1).expect("an id");
    scene.operator(&["admin", "key", "revoke", id]);
    let refusal = info().expect_err("the key was revoked");
    assert!(refusal.to_string().contains("revoked"), "{refusal}");
}

#[test]
fn a_key_that_rotates_by_itself_disturbs_no_session() {
    let scene = Credentials::new(&[], &["--without-certificate", "--token-key-rotation", "4s"]);
    let channel = scene.channel(&Credential::KeyFile(scene.key("key", &[])));
    let grant = scene.acquire(&channel, LONG).expect("a lease");
    let mut session = scene.attached(&grant, &grant.token);
    until_true("the key is replaced twice", LIMIT, || {
        scene
            .agent
            .log()
            .matches("the key of lease tokens was replaced")
            .count()
            >= 2
    });
    assert!(
        scene
            .refused(&grant, &grant.token)
            .to_string()
            .contains("replaced twice")
    );
    let renewed = session.ask(&SessionRequest::Renew, &[]);
    assert!(matches!(renewed, Ok(SessionReply::Renewed { .. })), "{renewed:?}");
    session.release();
}
