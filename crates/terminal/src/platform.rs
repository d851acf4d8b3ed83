//! Connection of commands to the running platform: through its runtime directory, or on another host.

use crate::exit::CommandError;
use clap::Args;
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_manager::MANAGER_SOCKET;
use hotlease_net::{Credential, SiteAccess, SiteChannel, SiteOptions, grpc};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::Info;
use hotlease_wire::grpc::InfoRequest;
use hotlease_wire::grpc::manager_client::ManagerClient;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::transport::Endpoint;
use tonic::{Response, Status};

/// Longest wait for any response. The manager's own limits for requests to agents are below this limit.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Longest listing, bytes.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// The manager that a command talks to, and the proof of identity; shared by all commands.
#[derive(Debug, Clone, Default, Args)]
pub struct SiteArgs {
    /// The manager of a site, https://HOST:PORT, or several with commas between [default: this host's]
    #[arg(long, value_name = "URL", env = "HOTLEASE_MANAGER")]
    pub manager: Option<String>,
    /// Identity to show: a folder of `hotlease identity issue` [env: HOTLEASE_IDENTITY=] [default:
    /// hotlease/identity in the configuration directory]
    #[arg(long, value_name = "DIR", group = "proof")]
    pub identity: Option<PathBuf>,
    /// Use a key instead, in a file that only you can read [env: HOTLEASE_KEY_FILE=]
    #[arg(long, value_name = "FILE", group = "proof")]
    key_file: Option<PathBuf>,
    /// Use a token (JWT) instead; its file is read again for each session [env: HOTLEASE_TOKEN_FILE=]
    #[arg(long, value_name = "FILE", group = "proof")]
    token_file: Option<PathBuf>,
    /// Identify as this user of the MUNGE cluster instead [env: HOTLEASE_MUNGE=1]
    #[arg(long, group = "proof")]
    munge: bool,
    /// Socket of munged, if it is not the usual one [env: HOTLEASE_MUNGE_SOCKET=]
    #[arg(long, value_name = "PATH", requires = "munge")]
    munge_socket: Option<PathBuf>,
    /// The site's ca.pem, for keys, tokens and MUNGE [env: HOTLEASE_CA_FILE=] [default: hotlease/ca.pem in the
    /// configuration directory]
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

impl SiteArgs {
    /// Returns the site that the arguments, the environment or the batch job name; `None` for this host's platform.
    pub fn site(&self) -> anyhow::Result<Option<SiteAccess>> {
        let credential = self.credential();
        Ok(SiteAccess::find(SiteOptions {
            manager: self.manager.as_deref(),
            is_local: false,
            identity: self.identity.as_deref(),
            credential: credential.as_ref(),
            authority: self.ca_file.as_deref(),
        })?)
    }

    /// Credential to use instead of a certificate, if the arguments name one.
    pub fn credential(&self) -> Option<Credential> {
        let munge = self.munge.then(|| Credential::Munge {
            socket: self.munge_socket.clone(),
        });
        let key = self.key_file.clone().map(Credential::KeyFile);
        let token = self.token_file.clone().map(Credential::TokenFile);
        key.or(token).or(munge)
    }
}

/// A connection to the manager, for commands that send one request after the other.
pub struct Platform {
    runtime: Runtime,
    client: ManagerClient<SiteChannel>,
}

impl Platform {
    /// Connects; fails with [`CommandError::NotRunning`] if no manager serves.
    pub fn connect(dir: &RuntimeDir) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(connect(&dir.join(MANAGER_SOCKET)))?;
        Ok(Self { runtime, client })
    }

    /// Connects to the manager that the arguments name. Fails like [`connect`](Self::connect), or, for a manager on
    /// another host, at the first request.
    pub fn of(args: &SiteArgs) -> anyhow::Result<Self> {
        match args.site()? {
            Some(site) => Self::of_site(&site),
            None => Self::connect(&RuntimeDir::resolve()?),
        }
    }

    /// Prepares a connection to a manager on another host.
    pub fn of_site(site: &SiteAccess) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let within = runtime.enter();
        let channel = site.channel();
        drop(within);
        let client = ManagerClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        Ok(Self { runtime, client })
    }

    /// Sends one request and waits for the response.
    pub fn request<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut ManagerClient<SiteChannel>) -> Result<Response<T>, Status>,
    ) -> anyhow::Result<T> {
        let asked = async { tokio::time::timeout(ANSWER_WITHIN, question(&mut self.client)).await };
        match self.runtime.block_on(asked) {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(match grpc::cause(&status) {
                Some(error) => error.clone().into(),
                None => Rejection::from(status).into(),
            }),
            Err(_) => Err(Rejection::Timeout {
                what: "the manager".into(),
                after_ms: ANSWER_WITHIN.as_millis() as u64,
            }
            .into()),
        }
    }

    /// Version, pid and counts of the manager.
    pub fn info(&mut self) -> anyhow::Result<Info> {
        self.request(async |client| client.get_info(InfoRequest {}).await)
    }
}

async fn connect(socket: &Path) -> anyhow::Result<ManagerClient<SiteChannel>> {
    let shown = socket.display().to_string();
    // A plain connection is tried first: it distinguishes a platform that is not running from a platform with a fault.
    if let Err(error) = UnixStream::connect(socket).await {
        return Err(match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => CommandError::NotRunning { socket: shown }.into(),
            _ => anyhow::Error::new(error).context(format!("cannot connect to the manager at {shown}")),
        });
    }
    let endpoint = Endpoint::from_shared(format!("unix:{shown}"))?;
    let channel = endpoint.connect().await?;
    Ok(ManagerClient::new(SiteChannel::from(channel)).max_decoding_message_size(ANSWER_BYTES_MAX))
}
