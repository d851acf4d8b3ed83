//! Limits: a value over a limit is refused before any other use of it.

use hotlease_wire::control::WorkerAnswer;
use hotlease_wire::limits::{MESSAGE_BYTES_MAX, TENANT_BYTES_MAX};
use hotlease_wire::session::SessionReply;
use hotlease_wire::token::{CLAIMS_VERSION, Claims, Rights, TOKEN_BYTES_MAX, TokenKey};
use hotlease_wire::{DecodeError, decode, encode};

#[test]
fn message_over_the_limit_is_refused_and_one_at_it_is_not() {
    // One byte for the variant, three for the length.
    let longest = WorkerAnswer::Failed {
        why: "x".repeat(MESSAGE_BYTES_MAX - 4),
    };
    let mut bytes = encode(&longest);
    assert_eq!(bytes.len(), MESSAGE_BYTES_MAX);
    assert_eq!(decode(&bytes), Ok(longest));
    bytes.push(0);
    assert_eq!(
        decode::<WorkerAnswer>(&bytes),
        Err(DecodeError::TooLong { size: bytes.len() })
    );
}

#[test]
fn trailing_bytes_are_refused() {
    let mut bytes = encode(&WorkerAnswer::Done);
    bytes.push(0);
    assert!(decode::<WorkerAnswer>(&bytes).is_err());
}

#[test]
fn announced_lengths_that_are_not_there_are_refused() {
    // `Attached` with a list of 2^63 workers, and none of them present.
    let mut bytes = vec![0];
    bytes.extend([1; 8]); // lease
    bytes.push(100); // ttl
    bytes.extend([0x80; 9]);
    bytes.push(1);
    assert!(decode::<SessionReply>(&bytes).is_err());
}

#[test]
fn token_over_its_limits_is_refused_though_its_code_is_right() {
    let key = TokenKey::new([1; 32]);
    let claims = |tenant: usize, version| Claims {
        version,
        lease: hotlease_wire::ids::LeaseId([1; 8]),
        tenant: "t".repeat(tenant),
        agent: hotlease_wire::ids::AgentId([2; 8]),
        boot: hotlease_wire::ids::BootId([3; 8]),
        epoch: hotlease_wire::ids::Epoch(u32::MAX),
        attach_until_ms: u64::MAX,
        rights: Rights::HOLDER,
        delegation: u32::MAX,
    };
    let fits = key.mint(&claims(TENANT_BYTES_MAX, CLAIMS_VERSION));
    assert!(fits.len() <= TOKEN_BYTES_MAX);
    assert!(key.open(&fits).is_ok());
    for (tenant, version) in [
        (TENANT_BYTES_MAX + 1, CLAIMS_VERSION),
        (TOKEN_BYTES_MAX, CLAIMS_VERSION),
        (8, CLAIMS_VERSION + 1),
        (8, 0),
    ] {
        let token = key.mint(&claims(tenant, version));
        assert!(key.open(&token).is_err(), "tenant of {tenant}, version {version}");
    }
}
