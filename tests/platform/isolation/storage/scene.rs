//! A store, a platform that grants prefixes in it, and functions that speak the protocol by hand.

use hotlease_client::{Code, Error, Invoker, LeaseOptions, Reach};
use hotlease_s3::{SignatureTime, SignedParts, SigningKeys, digest};
use hotlease_tests::platform::{LIMIT, Platform, PlatformOptions};
use hotlease_tests::versitygw::{ACCESS, SECRET, Versitygw};
use hotlease_tests::wait::until;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{self, AcquireRequest, Grant};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// A store, and a platform that grants prefixes in it.
pub(super) struct Scene {
    pub platform: Platform,
    pub s3: Versitygw,
    _files: tempfile::TempDir,
}

fn write_private(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, PermissionsExt::from_mode(0o600)).expect("ours alone");
}

impl Scene {
    pub fn start() -> Option<Self> {
        let s3 = Versitygw::start(&["data", "other"])?;
        let files = tempfile::tempdir().expect("a folder");
        let keys = format!("[default]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n");
        write_private(&files.path().join("keys"), &keys);
        let site = files.path().join("storage.toml");
        let text = format!(
            "[[store]]\nendpoint = \"{}\"\ncredentials = \"keys\"\n\
             [[store.grant]]\nreach = \"s3://data/{{tenant}}:rw\"\n\
             [[store.grant]]\nreach = \"s3://data/shared\"\n",
            s3.endpoint()
        );
        write_private(&site, &text);
        let platform = Platform::start_with(PlatformOptions {
            further: vec![
                "--sandbox-storage".into(),
                site.display().to_string(),
                "--sandbox-network".into(),
            ],
            ..PlatformOptions::default()
        });
        Some(Self {
            platform,
            s3,
            _files: files,
        })
    }

    /// A lease of one function that talks to the store, in a namespace; `None` if the machine cannot make namespaces.
    pub fn lease(&self, storage: &[String]) -> Option<Talker> {
        let options = LeaseOptions {
            sandbox: "namespace".into(),
            reach: Reach {
                storage: storage.iter().map(|text| text.parse().expect("a place")).collect(),
                ..Reach::default()
            },
            request_bytes: 32 << 10,
            reply_bytes: 32 << 10,
            ..self.platform.lease_options()
        };
        let code = Code::open(hotlease_tests::library::library("storage")).expect("a library");
        match Invoker::allocate(&code, options) {
            Ok(invoker) => Some(Talker::new(invoker)),
            Err(Error::Refused(Rejection::NoSandbox { why, .. })) => {
                eprintln!("skipped: {why}");
                None
            }
            Err(error) => panic!("no lease: {error}"),
        }
    }

    pub fn acquire(&self, sandbox: &str, network: bool, storage: &[String], ttl: Duration) -> Result<Grant, Rejection> {
        self.platform.manager().acquire(AcquireRequest {
            workers: 1,
            slots_per_worker: 1,
            ttl_ms: ttl.as_millis() as u64,
            hot_budget_us: 1000,
            sandbox: sandbox.into(),
            reach: Some(grpc::Reach {
                network,
                storage: storage.to_vec(),
                ..grpc::Reach::default()
            }),
            ..AcquireRequest::default()
        })
    }

    /// Keys and port in the environment of a lease's worker.
    pub fn keys_of(&self, grant: &Grant) -> (SigningKeys, u16) {
        let manager = self.platform.manager();
        let (environ, _) = until("the lease has a worker", LIMIT, || {
            let workers = manager.workers().expect("listed");
            let own = workers
                .iter()
                .find(|worker| worker.lease == grant.lease && worker.pid != 0)?;
            let environ = fs::read(format!("/proc/{}/environ", own.pid)).ok()?;
            let environ = String::from_utf8_lossy(&environ).into_owned();
            environ.contains("AWS_ACCESS_KEY_ID=").then_some(environ)
        });
        let value = |name: &str| {
            let mut entries = environ.split('\0');
            let found = entries.find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_else(|| panic!("no {name}")).to_owned()
        };
        keys(&value)
    }
}

/// The prefix that is granted to this user.
pub(super) fn own() -> String {
    format!("uid:{}", nix::unistd::geteuid())
}

pub(super) fn own_place() -> String {
    format!("s3://data/{}:rw", own())
}

fn keys(value: &dyn Fn(&str) -> String) -> (SigningKeys, u16) {
    let endpoint = value("AWS_ENDPOINT_URL_S3");
    let port = endpoint.rsplit(':').next().and_then(|port| port.parse().ok());
    let keys = SigningKeys {
        id: value("AWS_ACCESS_KEY_ID"),
        secret: value("AWS_SECRET_ACCESS_KEY"),
        token: None,
    };
    (keys, port.unwrap_or_else(|| panic!("no port in {endpoint:?}")))
}

/// A request to be signed.
#[derive(Clone)]
pub(super) struct Request<'a> {
    pub method: &'a str,
    pub target: &'a str,
    pub headers: &'a [(&'static str, &'a str)],
    pub body: &'a [u8],
    pub keeps: bool,
}

pub(super) fn request<'a>(method: &'a str, target: &'a str) -> Request<'a> {
    Request {
        method,
        target,
        headers: &[],
        body: b"",
        keeps: false,
    }
}

impl Request<'_> {
    pub fn signed(&self, keys: &SigningKeys, port: u16) -> Vec<u8> {
        let (path, query) = self.target.split_once('?').unwrap_or((self.target, ""));
        let part = SignedParts {
            method: self.method,
            path,
            query,
        };
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers {
            headers.insert(
                HeaderName::from_static(name),
                HeaderValue::from_str(value).expect("text"),
            );
        }
        let host = format!("127.0.0.1:{port}");
        keys.sign(
            part,
            &mut headers,
            (&host, "us-east-1"),
            &digest(self.body),
            SignatureTime::now(),
        )
        .expect("signed");
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in &headers {
            text.push_str(&format!("{name}: {}\r\n", value.to_str().expect("text")));
        }
        if !self.keeps {
            text.push_str("connection: close\r\n");
        }
        text.push_str(&format!("content-length: {}\r\n\r\n", self.body.len()));
        [text.as_bytes(), self.body].concat()
    }
}

/// An answer: its status, and all of its bytes as text.
#[derive(Debug)]
pub(super) struct Answer(pub u16, pub String);

impl Answer {
    fn of(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        Self(status.unwrap_or(0), text)
    }

    #[track_caller]
    pub fn is(&self, status: u16, words: &str) {
        assert!(
            self.0 == status && self.1.contains(words),
            "not {status} with {words:?}: {self:?}"
        );
    }
}

/// A lease whose function talks to the store.
pub(super) struct Talker {
    pub invoker: Invoker,
    pub keys: SigningKeys,
    pub port: u16,
}

impl Talker {
    fn new(invoker: Invoker) -> Self {
        let variable = invoker.function("variable").expect("it is in there");
        let value = |name: &str| String::from_utf8(variable.call(name.as_bytes()).expect("it runs")).expect("text");
        let (keys, port) = keys(&value);
        Self { invoker, keys, port }
    }

    pub fn send(&self, bytes: &[u8]) -> Answer {
        let converse = self.invoker.function("converse").expect("it is in there");
        let said = [&self.port.to_be_bytes(), bytes].concat();
        Answer::of(
            &converse
                .call(&said)
                .unwrap_or_else(|error| panic!("no answer: {error}")),
        )
    }

    pub fn ask(&self, request: &Request<'_>) -> Answer {
        self.send(&request.signed(&self.keys, self.port))
    }

    pub fn get(&self, target: &str) -> Answer {
        self.ask(&request("GET", target))
    }

    pub fn put(&self, target: &str, body: &[u8]) -> Answer {
        self.ask(&Request {
            body,
            ..request("PUT", target)
        })
    }

    pub fn search(&self, text: &str) -> String {
        let search = self.invoker.function("search").expect("it is in there");
        String::from_utf8_lossy(&search.call(text.as_bytes()).expect("it runs")).into_owned()
    }
}

pub(super) fn connected(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the agent listens");
    stream.set_read_timeout(Some(LIMIT)).expect("set");
    stream
}

/// Reads an answer that has a length.
pub(super) fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut read = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&read).to_lowercase();
        let length = text.split_once("\r\n\r\n").and_then(|(head, body)| {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
            Some((length.parse::<usize>().ok()?, body.len()))
        });
        if length.is_some_and(|(length, came)| came >= length) {
            return Answer::of(&read);
        }
        match stream.read(&mut chunk).expect("an answer in time") {
            0 => return Answer::of(&read),
            count => read.extend_from_slice(&chunk[..count]),
        }
    }
}

/// Number of bytes that still arrived before the connection was cut.
pub(super) fn until_cut(stream: &mut TcpStream) -> usize {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => rest.len(),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => rest.len(),
        Err(error) => panic!("not cut: {error}"),
    }
}
