//! Fetching an environment from another agent.

use hotlease_image::{ArrivalInfo, ImageId, ImageOffer, Neighbours};
use hotlease_net::grpc::refusal;
use hotlease_net::{Address, CertificateRole, Identity, grpc};
use hotlease_wire::grpc::agent_client::AgentClient;
use hotlease_wire::grpc::manager_client::ManagerClient;
use hotlease_wire::grpc::{FindImageRequest, ReadImageRequest};
use hotlease_wire::ids::AgentId;
use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Channel;

/// Largest number of agents that are asked for one environment before the store is read.
const ASKED_MAX: usize = 3;
/// Time in which the manager must name an agent.
const NAME_LIMIT: Duration = Duration::from_secs(3);
/// Longest wait for a piece from an agent. That agent itself waits less long for its next piece.
const STALL_LIMIT: Duration = Duration::from_secs(15);
/// Largest number of pieces that wait to be written.
const PIECES_MAX: usize = 4;

/// Access to the other agents of the manager. Finds no agent until the manager is set.
#[derive(Clone)]
pub(crate) struct OtherAgents {
    agent: AgentId,
    identity: Arc<Identity>,
    manager: Arc<OnceLock<ManagerClient<Channel>>>,
    runtime: Handle,
}

impl fmt::Debug for OtherAgents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherAgents")
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}

/// Message from the task that talks to the other agent.
enum TransferMessage {
    /// The transfer has begun; length of the image, bytes.
    Begun {
        bytes: u64,
    },
    Piece(Vec<u8>),
    /// The transfer is complete.
    End,
    Failed(String),
}

impl OtherAgents {
    /// Access of this agent to the other agents. Must be called on the runtime.
    pub fn new(agent: AgentId, identity: Arc<Identity>) -> Self {
        Self {
            agent,
            identity,
            manager: Arc::default(),
            runtime: Handle::current(),
        }
    }

    /// Sets the manager that names agents. Must be called only once.
    pub fn set_manager(&self, channel: Channel) {
        let set = self.manager.set(ManagerClient::new(channel));
        debug_assert!(set.is_ok(), "an agent has one manager");
    }

    /// Asks the manager for an agent that has the image; returns its id and address.
    async fn find(&self, id: &ImageId, without: String) -> Option<(String, Address)> {
        let mut manager = self.manager.get()?.clone();
        let request = FindImageRequest {
            agent: self.agent.to_string(),
            image: id.to_string(),
            without,
        };
        let found = match timeout(NAME_LIMIT, manager.find_image(request)).await {
            Ok(Ok(found)) => found.into_inner(),
            Ok(Err(status)) => {
                let refusal = refusal(status);
                tracing::debug!(environment = %id, %refusal, "the manager names no agent to read it from");
                return None;
            }
            Err(_) => return None,
        };
        let address = found.endpoint.parse().ok()?;
        Some((found.agent, address))
    }

    /// Reads the image from an agent. Ends early if the receiver is gone.
    async fn read(
        &self,
        (id, behind): (&ImageId, u64),
        address: Address,
        messages: &mpsc::Sender<TransferMessage>,
    ) -> Result<(), String> {
        let refused = |status: Status| refusal(status).to_string();
        let silent = |_| format!("nothing came for {} s", STALL_LIMIT.as_secs());
        let channel = grpc::channel(address, Arc::clone(&self.identity), CertificateRole::Agent);
        let mut other = AgentClient::new(channel);
        let request = ReadImageRequest {
            image: id.to_string(),
            behind,
        };
        let begun = timeout(STALL_LIMIT, other.read_image(request)).await;
        let mut pieces = begun.map_err(silent)?.map_err(refused)?.into_inner();
        let mut has_begun = false;
        loop {
            let piece = timeout(STALL_LIMIT, pieces.message()).await;
            let message = match piece.map_err(silent)?.map_err(refused)? {
                Some(piece) if has_begun => TransferMessage::Piece(piece.content),
                Some(first) => TransferMessage::Begun {
                    bytes: first.total_bytes,
                },
                None => TransferMessage::End,
            };
            has_begun = true;
            let is_end = matches!(message, TransferMessage::End);
            if messages.send(message).await.is_err() || is_end {
                return Ok(());
            }
        }
    }

    /// Waits until another agent has begun to send, or has failed.
    fn begin(&self, what: (ImageId, u64), (agent, address): (&str, Address)) -> Result<ImageOffer, String> {
        let (sender, mut messages) = mpsc::channel(PIECES_MAX);
        let others = self.clone();
        self.runtime.spawn(async move {
            if let Err(why) = others.read((&what.0, what.1), address, &sender).await {
                // The receiver is gone if an earlier piece was wrong.
                let _ = sender.send(TransferMessage::Failed(why)).await;
            }
        });
        match messages.blocking_recv() {
            Some(TransferMessage::Begun { bytes }) => Ok(ImageOffer {
                from: format!("agent {agent}"),
                bytes,
                content: Box::new(PieceReader {
                    messages,
                    piece: Vec::new(),
                    at: 0,
                }),
            }),
            Some(TransferMessage::Failed(why)) => Err(why),
            Some(TransferMessage::Piece(_) | TransferMessage::End) | None => Err("it sent nothing".into()),
        }
    }

    fn name(&self, id: ImageId, without: String) -> Option<(String, Address)> {
        let (sender, mut named) = mpsc::channel(1);
        let others = self.clone();
        self.runtime.spawn(async move {
            if let Some(found) = others.find(&id, without).await {
                // Cannot fail: the asking thread waits for this message.
                let _ = sender.send(found).await;
            }
        });
        named.blocking_recv()
    }
}

impl Neighbours for OtherAgents {
    fn offers<'a>(&'a self, id: &ImageId, at: &'a Cell<u64>) -> Box<dyn Iterator<Item = ImageOffer> + 'a> {
        let (id, mut without) = (*id, String::new());
        let mut asked = 0;
        let next = move || {
            while asked < ASKED_MAX {
                asked += 1;
                let (agent, address) = self.name(id, without.clone())?;
                tracing::debug!(environment = %id, agent, %address, behind = at.get(), "reading it from another agent");
                let begun = self.begin((id, at.get()), (&agent, address));
                without = agent;
                match begun {
                    Ok(offer) => return Some(offer),
                    Err(why) => {
                        tracing::debug!(environment = %id, agent = without, why, "it is not read from there")
                    }
                }
            }
            None
        };
        Box::new(std::iter::from_fn(next))
    }

    fn arrived(&self, id: &ImageId, arrived: &ArrivalInfo<'_>) {
        let ArrivalInfo { from, bytes, took } = arrived;
        // The only place where an operator sees which node passed an image on: the lines of all nodes together form the
        // tree.
        tracing::info!(environment = %id, from = %from.display(), bytes, took_ms = took.as_millis() as u64, "environment fetched");
    }
}

/// Reader of the pieces that arrive.
struct PieceReader {
    messages: mpsc::Receiver<TransferMessage>,
    piece: Vec<u8>,
    at: usize,
}

impl Read for PieceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() {
            match self.messages.blocking_recv() {
                Some(TransferMessage::Piece(piece)) => (self.piece, self.at) = (piece, 0),
                Some(TransferMessage::End) => return Ok(0),
                Some(TransferMessage::Failed(why)) => return Err(io::Error::other(why)),
                // The runtime ends.
                Some(TransferMessage::Begun { .. }) | None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let read = (&self.piece[self.at..]).read(buffer)?;
        self.at += read;
        Ok(read)
    }
}
