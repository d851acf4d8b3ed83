//! Clients without a certificate: what they show to the manager, and to agents, and what is refused.

use crate::munged::Munged;
use crate::remote::LONG;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hotlease_net::tunnel::{session, silence_of};
use hotlease_net::{Credential, NetError, Proof, Role, Site as NetSite, SiteChannel, Trust, Wanted};
use hotlease_tests::hosts::{Host, Hosts};
use hotlease_tests::http;
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, program};
use hotlease_tests::session::RawSession;
use hotlease_tests::site::{Authority, Daemon, ManagerDaemon, agent};
use hotlease_tests::wait::until_true;
use hotlease_wire::Refusal;
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{AcquireRequest, Grant, InfoRequest, ListRequest};
use hotlease_wire::session::{SessionReply, SessionRequest};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::crypto::ring as provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::{Builder, Runtime};

const ISSUER: &str = "https://login.example.org/";

/// Of tokens, and the file about it.
struct Issuer {
    key: Ed25519KeyPair,
    file: PathBuf,
}

impl Issuer {
    fn new(files: &Path) -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        let key = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).expect("a key");
        let keys = serde_json::json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "one", "alg": "EdDSA",
            "x": BASE64.encode(key.public_key().as_ref())}]});
        fs::write(files.join("jwks.json"), keys.to_string()).expect("a file");
        let file = files.join("issuers.toml");
        let text =
            format!("[[issuer]]\nissuer = \"{ISSUER}\"\naudience = \"hotlease\"\nkeys = \"jwks.json\"\n");
        fs::write(&file, text).expect("a file");
        Self { key, file }
    }

    /// For alice.
    fn token(&self, lasts_s: i64) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let claims = serde_json::json!({"iss": ISSUER, "aud": "hotlease", "sub": "alice@example.org",
            "exp": now.as_secs() as i64 + lasts_s});
        let header = serde_json::json!({"alg": "EdDSA", "kid": "one"});
        let body = format!(
            "{}.{}",
            BASE64.encode(header.to_string()),
            BASE64.encode(claims.to_string())
        );
        let signature = BASE64.encode(self.key.sign(body.as_bytes()));
        format!("{body}.{signature}")
    }
}

/// A manager and an agent that let in clients without a certificate, and such a client's host.
struct Doors {
    runtime: Runtime,
    agent: Daemon,
    manager: ManagerDaemon,
    /// Its folder is where the files are.
    _authority: Authority,
    issuer: Issuer,
    files: PathBuf,
    hosts: Option<Hosts>,
    here: Host,
}

impl Doors {
    /// On this machine.
    fn new(of_manager: &[&str], of_agent: &[&str]) -> Self {
        Self::on(None, of_manager, of_agent)
    }

    fn on(hosts: Option<Hosts>, of_manager: &[&str], of_agent: &[&str]) -> Self {
        let here = Host::here();
        let authority = Authority::new();
        let files = authority.directory();
        let issuer = Issuer::new(&files);
        let issuers = issuer.file.display().to_string();
        let mut arguments = vec!["--without-certificate", "--issuers", &issuers];
        arguments.extend(of_manager);
        let (m, a) = match &hosts {
            Some(hosts) => (hosts.host("m"), hosts.host("a")),
            None => (&here, &here),
        };
        let manager = ManagerDaemon::start_with(m, &authority, m.address(), &arguments);
        let agent = agent(a, &authority, &manager.address, &["chem"], of_agent);
        let runtime = (match &hosts {
            Some(hosts) => hosts.host("c"),
            None => &here,
        })
        .run(|| Builder::new_multi_thread().worker_threads(1).enable_all().build());
        let doors = Self {
            runtime: runtime.expect("a runtime"),
            agent,
            manager,
            _authority: authority,
            issuer,
            files,
            hosts,
            here,
        };
        doors.operator(&[
            "admin",
            "tenant",
            "add",
            "chem",
            "--member",
            "jwt:alice@example.org",
        ]);
        until_true("the agent registers", LIMIT, || {
            doors.operator(&["agents", "--json"]).contains("serving")
        });
        doors
    }

    /// What an operator does on the manager's machine.
    fn operator(&self, arguments: &[&str]) -> String {
        let host = self.hosts.as_ref().map_or(&self.here, |hosts| hosts.host("m"));
        let output = host.command(&program("hotlease")).args(arguments).output();
        let output = output.expect("hotlease runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The file of a new key.
    fn key(&self, name: &str, further: &[&str]) -> PathBuf {
        let path = self.files.join(name);
        let out = path.display().to_string();
        let mut arguments = vec!["admin", "key", "add", "--tenant", "chem", "--out", &out];
        arguments.extend(further);
        self.operator(&arguments);
        path
    }

    /// A token for alice, in a file.
    fn token(&self, name: &str, lasts_s: i64) -> PathBuf {
        // Renamed into its place, as whoever rotates tokens does.
        let (path, new) = (self.files.join(name), self.files.join("new-token"));
        fs::write(&new, format!("{}\n", self.issuer.token(lasts_s))).expect("a file");
        fs::rename(new, &path).expect("a file");
        path
    }

    /// `hotlease` on the client's host, with a variable that says who asks: its status and what it said.
    fn hotlease(&self, (name, value): (&str, &Path), arguments: &[&str]) -> (Option<i32>, String) {
        let host = self.hosts.as_ref().map_or(&self.here, |hosts| hosts.host("c"));
        let mut command = host.command(&program("hotlease"));
        let output = command
            .args(arguments)
            .env("HOTLEASE_MANAGER", self.manager.address.to_string())
            .env("HOTLEASE_CA_FILE", self.files.join("ca.pem"))
            .env(name, value)
            .env("HOTLEASE_LOG", "debug")
            .output()
            .expect("hotlease runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    fn trust(&self) -> Trust {
        Trust::load(&self.files.join("ca.pem")).expect("an authority")
    }

    /// Of whoever comes with this.
    fn channel(&self, credential: &Credential) -> SiteChannel {
        let address = self.manager.address.to_string();
        let authority = self.files.join("ca.pem");
        let site = NetSite::find(Wanted {
            manager: Some(&address),
            credential: Some(credential),
            authority: Some(&authority),
            ..Wanted::default()
        });
        let site = site.expect("a site").expect("named");
        let _within = self.runtime.enter();
        site.channel()
    }

    fn acquire(&self, channel: &SiteChannel, ttl: Duration) -> Result<Grant, Refusal> {
        let request = AcquireRequest {
            workers: 1,
            slots_per_worker: 1,
            ttl_ms: ttl.as_millis() as u64,
            ..AcquireRequest::default()
        };
        let mut manager = ManagerClient::new(channel.clone());
        let granted = self.runtime.block_on(manager.acquire(request));
        granted
            .map(tonic::Response::into_inner)
            .map_err(hotlease_net::grpc::refusal)
    }

    /// A session over TLS of somebody who has nothing but this token.
    fn session(&self, grant: &Grant, token: &[u8]) -> Result<RawSession, NetError> {
        let proof = Proof::Credential(Credential::KeyFile("not needed".into()), self.trust());
        let endpoint = grant.endpoint.parse()?;
        let silence = silence_of(Duration::from_millis(grant.ttl_ms));
        let token = token.to_vec();
        let begun = self
            .runtime
            .block_on(async move { session(endpoint, proof, &token, silence).await });
        Ok(RawSession::over(begun?.socket))
    }

    fn attached(&self, grant: &Grant, token: &[u8]) -> RawSession {
        let begun = self.session(grant, token);
        let mut session = begun.unwrap_or_else(|error| panic!("no session: {error}"));
        match session.attach(token) {
            Ok(SessionReply::Attached { .. }) => session,
            other => panic!("not attached: {other:?}"),
        }
    }

    /// What the agent says to somebody with this token.
    fn refused(&self, grant: &Grant, token: &[u8]) -> Refusal {
        match self.session(grant, token).map(drop) {
            Err(NetError::Refused(refusal)) => refusal,
            other => panic!("not refused: {other:?}"),
        }
    }
}

const OPEN: [&str; 1] = ["--without-certificate"];

#[test]
fn functions_are_called_on_another_host_with_a_key_from_a_file() {
    let Some(hosts) = Hosts::new(&["m", "a", "c"]) else {
        return;
    };
    let doors = Doors::on(Some(hosts), &[], &OPEN);
    let key = doors.key("key", &[]);
    let hosts = doors.hosts.as_ref().expect("made");
    for (variable, path) in [
        ("HOTLEASE_KEY_FILE", &key),
        ("HOTLEASE_TOKEN_FILE", &doors.token("token", 300)),
    ] {
        let caller = Path::new(env!("CARGO_BIN_EXE_hotlease-test-caller"));
        let output = hosts
            .host("c")
            .command(caller)
            .env("HOTLEASE_MANAGER", doors.manager.address.to_string())
            .env("HOTLEASE_CA_FILE", doors.files.join("ca.pem"))
            .env("HOTLEASE_TRANSPORT", "ofi")
            .env(variable, path)
            .arg(library("behaved"))
            .arg("everything")
            .output()
            .expect("the caller runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.ends_with("ok\n"),
            "{variable}: {said}{errors}"
        );
        let free = || doors.operator(&["agents", "--json"]).contains("\"free_cores\":1");
        until_true("the core is free", LIMIT, free);
    }
    // The bill is the key's tenant's.
    until_true("the bill is the key's tenant's", LIMIT, || {
        let (status, bill) = doors.hotlease(("HOTLEASE_KEY_FILE", &key), &["bill", "--json"]);
        assert_eq!(status, Some(0), "{bill}");
        bill.contains("chem")
    });
}

#[test]
fn a_key_file_makes_commands_its_tenants_and_no_secret_is_shown() {
    let doors = Doors::new(&[], &OPEN);
    let user = doors.key("user", &[]);
    let operator = doors.key("operator", &["--role", "operator"]);
    let secret = fs::read_to_string(&user).expect("a key");
    let echo = library("echo").display().to_string();
    let as_user = |arguments: &[&str]| doors.hotlease(("HOTLEASE_KEY_FILE", &user), arguments);
    for arguments in [
        &["agents"][..],
        &["leases"],
        &["bill"],
        &["doctor"],
        &["run", &echo, "echo"],
    ] {
        let (status, text) = as_user(arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {text}");
        assert!(!text.contains(secret.trim()), "{arguments:?} shows the key");
    }
    let (status, text) = as_user(&["admin", "tenant", "list"]);
    assert!(
        status == Some(1) && text.contains("not permitted"),
        "{status:?}: {text}"
    );
    for arguments in [
        &["admin", "tenant", "list"][..],
        &["admin", "key", "list"],
        &["admin", "node", "list"],
    ] {
        let (status, text) = doors.hotlease(("HOTLEASE_KEY_FILE", &operator), arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {text}");
    }
    for log in [doors.manager.daemon.log(), doors.agent.log()] {
        assert!(!log.contains(secret.trim()), "a daemon logs the key");
    }
    fs::set_permissions(&user, fs::Permissions::from_mode(0o644)).expect("ours");
    let (status, text) = as_user(&["agents"]);
    assert!(
        status != Some(0) && text.contains("others can access it"),
        "a key that others can read: {status:?}: {text}"
    );
    // Two answers are none.
    let other = doors.key("other", &[]).display().to_string();
    let (_, text) = doors.hotlease(("HOTLEASE_IDENTITY", &user), &["agents", "--key-file", &other]);
    assert!(
        text.contains("serving"),
        "what was said goes before the environment: {text}"
    );
    let (status, _) = as_user(&["agents", "--key-file", &other, "--token-file", &other]);
    assert_eq!(status, Some(2), "a key and a token");
    // A manager of another authority is not told.
    let other_site = Authority::new();
    let foreign = other_site.directory().join("ca.pem").display().to_string();
    fs::set_permissions(&user, fs::Permissions::from_mode(0o600)).expect("ours");
    let (status, text) = as_user(&["agents", "--ca-file", &foreign]);
    assert!(
        status.is_some_and(|status| status != 0) && text.contains("another site's authority"),
        "{status:?}: {text}"
    );
}

#[test]
fn a_token_that_expires_is_replaced_by_what_its_file_says_then() {
    let doors = Doors::new(&[], &OPEN);
    let path = doors.token("token", -300);
    let with = |path: &Path| doors.hotlease(("HOTLEASE_TOKEN_FILE", path), &["agents"]);
    let (status, text) = with(&path);
    assert!(
        status != Some(0) && text.contains("expired"),
        "{status:?}: {text}"
    );
    doors.token("token", 300);
    let (status, text) = with(&path);
    assert_eq!(status, Some(0), "{text}");
    // A program that goes on: its session ends, when keys are replaced twice, and it signs in again with the file.
    let channel = doors.channel(&Credential::TokenFile(path));
    let info = || {
        let mut manager = ManagerClient::new(channel.clone());
        let asked = doors.runtime.block_on(manager.get_info(InfoRequest {}));
        asked.map(|_| ()).map_err(hotlease_net::grpc::refusal)
    };
    info().expect("signed in");
    for _ in 0..2 {
        doors.operator(&["admin", "key", "rotate"]);
    }
    info().expect("signed in again");
    doors.token("token", -300);
    info().expect("a session goes on without its token");
    for _ in 0..2 {
        doors.operator(&["admin", "key", "rotate"]);
    }
    let refusal = info().expect_err("the file's token has expired");
    assert!(matches!(refusal, Refusal::NotAuthenticated { .. }), "{refusal}");
    doors.token("token", 300);
    info().expect("the file's token is good again");
}

#[test]
fn a_user_of_the_cluster_comes_by_munge() {
    let Some(munged) = Munged::start() else { return };
    let socket = munged.socket().display().to_string();
    let doors = Doors::new(&["--munge", "--munge-socket", &socket], &OPEN);
    let member = format!("uid:{}", nix::unistd::geteuid());
    let run = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.extend(["--munge", "--munge-socket", &socket]);
        doors.hotlease(("HOTLEASE_MUNGE", Path::new("0")), &all)
    };
    let (status, text) = run(&["agents"]);
    assert!(
        status == Some(1) && text.contains("belongs to no tenant"),
        "{status:?}: {text}"
    );
    doors.operator(&["admin", "tenant", "set", "chem", "--member", &member]);
    let echo = library("echo").display().to_string();
    for arguments in [&["agents"][..], &["run", &echo, "echo"], &["bill"]] {
        let (status, text) = run(arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {text}");
    }
    let Some(foreign) = Munged::start() else { return };
    let foreign = foreign.socket().display().to_string();
    let (status, text) = doors.hotlease(
        ("HOTLEASE_MUNGE", Path::new("1")),
        &["agents", "--munge", "--munge-socket", &foreign],
    );
    assert!(
        status == Some(1) && text.contains("not authenticated"),
        "{status:?}: {text}"
    );
}

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
    let identity = authority.daemon(Role::Manager, &host).display().to_string();
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
    // Of another connection, it is nothing, and its nonce stays good.
    let mut other = rest(&daemon, &authority);
    assert_eq!(
        asked(&mut other, "POST /v1/session", Some(&credential)).status,
        401
    );
    let mut other = rest(&daemon, &authority);
    asked(&mut other, "GET /v1/challenge", None);
    assert_eq!(
        asked(&mut other, "POST /v1/session", Some(&credential)).status,
        401
    );
    // That one was decoded, and so is spent on this host, whoever showed it; the next is good.
    asked(&mut stream, "GET /v1/challenge", None);
    let challenge = asked(&mut stream, "GET /v1/challenge", None).json();
    let credential = munged.credential(challenge["payload"].as_str().expect("text"));
    let credential = format!("MUNGE {credential}");
    let session = asked(&mut stream, "POST /v1/session", Some(&credential));
    assert_eq!(session.status, 200, "{session:?}");
    let session = session.json();
    assert_eq!(
        (&session["tenant"], &session["role"]),
        (&"chem".into(), &"user".into())
    );
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

#[test]
fn an_agent_takes_nobody_without_a_certificate_unless_it_was_told_to() {
    let doors = Doors::new(&[], &[]);
    let channel = doors.channel(&Credential::KeyFile(doors.key("key", &[])));
    let grant = doors.acquire(&channel, LONG).expect("a lease");
    let error = doors
        .session(&grant, &grant.token)
        .map(drop)
        .expect_err("refused");
    assert!(
        error.to_string().contains("nobody without a certificate"),
        "{error}"
    );
}

#[test]
fn a_token_opens_its_own_living_lease_on_its_own_agent_and_nothing_else() {
    let doors = Doors::new(&[], &OPEN);
    let channel = doors.channel(&Credential::KeyFile(doors.key("key", &[])));
    let grant = doors.acquire(&channel, LONG).expect("a lease");
    // Another agent's, from the same manager, is of another key.
    let elsewhere = Doors::new(&[], &OPEN);
    let its_channel = elsewhere.channel(&Credential::KeyFile(elsewhere.key("key", &[])));
    let other = elsewhere.acquire(&its_channel, LONG).expect("a lease");
    assert_eq!(
        doors.refused(&grant, &other.token),
        Refusal::BadToken,
        "another agent's token"
    );
    for cut in [0, 1, grant.token.len() / 2, grant.token.len() - 1] {
        assert_eq!(
            doors.refused(&grant, &grant.token[..cut]),
            Refusal::BadToken,
            "cut to {cut}"
        );
    }
    for bit in [40, 8 * 20, 8 * grant.token.len() - 1] {
        let mut forged = grant.token.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(doors.refused(&grant, &forged), Refusal::BadToken, "bit {bit}");
    }
    let mut session = doors.attached(&grant, &grant.token);
    session
        .load(&fs::read(library("echo")).expect("the library"))
        .expect("loaded");
    let (_connection, epoch) = session.worker(0).expect("a connection to the worker");
    assert_eq!(epoch.0, grant.epoch);
    session.release();
    let refusal = doors.refused(&grant, &grant.token);
    assert!(
        matches!(refusal, Refusal::LeaseEnded(_) | Refusal::UnknownLease),
        "replayed after the release: {refusal}"
    );
    let brief = Duration::from_millis(300);
    let expired = doors.acquire(&channel, brief).expect("a lease");
    std::thread::sleep(brief * 2);
    let refusal = doors.refused(&expired, &expired.token);
    assert!(
        matches!(refusal, Refusal::LeaseEnded(_) | Refusal::UnknownLease),
        "of a lease that expired: {refusal}"
    );
}

#[test]
fn a_key_that_was_replaced_twice_opens_nothing_and_renewing_gets_a_token_of_the_present_one() {
    let doors = Doors::new(&[], &OPEN);
    let channel = doors.channel(&Credential::KeyFile(doors.key("key", &[])));
    let grant = doors.acquire(&channel, LONG).expect("a lease");
    let mut session = doors.attached(&grant, &grant.token);
    let rotate = || doors.operator(&["admin", "key", "rotate"]);
    let told = rotate();
    assert!(told.contains("1 agents"), "{told}");
    drop(doors.attached(&grant, &grant.token));
    rotate();
    let refusal = doors.refused(&grant, &grant.token);
    assert!(refusal.to_string().contains("replaced twice"), "{refusal}");
    // Who was let in goes on, and gets what opens now.
    let token = match session.ask(&SessionRequest::Renew, &[]) {
        Ok(SessionReply::Renewed { token, .. }) => token,
        other => panic!("not renewed: {other:?}"),
    };
    drop(doors.attached(&grant, &token));
    session.release();
    let mut manager = ManagerClient::new(channel);
    let leases = doors
        .runtime
        .block_on(manager.list_leases(ListRequest::default()));
    assert!(
        leases.is_ok(),
        "the manager's session was replaced as well: {leases:?}"
    );
}

#[test]
fn a_revoked_key_ends_the_session_that_it_opened() {
    let doors = Doors::new(&[], &OPEN);
    let path = doors.key("key", &[]);
    let channel = doors.channel(&Credential::KeyFile(path.clone()));
    let info = || {
        let mut manager = ManagerClient::new(channel.clone());
        let asked = doors.runtime.block_on(manager.get_info(InfoRequest {}));
        asked.map(|_| ()).map_err(hotlease_net::grpc::refusal)
    };
    info().expect("signed in");
    let secret = fs::read_to_string(path).expect("a key");
    let id = secret.split('_').nth(1).expect("an id");
    doors.operator(&["admin", "key", "revoke", id]);
    let refusal = info().expect_err("the key was revoked");
    assert!(refusal.to_string().contains("revoked"), "{refusal}");
}

#[test]
fn a_key_that_rotates_by_itself_disturbs_no_session() {
    let doors = Doors::new(&[], &["--without-certificate", "--token-key-rotation", "1s"]);
    let channel = doors.channel(&Credential::KeyFile(doors.key("key", &[])));
    let grant = doors.acquire(&channel, LONG).expect("a lease");
    let mut session = doors.attached(&grant, &grant.token);
    until_true("the key is replaced twice", LIMIT, || {
        doors
            .agent
            .log()
            .matches("the key of lease tokens was replaced")
            .count()
            >= 2
    });
    assert!(
        doors
            .refused(&grant, &grant.token)
            .to_string()
            .contains("replaced twice")
    );
    let renewed = session.ask(&SessionRequest::Renew, &[]);
    assert!(matches!(renewed, Ok(SessionReply::Renewed { .. })), "{renewed:?}");
    session.release();
}
