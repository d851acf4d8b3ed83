//! The running platform, as commands reach it: its runtime directory and its manager.

use crate::exit::CommandError;
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_manager::MANAGER_SOCKET;
use hotlease_wire::Refusal;
use hotlease_wire::grpc::Info;
use hotlease_wire::grpc::InfoRequest;
use hotlease_wire::grpc::manager_client::ManagerClient;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// How long any answer may take. The manager's own limits for asking agents are below this.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Longest listing.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// A connection to the manager, for commands that ask one thing after the other.
pub(crate) struct Platform {
    runtime: Runtime,
    client: ManagerClient<Channel>,
}

impl Platform {
    /// Connects; [`CommandError::NotRunning`] if nobody is there.
    pub(crate) fn connect(dir: &RuntimeDir) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let client = runtime.block_on(connect(&dir.join(MANAGER_SOCKET)))?;
        Ok(Self { runtime, client })
    }

    /// One question.
    pub(crate) fn ask<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut ManagerClient<Channel>) -> Result<Response<T>, Status>,
    ) -> anyhow::Result<T> {
        let asked = async { tokio::time::timeout(ANSWER_WITHIN, question(&mut self.client)).await };
        match self.runtime.block_on(asked) {
            Ok(answer) => Ok(answer.map_err(Refusal::from)?.into_inner()),
            Err(_) => Err(Refusal::Timeout {
                what: "the manager".into(),
                after_ms: ANSWER_WITHIN.as_millis() as u64,
            }
            .into()),
        }
    }

    /// Version, pid and counts of the manager.
    pub(crate) fn info(&mut self) -> anyhow::Result<Info> {
        self.ask(async |client| client.get_info(InfoRequest {}).await)
    }
}

async fn connect(socket: &Path) -> anyhow::Result<ManagerClient<Channel>> {
    let shown = socket.display().to_string();
    // Connecting once by hand tells a platform that is down from one that is in trouble.
    if let Err(error) = UnixStream::connect(socket).await {
        return Err(match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                CommandError::NotRunning { socket: shown }.into()
            }
            _ => anyhow::Error::new(error).context(format!("cannot connect to the manager at {shown}")),
        });
    }
    let endpoint = Endpoint::from_shared(format!("unix:{shown}"))?;
    let channel = endpoint.connect().await?;
    Ok(ManagerClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX))
}
