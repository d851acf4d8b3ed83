//! Environments that go from agent to agent.

use crate::remote::LONG;
use hotlease_net::{CertificateRole, grpc};
use hotlease_tests::hosts::Hosts;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::site::{Authority, Daemon, ManagerDaemon, RemoteClient, agent};
use hotlease_tests::wait::until_true;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::agent_client::AgentClient;
use hotlease_wire::grpc::{AcquireRequest, AgentInfo, FindImageRequest, PythonRuntime, ReadImageRequest};
use hotlease_wire::ids::CodeHash;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// A manager on `m`, agents with one image store, a client on `c`.
pub struct Site {
    folder: TempDir,
    authority: Authority,
    pub client: RemoteClient,
    manager: ManagerDaemon,
    pub hosts: Hosts,
}

impl Site {
    fn new() -> Option<Self> {
        Self::of(&["a", "b"])
    }

    /// A site with these hosts beside `m` and `c`.
    pub fn of(names: &[&str]) -> Option<Self> {
        let hosts = Hosts::new(&[&["m", "c"], names].concat())?;
        let authority = Authority::new();
        let manager = ManagerDaemon::start(hosts.host("m"), &authority);
        let client = RemoteClient::new(hosts.host("c"), &authority.client("alice"), &manager.address);
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("store")).expect("a store");
        Some(Self {
            folder,
            authority,
            client,
            manager,
            hosts,
        })
    }

    /// Starts the agent of a host, which clients may also ask directly.
    pub fn agent(&self, name: &str) -> Daemon {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let further = [
            "--direct",
            "1",
            "--environments",
            &path("store"),
            "--environment-cache",
            &path(name),
        ];
        let agent = agent(
            self.hosts.host(name),
            &self.authority,
            &self.manager.address,
            &["alice"],
            &further,
        );
        until_true("it registers", LIMIT, || self.listed(name).is_some());
        agent
    }

    /// Information about a host's agent, as the manager lists it.
    pub fn listed(&self, name: &str) -> Option<AgentInfo> {
        let host = self.hosts.host(name).address().to_string();
        let agents = self.client.agents().unwrap_or_default();
        agents
            .into_iter()
            .find(|agent| agent.endpoint.contains(&format!("//{host}:")))
    }

    /// Writes these bytes into the store; returns their name.
    pub fn publish(&self, bytes: &[u8]) -> String {
        let hash = CodeHash::of(bytes).to_string();
        fs::write(self.stored(&hash), bytes).expect("a store");
        hash
    }

    /// Path of an image in the store.
    pub fn stored(&self, hash: &str) -> PathBuf {
        self.folder.path().join(format!("store/{hash}.squashfs"))
    }

    /// Path of an image in the cache of a host's agent.
    pub fn cached(&self, host: &str, hash: &str) -> PathBuf {
        self.folder.path().join(format!("{host}/images/{hash}.squashfs"))
    }

    /// Has every agent fetch an image; each finds then that it is no image.
    fn fetch(&self, hash: &str) {
        let request = naming(hash);
        let refused = self
            .client
            .ask(|mut manager| async move { manager.acquire(request).await });
        match refused {
            // Each agent names the path in its own folder.
            Err(refusal @ (Rejection::NoEnvironment { .. } | Rejection::NoSuitableAgent { .. })) => {
                eprintln!("as it should be: {refusal}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A request for a lease with this environment.
pub fn naming(hash: &str) -> AcquireRequest {
    AcquireRequest {
        workers: 1,
        slots_per_worker: 1,
        ttl_ms: LONG.as_millis() as u64,
        python: Some(PythonRuntime {
            interpreter: "bin/python".into(),
            image: hash.into(),
            ..PythonRuntime::default()
        }),
        ..AcquireRequest::default()
    }
}

#[test]
fn an_environment_comes_from_the_agent_that_has_it() {
    let Some(site) = Site::new() else { return };
    let bytes = vec![7; 8 << 20];
    let hash = site.publish(&bytes);
    let _a = site.agent("a");
    site.fetch(&hash);
    assert!(site.cached("a", &hash).exists(), "from the store");

    fs::remove_file(site.stored(&hash)).expect("it is there");
    let _b = site.agent("b");
    site.fetch(&hash);
    assert_eq!(fs::read(site.cached("b", &hash)).expect("it came"), bytes);
}

#[test]
fn environments_are_for_agents_only() {
    let Some(site) = Site::new() else { return };
    let hash = site.publish(b"no image");
    let _a = site.agent("a");
    site.fetch(&hash);
    let a = site.listed("a").expect("it is registered");

    let (agent, image) = (a.id.clone(), hash.clone());
    let refused = site.client.ask(|mut manager| async move {
        let request = FindImageRequest {
            agent,
            image,
            ..FindImageRequest::default()
        };
        manager.find_image(request).await
    });
    assert!(matches!(refused, Err(Rejection::NotPermitted { .. })), "{refused:?}");

    let address = a.endpoint.parse().expect("an address");
    let identity = site.client.identity();
    let read = site.client.block_on(async move {
        let mut agent = AgentClient::new(grpc::channel(address, identity, CertificateRole::Agent));
        let read = agent
            .read_image(ReadImageRequest {
                image: hash,
                ..ReadImageRequest::default()
            })
            .await;
        read.map(drop).map_err(grpc::refusal)
    });
    assert!(matches!(read, Err(Rejection::NotPermitted { .. })), "{read:?}");
}
