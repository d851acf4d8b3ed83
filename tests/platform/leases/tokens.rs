//! Tokens open only the lease that they were minted for, and only while it exists.

use hotlease_tests::lease::{LONG, RawLease};
use hotlease_tests::platform::{LIMIT, Platform};
use hotlease_tests::session::{NoAnswer, RawSession};
use hotlease_tests::wait::until;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::Grant;
use hotlease_wire::ids::WorkerIndex;
use hotlease_wire::limits::PROTOCOL_VERSION;
use hotlease_wire::session::{SessionReply, SessionRequest};
use hotlease_wire::token::{CLAIMS_VERSION, Claims, Rights, TokenKey};
use std::path::Path;
use std::time::Duration;

fn present(grant: &Grant, token: &[u8]) -> Result<SessionReply, NoAnswer> {
    let mut session = RawSession::connect(Path::new(&grant.session_socket)).expect("the session socket");
    session.attach(token)
}

#[track_caller]
fn refused(grant: &Grant, token: &[u8], what: &str) -> Rejection {
    match present(grant, token) {
        Ok(SessionReply::Refused(refusal)) => refusal,
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn forged_or_truncated_token_is_refused() {
    let platform = Platform::start();
    let grant = platform.manager().lease(1, LONG).unwrap();
    for byte in 0..grant.token.len() {
        let mut token = grant.token.clone();
        token[byte] ^= 1 << (byte % 8);
        let refusal = refused(&grant, &token, &format!("a bit of byte {byte} flipped"));
        assert_eq!(refusal, Rejection::BadToken, "a bit of byte {byte} flipped");
    }
    for length in 0..grant.token.len() {
        let refusal = refused(&grant, &grant.token[..length], &format!("cut to {length} bytes"));
        assert_eq!(refusal, Rejection::BadToken, "cut to {length} bytes");
    }
    let longer = [&grant.token[..], b"x"].concat();
    assert_eq!(refused(&grant, &longer, "one byte longer"), Rejection::BadToken);
    assert_eq!(refused(&grant, &[0; 10_000], "zeros"), Rejection::BadToken);
    // These attempts did not spoil the real token.
    RawSession::attached(&grant).release();
}

#[test]
fn token_minted_with_another_key_is_refused() {
    let platform = Platform::start();
    let grant = platform.manager().lease(1, LONG).unwrap();
    let agents = platform.manager().agents().unwrap();
    let claims = Claims {
        version: CLAIMS_VERSION,
        lease: grant.lease.parse().unwrap(),
        tenant: format!("uid:{}", nix::unistd::getuid()),
        agent: grant.agent.parse().unwrap(),
        boot: agents[0].boot.parse().unwrap(),
        epoch: hotlease_wire::ids::Epoch(grant.epoch),
        attach_until_ms: u64::MAX,
        rights: Rights::HOLDER,
        delegation: 0,
    };
    for secret in [[0; 32], [255; 32], rand::random()] {
        let token = TokenKey::new(secret).mint(&claims);
        assert_eq!(refused(&grant, &token, "own key"), Rejection::BadToken);
    }
    RawSession::attached(&grant).release();
}

#[test]
fn token_of_a_released_lease_opens_nothing() {
    let platform = Platform::start();
    let lease = RawLease::take(&platform);
    let grant = lease.grant.clone();
    lease.session.release();
    let refusal = refused(&grant, &grant.token, "replayed after release");
    assert!(
        matches!(
            refusal,
            Rejection::LeaseEnded(_) | Rejection::UnknownLease | Rejection::StaleEpoch { .. }
        ),
        "{refusal:?}"
    );
    // Old tokens are also refused when another lease has the cores.
    let next = platform.manager().lease(2, LONG).unwrap();
    assert!(next.epoch > grant.epoch, "epochs rise");
    refused(&next, &grant.token, "replayed while another holds the cores");
    RawSession::attached(&next).release();
}

#[test]
fn token_of_an_earlier_boot_opens_nothing() {
    let mut platform = Platform::start();
    let old = platform.manager().lease(1, LONG).unwrap();
    platform.kill();
    platform.nothing_runs(LIMIT);
    platform.up_again();
    let new = platform.manager().lease(1, LONG).unwrap();
    let refusal = refused(&new, &old.token, "of an earlier boot");
    assert!(
        matches!(refusal, Rejection::BadToken | Rejection::StaleEpoch { .. }),
        "{refusal:?}"
    );
    RawSession::attached(&new).release();
}

#[test]
fn token_that_is_not_used_in_time_opens_nothing() {
    let platform = Platform::start();
    let grant = platform.manager().lease(1, Duration::from_millis(100)).unwrap();
    let (refusal, _) = until("the token expires", LIMIT, || {
        let mut session = RawSession::connect(Path::new(&grant.session_socket)).ok()?;
        // An attach in time keeps the lease only for its time to live: the client does not renew.
        match session.attach(&grant.token) {
            Ok(SessionReply::Attached { .. }) => None,
            Ok(SessionReply::Refused(refusal)) => Some(refusal),
            other => panic!("{other:?}"),
        }
    });
    assert!(
        matches!(
            refusal,
            Rejection::BadToken | Rejection::LeaseEnded(_) | Rejection::UnknownLease | Rejection::StaleEpoch { .. }
        ),
        "{refusal:?}"
    );
}

#[test]
fn token_reaches_no_worker_of_another_lease() {
    let platform = Platform::start();
    let mut other = RawLease::take(&platform);
    let mut lease = RawLease::take(&platform);
    for index in [1, 2, 1023, u16::MAX] {
        let refusal = lease.session.worker(index).err();
        assert_eq!(
            refusal,
            Some(Rejection::UnknownWorker { index, workers: 1 }),
            "worker {index}"
        );
    }
    lease.echo();
    other.echo();
}

#[test]
fn nothing_is_served_before_the_token_is_checked() {
    let platform = Platform::start();
    let grant = platform.manager().lease(1, LONG).unwrap();
    for request in [
        SessionRequest::Connect {
            worker: WorkerIndex(0),
            over_fabric: false,
        },
        SessionRequest::Renew,
        SessionRequest::Release,
        SessionRequest::Load {
            hash: hotlease_wire::ids::CodeHash([0; 32]),
            size_bytes: 1,
        },
    ] {
        let mut session = RawSession::connect(Path::new(&grant.session_socket)).unwrap();
        match session.ask(&request, &[]) {
            Ok(SessionReply::Refused(_)) | Err(NoAnswer::Closed) => {}
            other => panic!("{request:?} before attach: {other:?}"),
        }
    }
    RawSession::attached(&grant).release();
}

#[test]
fn other_protocol_version_is_refused_by_name() {
    let platform = Platform::start();
    let grant = platform.manager().lease(1, LONG).unwrap();
    for version in [0, PROTOCOL_VERSION + 1, u32::MAX] {
        let mut session = RawSession::connect(Path::new(&grant.session_socket)).unwrap();
        let request = SessionRequest::Attach {
            version,
            token: grant.token.clone(),
        };
        let expected = Rejection::Version {
            theirs: version,
            ours: PROTOCOL_VERSION,
        };
        match session.ask(&request, &[]) {
            Ok(SessionReply::Refused(refusal)) => assert_eq!(refusal, expected),
            other => panic!("version {version}: {other:?}"),
        }
    }
    RawSession::attached(&grant).release();
}
