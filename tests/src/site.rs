//! A site: an authority, a manager and agents as processes on one or several hosts, and their clients.

use crate::hosts::Host;
use crate::platform::{LIMIT, private_directory, program};
use crate::process::Process;
use crate::session::RawSession;
use hotlease_net::authority::{self, IdentityRequest};
use hotlease_net::tunnel::{session, silence_of};
use hotlease_net::{Address, CertificateRole, Identity, NetError, Proof, grpc};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::manager_client::ManagerClient as Stub;
use hotlease_wire::grpc::{AcquireRequest, AgentInfo, Grant, LeaseInfo, ListRequest};
use nix::sys::signal::Signal;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;
use tonic::{Response, Status};

/// Time in which a daemon should stop before it gets a second signal.
const PATIENCE: Duration = Duration::from_secs(3);

/// An authority, and the identities that it issued.
pub struct Authority {
    directory: TempDir,
    issued: AtomicU32,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// A new authority.
    pub fn new() -> Self {
        let directory = private_directory();
        authority::init(&directory.path().join("ca")).expect("an authority");
        Self {
            directory,
            issued: AtomicU32::new(0),
        }
    }

    /// Folder of the authority.
    pub fn directory(&self) -> PathBuf {
        self.directory.path().join("ca")
    }

    /// Issues an identity; returns its folder.
    pub fn issue(&self, request: &IdentityRequest) -> PathBuf {
        let number = self.issued.fetch_add(1, Ordering::Relaxed);
        let out = self.directory.path().join(format!("{}-{number}", request.role));
        authority::issue(&self.directory(), request, &out).expect("an identity");
        out
    }

    /// Issues an identity of a client.
    pub fn client(&self, tenant: &str) -> PathBuf {
        self.issue(&IdentityRequest {
            tenant: Some(tenant.into()),
            ..IdentityRequest::new(CertificateRole::Client)
        })
    }

    /// Issues an identity of a daemon on a host: for its addresses, and for the name `HOST.invalid`, which never
    /// resolves.
    pub fn daemon(&self, role: CertificateRole, host: &Host) -> PathBuf {
        let mut hosts = vec![host.address().to_string(), host.address_v6().to_string()];
        hosts.dedup();
        hosts.push(format!("{}.invalid", host.name()));
        self.issue(&IdentityRequest {
            hosts,
            ..IdentityRequest::new(role)
        })
    }
}

/// A daemon on a host. Stopped when dropped; the test fails if the daemon panicked or does not stop.
pub struct Daemon {
    child: Option<Child>,
    log: PathBuf,
    out: PathBuf,
    /// Line that the daemon printed when it served.
    pub serving: serde_json::Value,
}

impl Daemon {
    /// Starts `hotlease ARGUMENTS` and waits until it serves.
    ///
    /// # Panics
    /// If the daemon does not serve; the message contains its output.
    pub fn start(host: &Host, arguments: &[&str]) -> Self {
        Self::start_in(host, host.runtime_dir(), arguments)
    }

    /// Starts a daemon in a runtime directory that is not the host's.
    ///
    /// # Panics
    /// As [`Daemon::start`].
    pub fn start_in(host: &Host, runtime_dir: &Path, arguments: &[&str]) -> Self {
        let mut daemon = Self::launch(host, runtime_dir, arguments);
        daemon.serve();
        daemon
    }

    /// Starts a daemon, and does not wait.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn launch(host: &Host, runtime_dir: &Path, arguments: &[&str]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let log = host.directory().join(format!("daemon-{number}.log"));
        let out = host.directory().join(format!("daemon-{number}.out"));
        let mut command = host.command(&program("hotlease"));
        let child = command
            .arg("--json")
            .args(arguments)
            .env("HOTLEASE_RUNTIME_DIR", runtime_dir)
            .env("HOTLEASE_LOG", "debug,h2=info,hyper=info,tower=info")
            .stdout(File::create(&out).expect("a file"))
            .stderr(File::create(&log).expect("a log"))
            .spawn()
            .expect("hotlease starts");
        Self {
            child: Some(child),
            log,
            out,
            serving: serde_json::Value::Null,
        }
    }

    /// Whether the daemon serves.
    pub fn serves(&mut self) -> bool {
        let text = fs::read_to_string(&self.out).unwrap_or_default();
        if text.ends_with('\n')
            && let Ok(serving) = serde_json::from_str(&text)
        {
            self.serving = serving;
        }
        !self.serving.is_null()
    }

    /// Waits until the daemon serves.
    ///
    /// # Panics
    /// If the daemon does not serve.
    fn serve(&mut self) {
        let start = Instant::now();
        while !self.serves() {
            let child = self.child.as_mut().expect("running");
            let ended = child.try_wait().expect("a child");
            assert!(
                ended.is_none() && start.elapsed() < LIMIT,
                "a daemon does not serve ({ended:?}):\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Log of the daemon.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Process of the daemon.
    pub fn process(&self) -> Process {
        let child = self.child.as_ref().expect("it is running");
        Process::of(child.id() as i32).unwrap_or_else(|| panic!("it has died:\n{}", self.log()))
    }

    /// Waits until the daemon has ended by itself; returns its status, and the time of the wait.
    ///
    /// # Panics
    /// If the daemon does not end.
    pub fn ended(&mut self, limit: Duration) -> (ExitStatus, Duration) {
        let start = Instant::now();
        loop {
            let child = self.child.as_mut().expect("it is running");
            if let Some(status) = child.try_wait().expect("a child") {
                self.child = None;
                return (status, start.elapsed());
            }
            assert!(start.elapsed() < limit, "it goes on after {limit:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills the daemon with -9.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it is running");
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {} ---\n{}---", self.log.display(), self.log());
        }
        let Some(mut child) = self.child.take() else {
            return;
        };
        let process = Process::of(child.id() as i32);
        let tell = |signal| {
            if let Some(process) = &process {
                process.signal(signal);
            }
        };
        // SIGINT stops at once: an agent that gets SIGTERM waits for its leases.
        tell(Signal::SIGINT);
        let start = Instant::now();
        let mut patience = Some(PATIENCE);
        while let Ok(None) = child.try_wait() {
            // Tests that a script runs in the background ignore SIGINT, and so does a daemon that has not set its
            // handler yet.
            if patience.is_some_and(|patience| start.elapsed() > patience) {
                patience = None;
                tell(Signal::SIGTERM);
            }
            if start.elapsed() > LIMIT {
                let _ = child.kill();
                let _ = child.wait();
                assert!(std::thread::panicking(), "it does not stop:\n{}", self.log());
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let panicked = self.log().contains("panicked");
        assert!(!panicked || std::thread::panicking(), "it panicked:\n{}", self.log());
    }
}

/// A manager that serves other hosts.
pub struct ManagerDaemon {
    /// The daemon itself.
    pub daemon: Daemon,
    /// Address of the manager.
    pub address: Address,
}

impl ManagerDaemon {
    /// Starts a manager on a host, at its IPv4 address.
    pub fn start(host: &Host, authority: &Authority) -> Self {
        Self::start_at(host, authority, host.address())
    }

    /// Starts a manager on a host, at one of its addresses.
    ///
    /// # Panics
    /// If the manager does not serve.
    pub fn start_at(host: &Host, authority: &Authority, at: std::net::IpAddr) -> Self {
        Self::start_with(host, authority, at, &[])
    }

    /// Starts a manager with further arguments.
    ///
    /// # Panics
    /// If the manager does not serve.
    pub fn start_with(host: &Host, authority: &Authority, at: std::net::IpAddr, further: &[&str]) -> Self {
        let identity = authority.daemon(CertificateRole::Manager, host);
        let listen = std::net::SocketAddr::new(at, 0).to_string();
        let identity = identity.display().to_string();
        let mut arguments = vec!["manager", "--listen", &listen, "--identity", &identity];
        arguments.extend(further);
        let daemon = Daemon::start(host, &arguments);
        let listens: std::net::SocketAddr = daemon.serving["listen"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .expect("it says where it listens");
        let address = Address::new(listens.ip().to_string(), listens.port());
        Self { daemon, address }
    }
}

/// Starts an agent of one core that registers with a manager elsewhere and serves `tenants`.
///
/// # Panics
/// If the agent does not serve.
pub fn agent(host: &Host, authority: &Authority, manager: &Address, tenants: &[&str], further: &[&str]) -> Daemon {
    agent_in(host, "", authority, manager, tenants, further)
}

/// Starts a further agent on a host, in a separate runtime directory.
///
/// # Panics
/// As [`agent`].
pub fn agent_in(
    host: &Host,
    directory: &str,
    authority: &Authority,
    manager: &Address,
    tenants: &[&str],
    further: &[&str],
) -> Daemon {
    agent_of(host, directory, authority, &manager.to_string(), tenants, further)
}

/// Starts an agent of several managers; `managers` is separated by commas.
///
/// # Panics
/// As [`agent`].
pub fn agent_of(
    host: &Host,
    directory: &str,
    authority: &Authority,
    managers: &str,
    tenants: &[&str],
    further: &[&str],
) -> Daemon {
    let identity = authority.daemon(CertificateRole::Agent, host).display().to_string();
    let listen = std::net::SocketAddr::new(host.address(), 0).to_string();
    let core = format!("{},", crate::process::cores()[0]);
    let mut arguments = vec![
        "agent",
        "--manager",
        managers,
        "--listen",
        &listen,
        "--identity",
        &identity,
    ];
    arguments.extend(["--pool", "1"]);
    if !further.contains(&"--cores") {
        arguments.extend(["--cores", &core]);
    }
    for tenant in tenants {
        arguments.extend(["--tenant", tenant]);
    }
    arguments.extend(further);
    Daemon::start_in(host, &host.runtime_dir().join(directory), &arguments)
}

/// A client on a host, with an identity. Its connections are made and kept by threads on that host.
pub struct RemoteClient {
    runtime: Runtime,
    identity: Arc<Identity>,
    manager: Stub<Channel>,
}

impl RemoteClient {
    /// A client of the manager at an address.
    ///
    /// # Panics
    /// If the identity is not usable.
    pub fn new(host: &Host, identity: &Path, manager: &Address) -> Self {
        Self::of_several(host, identity, vec![manager.clone()])
    }

    /// A client of several managers, which uses the manager that serves.
    ///
    /// # Panics
    /// As [`RemoteClient::new`].
    pub fn of_several(host: &Host, identity: &Path, managers: Vec<Address>) -> Self {
        let runtime = host.run(|| {
            // The threads of the runtime are started here, so they are on the host.
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.expect("a runtime")
        });
        let identity = Arc::new(Identity::load(identity).expect("an identity"));
        let own = Arc::clone(&identity);
        let channel = {
            let _within = runtime.enter();
            grpc::channel_to_first(managers, own, CertificateRole::Manager)
        };
        Self {
            runtime,
            identity,
            manager: Stub::new(channel),
        }
    }

    /// Runs `work` on the client's host.
    ///
    /// # Panics
    /// If `work` panics.
    pub fn block_on<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.runtime.block_on(self.runtime.spawn(work)).expect("no panic")
    }

    /// Identity of the client.
    pub fn identity(&self) -> Arc<Identity> {
        Arc::clone(&self.identity)
    }

    /// Sends a request to the manager.
    pub fn ask<T: Send + 'static, F>(
        &self,
        call: impl FnOnce(Stub<Channel>) -> F + Send + 'static,
    ) -> Result<T, Rejection>
    where
        F: Future<Output = Result<Response<T>, Status>> + Send + 'static,
    {
        let answer = self.block_on(call(self.manager.clone()));
        answer.map(Response::into_inner).map_err(grpc::refusal)
    }

    /// Registered agents.
    pub fn agents(&self) -> Result<Vec<AgentInfo>, Rejection> {
        let list = self.ask(|mut manager| async move { manager.list_agents(ListRequest::default()).await });
        list.map(|list| list.agents)
    }

    /// Leases of this client's tenant.
    pub fn leases(&self) -> Result<Vec<LeaseInfo>, Rejection> {
        let list = self.ask(|mut manager| async move { manager.list_leases(ListRequest::default()).await });
        list.map(|list| list.leases)
    }

    /// Takes a lease of one slot.
    pub fn acquire(&self, ttl: Duration) -> Result<Grant, Rejection> {
        let request = AcquireRequest {
            workers: 1,
            slots_per_worker: 1,
            ttl_ms: ttl.as_millis() as u64,
            label: "remote".into(),
            ..AcquireRequest::default()
        };
        self.ask(|mut manager| async move { manager.acquire(request).await })
    }

    /// Opens a session with the agent that granted a lease, through the tunnel.
    pub fn session(&self, grant: &Grant) -> Result<RawSession, NetError> {
        let endpoint: Address = grant.endpoint.parse()?;
        let silence = silence_of(Duration::from_millis(grant.ttl_ms));
        let (proof, token) = (Proof::Certificate(self.identity()), grant.token.clone());
        let begun = self.block_on(async move { session(endpoint, proof, &token, silence).await });
        let socket = begun?.socket;
        Ok(RawSession::over(socket))
    }

    /// Opens a session, and attaches it to the lease.
    ///
    /// # Panics
    /// If the agent rejects the token.
    pub fn attached(&self, grant: &Grant) -> RawSession {
        let mut session = self
            .session(grant)
            .unwrap_or_else(|error| panic!("no session: {error}"));
        match session.attach(&grant.token) {
            Ok(hotlease_wire::session::SessionReply::Attached { .. }) => session,
            other => panic!("not attached: {other:?}"),
        }
    }

    /// Ends like a killed client: closes all connections at once.
    pub fn vanish(self) {
        self.runtime.shutdown_background();
    }
}
