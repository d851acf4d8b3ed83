//! MUNGE, with a real `munged` of the test's own.

use crate::credentials::{Site, alice, bearer, code, put, with};
use hotlease_manager::identity::{MungeConfig, TenantPolicy, munge_payload};
use hotlease_wire::grpc::identity_client::IdentityClient;
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{AuthenticateRequest, ChallengeRequest, InfoRequest, Tenant};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tonic::Code;
use tonic::transport::Channel;

/// A daemon with a key and a socket of its own; it ends with this.
struct Munged {
    dir: TempDir,
    daemon: Child,
}

impl Drop for Munged {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let dirs = [
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
        "/usr/local/sbin",
        "/usr/local/bin",
    ];
    dirs.iter()
        .map(|dir| PathBuf::from(dir).join(name))
        .find(|path| path.exists())
}

impl Munged {
    /// None, and a word about it, where MUNGE is not installed.
    fn start() -> Option<Self> {
        let (Some(munged), Some(_)) = (program("munged"), program("munge")) else {
            eprintln!("skipped: munge is not installed (scripts/setup installs it)");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&key)
            .unwrap();
        file.write_all(&rand::random::<[u8; 32]>().repeat(4)).unwrap();
        drop(file);
        let option = |name: &str, file: &str| format!("--{name}={}", dir.path().join(file).display());
        let daemon = Command::new(munged)
            .args(["--foreground", "--force"])
            .arg(option("socket", "munge.sock"))
            .arg(option("key-file", "key"))
            .arg(option("pid-file", "munged.pid"))
            .arg(option("log-file", "munged.log"))
            .arg(option("seed-file", "munged.seed"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let munged = Self { dir, daemon };
        let until = Instant::now() + Duration::from_secs(30);
        while munged.try_credential("", &[]).is_none() {
            assert!(
                Instant::now() < until,
                "munged does not serve: {:?}",
                fs::read_to_string(munged.dir.path().join("munged.log"))
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(munged)
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("munge.sock")
    }

    fn try_credential(&self, payload: &str, options: &[&str]) -> Option<String> {
        let mut munge = Command::new(program("munge")?)
            .arg("--socket")
            .arg(self.socket())
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        munge.stdin.take()?.write_all(payload.as_bytes()).ok()?;
        let output = munge.wait_with_output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8(output.stdout).expect("ASCII").trim().to_owned())
    }

    /// As a client makes it, for this payload and the manager's user.
    fn credential(&self, payload: &str) -> String {
        let uid = format!("--restrict-uid={}", nix::unistd::geteuid());
        self.try_credential(payload, &[&uid, "--ttl=60"])
            .expect("munged serves")
    }
}

async fn answered(door: &mut IdentityClient<Channel>, credential: &str) -> Result<String, Code> {
    let request = with(&format!("MUNGE {credential}"), AuthenticateRequest {});
    let answer = door.authenticate(request).await;
    answer
        .map(|session| session.into_inner().token)
        .map_err(|status| status.code())
}

async fn challenged(door: &mut IdentityClient<Channel>) -> String {
    let challenge = door
        .get_challenge(ChallengeRequest {})
        .await
        .unwrap()
        .into_inner();
    munge_payload(&challenge.nonce, &challenge.server)
}

async fn site(munged: &Munged) -> Site {
    let config = MungeConfig {
        socket: Some(munged.socket()),
        ..MungeConfig::default()
    };
    let mut site = Site::with(TenantPolicy::Open, Some(config)).await;
    let tenant = Tenant {
        members: vec![format!("uid:{}", nix::unistd::geteuid())],
        ..alice()
    };
    put(&mut site.local, tenant, true).await.unwrap();
    site
}

#[tokio::test]
async fn a_credential_opens_one_session_of_its_users_tenant() {
    let Some(munged) = Munged::start() else { return };
    let site = site(&munged).await;
    let channel = site.stranger();
    let mut door = IdentityClient::new(channel.clone());
    let credential = munged.credential(&challenged(&mut door).await);
    let token = answered(&mut door, &credential).await.expect("let in");
    let mut client = ManagerClient::new(channel);
    assert_eq!(
        code(client.get_info(bearer(&token, InfoRequest {})).await),
        Code::Ok
    );
    let shut = client
        .shutdown(bearer(&token, hotlease_wire::grpc::ShutdownRequest {}))
        .await;
    assert_eq!(
        code(shut),
        Code::PermissionDenied,
        "root of the cluster is an operator of the site"
    );
    // Again: on this connection with its next challenge, and on another.
    assert_eq!(
        answered(&mut door, &credential).await,
        Err(Code::Unauthenticated),
        "replayed without a challenge"
    );
    challenged(&mut door).await;
    assert_eq!(
        answered(&mut door, &credential).await,
        Err(Code::Unauthenticated),
        "replayed with another challenge"
    );
    let mut other = IdentityClient::new(site.stranger());
    challenged(&mut other).await;
    assert_eq!(
        answered(&mut other, &credential).await,
        Err(Code::Unauthenticated),
        "replayed elsewhere"
    );
}

/// Credentials that `munged` itself accepts, because it has not seen them before.
#[tokio::test]
async fn a_fresh_credential_for_something_else_is_refused() {
    let Some(munged) = Munged::start() else { return };
    let site = site(&munged).await;
    let mut door = IdentityClient::new(site.stranger());
    let uid = format!("--restrict-uid={}", nix::unistd::geteuid());
    let mut other = IdentityClient::new(site.stranger());
    let others = munged.credential(&challenged(&mut other).await);
    challenged(&mut door).await;
    assert_eq!(
        answered(&mut door, &others).await,
        Err(Code::Unauthenticated),
        "another connection's nonce"
    );

    let challenge = door
        .get_challenge(ChallengeRequest {})
        .await
        .unwrap()
        .into_inner();
    let elsewhere = munged.credential(&munge_payload(&challenge.nonce, &[7; 32]));
    assert_eq!(
        answered(&mut door, &elsewhere).await,
        Err(Code::Unauthenticated),
        "made for another server"
    );

    let payload = challenged(&mut door).await;
    let unrestricted = munged.try_credential(&payload, &["--ttl=60"]).expect("made");
    assert_eq!(
        answered(&mut door, &unrestricted).await,
        Err(Code::Unauthenticated),
        "anybody may decode it"
    );

    let payload = challenged(&mut door).await;
    let long = munged
        .try_credential(&payload, &[&uid, "--ttl=1000"])
        .expect("made");
    assert_eq!(
        answered(&mut door, &long).await,
        Err(Code::Unauthenticated),
        "it lives for too long"
    );

    let payload = challenged(&mut door).await;
    let for_another = munged
        .try_credential(&payload, &["--restrict-uid=54321", "--ttl=60"])
        .expect("made");
    assert_eq!(
        answered(&mut door, &for_another).await,
        Err(Code::Unauthenticated),
        "it is for another user"
    );

    let good = munged.credential(&challenged(&mut door).await);
    let cut = format!("{}:", &good[..good.len() / 2]);
    assert_eq!(
        answered(&mut door, &cut).await,
        Err(Code::Unauthenticated),
        "half of one"
    );
    assert_eq!(
        answered(&mut door, &good).await,
        Err(Code::Unauthenticated),
        "its nonce was used by the wrong one"
    );

    // And the way is open all the same.
    let good = munged.credential(&challenged(&mut door).await);
    assert!(answered(&mut door, &good).await.is_ok());
}

#[tokio::test]
async fn another_clusters_key_opens_nothing() {
    let (Some(munged), Some(foreign)) = (Munged::start(), Munged::start()) else {
        return;
    };
    let site = site(&munged).await;
    let mut door = IdentityClient::new(site.stranger());
    let credential = foreign.credential(&challenged(&mut door).await);
    assert_eq!(answered(&mut door, &credential).await, Err(Code::Unauthenticated));
}
