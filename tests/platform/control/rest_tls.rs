//! The REST interface over TLS: strangers learn only that the manager is alive; members see their own data.

use hotlease_net::CertificateRole;
use hotlease_net::authority::IdentityRequest;
use hotlease_tests::http::{Answer, answer};
use hotlease_tests::platform::{LIMIT, private_directory, program};
use hotlease_tests::site::Authority;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A manager without agents that serves REST on a port.
struct Manager {
    child: Child,
    address: SocketAddr,
    authority: Authority,
    _directory: tempfile::TempDir,
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Manager {
    fn start() -> Self {
        let authority = Authority::new();
        let identity = authority.issue(&IdentityRequest {
            hosts: vec!["127.0.0.1".into()],
            ..IdentityRequest::new(CertificateRole::Manager)
        });
        let directory = private_directory();
        let mut child = Command::new(program("hotlease"))
            .args([
                "--json",
                "manager",
                "--in-memory",
                "--rest",
                "127.0.0.1:0",
                "--identity",
            ])
            .arg(identity)
            .env("HOTLEASE_RUNTIME_DIR", directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("hotlease starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let serving: serde_json::Value = serde_json::from_str(&line).expect("it serves");
        Self {
            address: serving["rest"]
                .as_str()
                .expect("an address")
                .parse()
                .expect("an address"),
            child,
            authority,
            _directory: directory,
        }
    }

    /// Connects; `identity` is a folder with a certificate.
    fn connect(&self, identity: Option<&Path>) -> Tls {
        let mut roots = RootCertStore::empty();
        let ca = self.authority.directory().join("ca.pem");
        roots
            .add(CertificateDer::from_pem_file(ca).expect("an authority"))
            .expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots);
        let config = match identity {
            None => config.with_no_client_auth(),
            Some(dir) => {
                let certificate = CertificateDer::from_pem_file(dir.join("cert.pem")).expect("a certificate");
                let key = PrivateKeyDer::from_pem_file(dir.join("key.pem")).expect("a key");
                config
                    .with_client_auth_cert(vec![certificate], key)
                    .expect("a certificate")
            }
        };
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        let tls = ClientConnection::new(Arc::new(config), name).expect("a client");
        let tcp = TcpStream::connect(self.address).expect("the port");
        tcp.set_read_timeout(Some(LIMIT)).expect("a limit");
        StreamOwned::new(tls, tcp)
    }
}

fn get(stream: &mut Tls, path: &str, headers: &str) -> io::Result<Answer> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: m\r\n{headers}\r\n")?;
    answer(stream, false)
}

#[test]
fn strangers_learn_that_it_lives_and_members_what_is_theirs() {
    let manager = Manager::start();
    let mut stranger = manager.connect(None);
    let alive = get(&mut stranger, "/healthz", "").expect("an answer");
    assert_eq!((alive.status, alive.body.as_str()), (200, r#"{"status":"alive"}"#));
    let mut bodies = Vec::new();
    for path in ["/v1/info", "/readyz", "/metrics", "/v1/nothing", "/v1/openapi.json"] {
        for headers in ["", "Authorization: Bearer hlk_0_0\r\n"] {
            let mut stranger = manager.connect(None);
            let refused = get(&mut stranger, path, headers).expect("an answer");
            assert_eq!(refused.status, 401, "{path} {headers}: {refused:?}");
            assert!(refused.header("www-authenticate").starts_with("Bearer"), "{refused:?}");
            let mut rest = Vec::new();
            let closed = stranger.read_to_end(&mut rest);
            assert!(closed.is_ok() && rest.is_empty(), "the connection stays: {closed:?}");
            let mut body = refused.json();
            body["trace"].take();
            bodies.push((headers, body));
        }
    }
    for (headers, body) in &bodies {
        let first = bodies.iter().find(|(known, _)| known == headers);
        assert_eq!(
            Some(body),
            first.map(|(_, body)| body),
            "a path makes a difference to a stranger"
        );
    }

    let alice = manager.authority.client("alice");
    let mut member = manager.connect(Some(&alice));
    assert_eq!(get(&mut member, "/v1/leases", "").expect("an answer").status, 200);
    assert_eq!(get(&mut member, "/metrics", "").expect("an answer").status, 403);
    assert_eq!(get(&mut member, "/v1/tenants", "").expect("an answer").status, 403);
    // A wrong credential is refused even if the certificate would be enough.
    let wrong = get(&mut member, "/v1/leases", "Authorization: Bearer hlk_0_0\r\n");
    assert_eq!(wrong.expect("an answer").status, 401);
}

#[test]
fn a_certificate_of_another_site_and_a_connection_without_tls_are_closed() {
    let manager = Manager::start();
    let elsewhere = Authority::new();
    let mut mallory = manager.connect(Some(&elsewhere.client("mallory")));
    let refused = get(&mut mallory, "/v1/info", "");
    assert!(refused.is_err(), "another site's certificate was taken: {refused:?}");
    let mut plain = TcpStream::connect(manager.address).expect("the port");
    plain.set_read_timeout(Some(LIMIT)).expect("a limit");
    let _ = plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: m\r\n\r\n");
    let answered = answer(&mut plain, false);
    assert!(answered.is_err(), "HTTP without TLS was answered: {answered:?}");
    assert_eq!(
        get(&mut manager.connect(None), "/healthz", "")
            .expect("an answer")
            .status,
        200
    );
}

#[test]
fn a_stranger_that_only_asks_whether_it_lives_does_not_keep_its_place() {
    let manager = Manager::start();
    let begun = Instant::now();
    let mut stranger = manager.connect(None);
    while get(&mut stranger, "/healthz", "").is_ok() {
        assert!(begun.elapsed() < LIMIT, "a stranger stays for {:?}", begun.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
}
