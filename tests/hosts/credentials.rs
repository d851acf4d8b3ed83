//! Clients without a certificate: the credentials that they show to the manager and to agents, and what is refused.

mod bearers;
mod rest;

use crate::munged::Munged;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hotlease_net::tunnel::{session, silence_of};
use hotlease_net::{Credential, NetError, Proof, SiteAccess as NetSite, SiteChannel, SiteOptions, Trust};
use hotlease_tests::hosts::{Host, Hosts};
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, program};
use hotlease_tests::session::RawSession;
use hotlease_tests::site::{Authority, Daemon, ManagerDaemon, agent};
use hotlease_tests::wait::until_true;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{AcquireRequest, Grant, InfoRequest};
use hotlease_wire::session::SessionReply;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::{Builder, Runtime};

const ISSUER: &str = "https://login.example.org/";

/// An issuer of tokens, and the file that describes it.
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
        let text = format!("[[issuer]]\nissuer = \"{ISSUER}\"\naudience = \"hotlease\"\nkeys = \"jwks.json\"\n");
        fs::write(&file, text).expect("a file");
        Self { key, file }
    }

    /// A token for alice.
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

/// A manager and an agent that let in clients without a certificate, and the host of such a client.
struct Credentials {
    runtime: Runtime,
    agent: Daemon,
    manager: ManagerDaemon,
    /// Owns the folder that the files are in.
    _authority: Authority,
    issuer: Issuer,
    files: PathBuf,
    hosts: Option<Hosts>,
    here: Host,
}

impl Credentials {
    /// Starts manager, agent and client on this machine.
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
        let scene = Self {
            runtime: runtime.expect("a runtime"),
            agent,
            manager,
            _authority: authority,
            issuer,
            files,
            hosts,
            here,
        };
        scene.operator(&["admin", "tenant", "add", "chem", "--member", "jwt:alice@example.org"]);
        until_true("the agent registers", LIMIT, || {
            scene.operator(&["agents", "--json"]).contains("serving")
        });
        scene
    }

    /// Runs a command as an operator on the manager's machine.
    fn operator(&self, arguments: &[&str]) -> String {
        let host = self.hosts.as_ref().map_or(&self.here, |hosts| hosts.host("m"));
        let output = host.command(&program("hotlease")).args(arguments).output();
        let output = output.expect("hotlease runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Makes a new key; returns its file.
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
        // The new file is renamed into place, as programs that rotate tokens do.
        let (path, new) = (self.files.join(name), self.files.join("new-token"));
        fs::write(&new, format!("{}\n", self.issuer.token(lasts_s))).expect("a file");
        fs::rename(new, &path).expect("a file");
        path
    }

    /// Runs `hotlease` on the client's host, with a variable that names a credential; returns its status and its
    /// output.
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

    /// A channel to the manager with this credential.
    fn channel(&self, credential: &Credential) -> SiteChannel {
        let address = self.manager.address.to_string();
        let authority = self.files.join("ca.pem");
        let site = NetSite::find(SiteOptions {
            manager: Some(&address),
            credential: Some(credential),
            authority: Some(&authority),
            ..SiteOptions::default()
        });
        let site = site.expect("a site").expect("named");
        let _within = self.runtime.enter();
        site.channel()
    }

    fn acquire(&self, channel: &SiteChannel, ttl: Duration) -> Result<Grant, Rejection> {
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

    /// A session over TLS of a client whose only credential is this token.
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

    /// The agent's rejection of a client with this token.
    fn refused(&self, grant: &Grant, token: &[u8]) -> Rejection {
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
    let scene = Credentials::on(Some(hosts), &[], &OPEN);
    let key = scene.key("key", &[]);
    let hosts = scene.hosts.as_ref().expect("made");
    for (variable, path) in [
        ("HOTLEASE_KEY_FILE", &key),
        ("HOTLEASE_TOKEN_FILE", &scene.token("token", 300)),
    ] {
        let caller = Path::new(env!("CARGO_BIN_EXE_hotlease-test-caller"));
        let output = hosts
            .host("c")
            .command(caller)
            .env("HOTLEASE_MANAGER", scene.manager.address.to_string())
            .env("HOTLEASE_CA_FILE", scene.files.join("ca.pem"))
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
        let free = || scene.operator(&["agents", "--json"]).contains("\"free_cores\":1");
        until_true("the core is free", LIMIT, free);
    }
    // The usage is on the bill of the key's tenant.
    until_true("the bill is the key's tenant's", LIMIT, || {
        let (status, bill) = scene.hotlease(("HOTLEASE_KEY_FILE", &key), &["bill", "--json"]);
        assert_eq!(status, Some(0), "{bill}");
        bill.contains("chem")
    });
}

#[test]
fn a_key_file_makes_commands_its_tenants_and_no_secret_is_shown() {
    let scene = Credentials::new(&[], &OPEN);
    let user = scene.key("user", &[]);
    let operator = scene.key("operator", &["--role", "operator"]);
    let secret = fs::read_to_string(&user).expect("a key");
    let echo = library("echo").display().to_string();
    let as_user = |arguments: &[&str]| scene.hotlease(("HOTLEASE_KEY_FILE", &user), arguments);
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
        let (status, text) = scene.hotlease(("HOTLEASE_KEY_FILE", &operator), arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {text}");
    }
    for log in [scene.manager.daemon.log(), scene.agent.log()] {
        assert!(!log.contains(secret.trim()), "a daemon logs the key");
    }
    fs::set_permissions(&user, fs::Permissions::from_mode(0o644)).expect("ours");
    let (status, text) = as_user(&["agents"]);
    assert!(
        status != Some(0) && text.contains("others can access it"),
        "a key that others can read: {status:?}: {text}"
    );
    // A credential on the command line overrides the environment; two on the command line are an error.
    let other = scene.key("other", &[]).display().to_string();
    let (_, text) = scene.hotlease(("HOTLEASE_IDENTITY", &user), &["agents", "--key-file", &other]);
    assert!(
        text.contains("serving"),
        "what was said goes before the environment: {text}"
    );
    let (status, _) = as_user(&["agents", "--key-file", &other, "--token-file", &other]);
    assert_eq!(status, Some(2), "a key and a token");
    // The client tells a manager of another authority nothing.
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
    let scene = Credentials::new(&[], &OPEN);
    let path = scene.token("token", -300);
    let with = |path: &Path| scene.hotlease(("HOTLEASE_TOKEN_FILE", path), &["agents"]);
    let (status, text) = with(&path);
    assert!(status != Some(0) && text.contains("expired"), "{status:?}: {text}");
    scene.token("token", 300);
    let (status, text) = with(&path);
    assert_eq!(status, Some(0), "{text}");
    // A program that goes on: its session ends when keys are replaced twice, and it signs in again with the file.
    let channel = scene.channel(&Credential::TokenFile(path));
    let info = || {
        let mut manager = ManagerClient::new(channel.clone());
        let asked = scene.runtime.block_on(manager.get_info(InfoRequest {}));
        asked.map(|_| ()).map_err(hotlease_net::grpc::refusal)
    };
    info().expect("signed in");
    for _ in 0..2 {
        scene.operator(&["admin", "key", "rotate"]);
    }
    info().expect("signed in again");
    scene.token("token", -300);
    info().expect("a session goes on without its token");
    for _ in 0..2 {
        scene.operator(&["admin", "key", "rotate"]);
    }
    let refusal = info().expect_err("the file's token has expired");
    assert!(matches!(refusal, Rejection::NotAuthenticated { .. }), "{refusal}");
    scene.token("token", 300);
    info().expect("the file's token is good again");
}

#[test]
fn a_user_of_the_cluster_comes_by_munge() {
    let Some(munged) = Munged::start() else { return };
    let socket = munged.socket().display().to_string();
    let scene = Credentials::new(&["--munge", "--munge-socket", &socket], &OPEN);
    let member = format!("uid:{}", nix::unistd::geteuid());
    let run = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.extend(["--munge", "--munge-socket", &socket]);
        scene.hotlease(("HOTLEASE_MUNGE", Path::new("0")), &all)
    };
    let (status, text) = run(&["agents"]);
    assert!(
        status == Some(1) && text.contains("belongs to no tenant"),
        "{status:?}: {text}"
    );
    scene.operator(&["admin", "tenant", "set", "chem", "--member", &member]);
    let echo = library("echo").display().to_string();
    for arguments in [&["agents"][..], &["run", &echo, "echo"], &["bill"]] {
        let (status, text) = run(arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {text}");
    }
    let Some(foreign) = Munged::start() else { return };
    let foreign = foreign.socket().display().to_string();
    let (status, text) = scene.hotlease(
        ("HOTLEASE_MUNGE", Path::new("1")),
        &["agents", "--munge", "--munge-socket", &foreign],
    );
    assert!(
        status == Some(1) && text.contains("not authenticated"),
        "{status:?}: {text}"
    );
}
