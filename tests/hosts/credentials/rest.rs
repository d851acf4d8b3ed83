//! Clients without a certificate at the REST interface.

use super::Issuer;
use crate::munged::Munged;
use hotlease_net::CertificateRole;
use hotlease_tests::hosts::Host;
use hotlease_tests::http;
use hotlease_tests::platform::{LIMIT, program};
use hotlease_tests::site::{Authority, Daemon};
use rustls::crypto::ring as provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

/// A connection to a REST interface without a certificate.
fn rest(daemon: &Daemon, authority: &Authority) -> StreamOwned<ClientConnection, TcpStream> {
    let ca = CertificateDer::from_pem_file(authority.directory().join("ca.pem")).expect("an authority");
    let mut roots = RootCertStore::empty();
    roots.add(ca).expect("an authority");
    let config = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let port = daemon.serving["rest"].as_str().expect("it listens");
    let port: SocketAddr = port.parse().expect("an address");
    let connection = ClientConnection::new(Arc::new(config), port.ip().into()).expect("a connection");
    let tcp = TcpStream::connect(port).expect("it listens");
    tcp.set_read_timeout(Some(LIMIT)).expect("a limit");
    StreamOwned::new(connection, tcp)
}

fn asked(
    stream: &mut StreamOwned<ClientConnection, TcpStream>,
    line: &str,
    authorization: Option<&str>,
) -> http::Answer {
    let header = authorization.map(|words| format!("Authorization: {words}\r\n"));
    let request = format!(
        "{line} HTTP/1.1\r\nHost: manager\r\nContent-Length: 0\r\n{}\r\n",
        header.unwrap_or_default()
    );
    stream.write_all(request.as_bytes()).expect("sent");
    http::answer(stream, false).expect("an answer")
}

#[test]
fn munge_and_tokens_open_a_manager_that_has_a_rest_interface_only() {
    let Some(munged) = Munged::start() else { return };
    let socket = munged.socket().display().to_string();
    let host = Host::here();
    let authority = Authority::new();
    let identity = authority.daemon(CertificateRole::Manager, &host).display().to_string();
    let issuer = Issuer::new(&authority.directory());
    let issuers = issuer.file.display().to_string();
    let rest_at = SocketAddr::new(host.address(), 0).to_string();
    let mut arguments = vec![
        "manager",
        "--rest",
        &rest_at,
        "--identity",
        &identity,
        "--issuers",
        &issuers,
    ];
    arguments.extend(["--munge", "--munge-socket", &socket]);
    let daemon = Daemon::start(&host, &arguments);
    let member = format!("uid:{}", nix::unistd::geteuid());
    let tenant = [
        "admin",
        "tenant",
        "add",
        "chem",
        "--member",
        &member,
        "--member",
        "jwt:alice@example.org",
    ];
    let added = host
        .command(&program("hotlease"))
        .args(tenant)
        .output()
        .expect("hotlease runs");
    assert!(added.status.success(), "{added:?}");

    let mut alice = rest(&daemon, &authority);
    let token = format!("Bearer {}", issuer.token(300));
    assert_eq!(asked(&mut alice, "GET /v1/leases", Some(&token)).status, 200);

    let mut stream = rest(&daemon, &authority);
    let challenge = asked(&mut stream, "GET /v1/challenge", None);
    assert_eq!(challenge.status, 200, "{challenge:?}");
    let challenge = challenge.json();
    let credential = munged.credential(challenge["payload"].as_str().expect("text"));
    let credential = format!("MUNGE {credential}");
    // A credential for another connection's nonce is refused, and the nonce stays good.
    let mut other = rest(&daemon, &authority);
    assert_eq!(asked(&mut other, "POST /v1/session", Some(&credential)).status, 401);
    let mut other = rest(&daemon, &authority);
    asked(&mut other, "GET /v1/challenge", None);
    assert_eq!(asked(&mut other, "POST /v1/session", Some(&credential)).status, 401);
    // MUNGE has decoded that credential, so no connection can use it again on this host; the next credential is good.
    asked(&mut stream, "GET /v1/challenge", None);
    let challenge = asked(&mut stream, "GET /v1/challenge", None).json();
    let credential = munged.credential(challenge["payload"].as_str().expect("text"));
    let credential = format!("MUNGE {credential}");
    let session = asked(&mut stream, "POST /v1/session", Some(&credential));
    assert_eq!(session.status, 200, "{session:?}");
    let session = session.json();
    assert_eq!((&session["tenant"], &session["role"]), (&"chem".into(), &"user".into()));
    let bearer = format!("Bearer {}", session["token"].as_str().expect("text"));
    for _ in 0..2 {
        assert_eq!(asked(&mut stream, "GET /v1/leases", Some(&bearer)).status, 200);
    }
    assert_eq!(asked(&mut stream, "GET /v1/tenants", Some(&bearer)).status, 403);
    let mut other = rest(&daemon, &authority);
    assert_eq!(
        asked(&mut other, "GET /v1/leases", Some(&bearer)).status,
        401,
        "a session of another connection"
    );
    assert_eq!(
        asked(&mut stream, "GET /v1/leases", Some(&credential)).status,
        401,
        "a credential that was used"
    );
}
