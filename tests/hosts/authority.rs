//! Certificates: what an authority issues, which parts of it are refused, and that no bytes break the parser.

use hotlease_net::authority::{IdentityRequest, init, issue};
use hotlease_net::peer::parse_certificate;
use hotlease_net::{CertificateRole, Identity, IdentityError};
use hotlease_tests::hosts::Host;
use hotlease_tests::platform::program;
use hotlease_tests::site::Authority;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

#[test]
fn folder_whose_key_others_can_read_is_refused() {
    let authority = Authority::new();
    let identity = authority.client("alice");
    let key = identity.join("key.pem");
    assert_eq!(fs::metadata(&key).expect("a key").permissions().mode() & 0o777, 0o600);
    Identity::load(&identity).expect("as issued");
    for path in [&key, &identity] {
        let before = fs::metadata(path).expect("there").permissions();
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("opened");
        let error = Identity::load(&identity).expect_err("others can read it");
        assert!(matches!(error, IdentityError::Unsafe { .. }), "{error}");
        fs::set_permissions(path, before).expect("closed again");
    }
    // The key of another certificate, and files that are no PEM.
    fs::copy(authority.client("bob").join("key.pem"), &key).expect("copied");
    assert!(Identity::load(&identity).is_err(), "the key is not the certificate's");
    fs::write(&key, "nothing").expect("written");
    assert!(matches!(
        Identity::load(&identity),
        Err(IdentityError::Malformed { .. })
    ));
}

#[test]
fn no_certificate_is_issued_that_could_be_mistaken() {
    let authority = Authority::new();
    let out = authority.directory().join("out");
    let client = |tenant: &str| IdentityRequest {
        tenant: Some(tenant.into()),
        ..IdentityRequest::new(CertificateRole::Client)
    };
    let refused = [
        IdentityRequest::new(CertificateRole::Client),
        IdentityRequest::new(CertificateRole::Agent),
        IdentityRequest::new(CertificateRole::Manager),
        client("uid:0"),
        client("alice/../bob"),
        client(""),
        IdentityRequest {
            days: 0,
            ..client("alice")
        },
        IdentityRequest {
            hosts: vec!["m".into()],
            tenant: Some("alice".into()),
            ..IdentityRequest::new(CertificateRole::Manager)
        },
    ];
    for request in refused {
        assert!(
            issue(&authority.directory(), &request, &out).is_err(),
            "issued {request:?}"
        );
        assert!(!out.exists(), "something was written for {request:?}");
    }
    assert!(init(&authority.directory()).is_err(), "an authority was overwritten");
    issue(&authority.directory(), &client("alice"), &out).expect("well-formed");
    assert!(
        issue(&authority.directory(), &client("bob"), &out).is_err(),
        "overwritten"
    );
}

#[test]
fn commands_make_an_authority_issue_and_show() {
    let host = Host::here();
    let path = |name: &str| host.directory().join(name).display().to_string();
    let hotlease = |arguments: &[&str]| {
        let mut command = host.command(&program("hotlease"));
        let output = command
            .arg("--json")
            .arg("identity")
            .args(arguments)
            .output()
            .expect("it runs");
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let shown: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        (output.status.success(), shown, words)
    };
    let (authority, out) = (path("authority"), path("node"));
    let issue = ["issue", "--dir", &authority, "--role", "agent", "--out", &out];
    let (done, _, words) = hotlease(&[&issue[..], &["--host", "node1"]].concat());
    assert!(
        !done && words.contains("hotlease identity init"),
        "without an authority: {words}"
    );
    let (done, _, words) = hotlease(&["init", "--dir", &authority]);
    assert!(done, "{words}");
    let mode = fs::metadata(&authority).expect("made").permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "others can enter the authority's folder");
    let (done, _, words) = hotlease(&issue);
    assert!(
        !done && words.contains("--host"),
        "an agent that no host can reach: {words}"
    );
    let hosts = [
        "--host", "node1", "--host", "fd00::1", "--tenant", "alice", "--days", "2",
    ];
    let (done, issued, words) = hotlease(&[&issue[..], &hosts].concat());
    assert!(done, "{words}");
    let (done, shown, words) = hotlease(&["show", "--identity", &out]);
    assert!(done, "{words}");
    assert_eq!(shown, issued, "what was issued is what is there");
    assert_eq!(shown["role"], "agent");
    assert_eq!(shown["tenant"], "alice");
    assert_eq!(shown["hosts"], serde_json::json!(["node1", "fd00::1"]));
    assert_eq!(shown["valid"], true);
    let lasts = |field: &str| shown[field].as_i64().expect("a time");
    let days = (lasts("not_after") - lasts("not_before")) as f64 / 86400.0;
    assert!((2.0..2.1).contains(&days), "it lasts {days} days");
}

#[test]
fn certificates_of_any_bytes_are_read_without_harm() {
    let authority = Authority::new();
    let pem = fs::read_to_string(authority.client("alice").join("cert.pem")).expect("a certificate");
    let text: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let der = base64(&text);
    assert!(parse_certificate(&der).is_ok(), "as issued");
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..100_000 {
        let mut bytes = der.clone();
        for _ in 0..random.random_range(1..8) {
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.next_u32() as u8;
        }
        bytes.truncate(random.random_range(0..=bytes.len()));
        // Any answer will do, except a peer without a name.
        if let Ok(described) = parse_certificate(&bytes) {
            assert!(!described.peer.name.is_empty());
        }
    }
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for byte in text.bytes().take_while(|byte| *byte != b'=') {
        bits = bits << 6 | u32::from(digit(byte));
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
