//! The memory block of a memory server: how its client reaches it.

use super::{REQUEST_LIMIT, WORKER, WorkerConnection, blocking, failed, unexpected};
use crate::Error;
use crate::options::LeaseOptions;
use crate::session::death::DeathKind;
use crate::session::transport::{self, Transport};
use hotlease_fabric::foreign::ForeignDescriptor;
use hotlease_fabric::memory::block::{BlockError, MappedBlock};
use hotlease_fabric::ofi::{OfiError, Port, RemoteBlock};
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest};
use hotlease_wire::fabric::{PortAddress, RmaMemory};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest pause between two looks whether all pages of a block are reserved.
const LOOK_MAX: Duration = Duration::from_millis(20);

/// A memory block, reached over one of the transports.
pub(crate) enum BlockAccess {
    /// The block is on this node.
    Shared(MappedBlock),
    /// The block is reached over a fabric.
    Fabric(RemoteBlock),
}

impl BlockAccess {
    pub(crate) fn transport(&self) -> &'static str {
        match self {
            Self::Shared(_) => "shm",
            Self::Fabric(block) => block.provider(),
        }
    }

    pub(crate) fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), AccessError> {
        match self {
            Self::Shared(block) => Ok(block.read_at(bytes, offset)?),
            Self::Fabric(block) => Ok(block.read_at(bytes, offset)?),
        }
    }

    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), AccessError> {
        match self {
            Self::Shared(block) => Ok(block.write_at(bytes, offset)?),
            Self::Fabric(block) => Ok(block.write_at(bytes, offset)?),
        }
    }
}

/// Reason why a copy to or from a block failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessError {
    #[error("{0}")]
    Shared(#[from] BlockError),
    #[error("{0}")]
    Fabric(#[from] OfiError),
}

impl WorkerConnection {
    /// Waits until the memory server has reserved its block, and makes the block accessible.
    pub(crate) async fn open_memory(&self, size_bytes: u64, options: &LeaseOptions) -> Result<BlockAccess, Error> {
        self.await_reserved(size_bytes).await?;
        let Transport::Ofi { provider, route } = &self.transport else {
            return self.share_memory(size_bytes).await.map(BlockAccess::Shared);
        };
        let host = route.host;
        let link = |port: Arc<Port>| self.link_memory(port, size_bytes, host);
        let port_options = transport::port_options(options.completion);
        let found = self.find_provider(provider.as_deref(), port_options, link).await?;
        Ok(BlockAccess::Fabric(found))
    }

    /// Waits until all pages are reserved. Gives up when no more pages were reserved for [`REQUEST_LIMIT`].
    async fn await_reserved(&self, size_bytes: u64) -> Result<(), Error> {
        let (mut known, mut since, mut pause) = (0, Instant::now(), Duration::from_micros(200));
        loop {
            let answer = self.link.ask(&ConnectionRequest::Memory, &[], WORKER, REQUEST_LIMIT);
            let reserved = match answer.await {
                Ok((ConnectionReply::Memory { size_bytes: size, .. }, _)) if size != size_bytes => {
                    return Err(Error::protocol(format!(
                        "the memory server has a block of {size} bytes instead of {size_bytes}"
                    )));
                }
                Ok((ConnectionReply::Memory { reserved_bytes, .. }, _)) => reserved_bytes,
                other => return Err(unexpected("Memory", other)),
            };
            if reserved >= size_bytes {
                return Ok(());
            }
            if reserved > known {
                (known, since) = (reserved, Instant::now());
            }
            if since.elapsed() > REQUEST_LIMIT {
                return Err(Error::no_answer(
                    "the memory server, which reserves the pages of its block",
                    REQUEST_LIMIT,
                ));
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LOOK_MAX);
        }
    }

    async fn share_memory(&self, size_bytes: u64) -> Result<MappedBlock, Error> {
        let answer = self
            .link
            .ask(&ConnectionRequest::ShareMemory, &[], WORKER, REQUEST_LIMIT);
        match answer.await {
            Ok((ConnectionReply::Done, fds)) => {
                let memory = fds.into_iter().map(ForeignDescriptor::into_memory);
                let memory: Vec<OwnedFd> = memory.collect::<Result<_, _>>().unwrap_or_default();
                let Ok([block]) = <[OwnedFd; 1]>::try_from(memory) else {
                    return Err(Error::protocol("the memory server must send one descriptor of memory"));
                };
                let block = MappedBlock::attach(block, size_bytes)?;
                let populated = blocking(move || {
                    block.populate();
                    block
                });
                populated.await
            }
            other => Err(unexpected("ShareMemory", other)),
        }
    }

    async fn link_memory(&self, port: Arc<Port>, size_bytes: u64, host: IpAddr) -> Result<RemoteBlock, Error> {
        let key = Port::draw_key();
        let link = ConnectionRequest::LinkMemory {
            port: port.address(),
            key,
            host: Some(host),
        };
        let answer = self.link.ask(&link, &[], WORKER, REQUEST_LIMIT).await;
        let (server, memory): (PortAddress, RmaMemory) = match answer {
            Ok((ConnectionReply::MemoryLinked { port, memory }, _)) => (port, memory),
            other => return Err(unexpected("LinkMemory", other)),
        };
        if memory.size != size_bytes {
            return Err(Error::protocol("the memory server has registered another block"));
        }
        let reaching = port.clone();
        let peer = blocking(move || transport::connect_peer(&reaching, &server, key)).await?;
        let peer = peer.map_err(|error| failed(&error))?;
        Ok(RemoteBlock::new(port, peer, memory))
    }

    /// Why the block is lost; waits a moment for the agent's report. `None` if the memory server seems to be alive.
    pub(crate) async fn memory_loss(&self) -> Option<String> {
        let until = Instant::now() + super::NEWS_LIMIT;
        while self.death.get().is_none() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let death = self.death.get()?;
        Some(match &death.kind {
            DeathKind::Worker { cause, .. } => format!("its memory server died: {cause}"),
            DeathKind::Lease(reason) => format!("its lease has ended: {reason}"),
            DeathKind::Agent => "the session with its agent is gone".into(),
            DeathKind::Silent => "its memory server closed the connection, and the agent has not reported why".into(),
            DeathKind::Unreachable(why) | DeathKind::Broken(why) => format!("its memory server is lost: {why}"),
            DeathKind::Deallocated => "it was given back".into(),
        })
    }
}
