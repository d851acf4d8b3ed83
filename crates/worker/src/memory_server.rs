//! The memory server: a worker without slots, which holds the memory block of its lease for the lease's client.
//!
//! It provides the block's pages, and registers the block with a fabric for clients of other hosts. It never reads or
//! writes the block itself.

use hotlease_fabric::memory::block::MappedBlock;
use hotlease_fabric::ofi::{Access, Libfabric, OfiError, Port, PortOptions, PortPeer, Registration, providers};
use hotlease_wire::Rejection;
use hotlease_wire::fabric::{PortAddress, RmaMemory};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Bytes whose pages are reserved in one system call: about 10 ms.
const RESERVED_AT_ONCE: u64 = 64 << 20;
/// Longest sleep of a port's thread, in case a provider misses a wake-up.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// The memory block of a lease, and the ports over which it is reached.
pub struct MemoryServer {
    block: Arc<MappedBlock>,
    reserved: Arc<ReservedPages>,
    library: Option<Arc<Libfabric>>,
    /// The block's registration with a port of each provider that a client has asked for.
    registrations: BTreeMap<&'static str, (Arc<Port>, Registration)>,
}

/// Progress of the reservation of a block's pages.
#[derive(Default)]
struct ReservedPages {
    bytes: AtomicU64,
    failure: OnceLock<String>,
}

impl MemoryServer {
    /// Attaches the agent's block, and begins to reserve its pages on another thread.
    pub fn start(fd: OwnedFd, size_bytes: u64) -> Result<Self, String> {
        let block = MappedBlock::attach(fd, size_bytes).map_err(|error| error.to_string())?;
        let (block, reserved) = (Arc::new(block), Arc::new(ReservedPages::default()));
        let (theirs, progress) = (block.clone(), reserved.clone());
        crate::program::spawn("reserve", move || progress.reserve(&theirs))?;
        Ok(Self {
            block,
            reserved,
            library: None,
            registrations: BTreeMap::new(),
        })
    }

    /// Size of the block, and number of bytes whose pages are reserved so far.
    pub fn progress(&self) -> Result<(u64, u64), Rejection> {
        match self.reserved.failure.get() {
            Some(why) => Err(Rejection::Unavailable { what: why.clone() }),
            // Acquire pairs with the release in `reserve`: the pages exist when the client hears of them.
            None => Ok((self.block.size_bytes(), self.reserved.bytes.load(Ordering::Acquire))),
        }
    }

    fn check_reserved(&self) -> Result<(), Rejection> {
        let (size, reserved) = self.progress()?;
        match reserved == size {
            true => Ok(()),
            false => Err(Rejection::BadRequest {
                what: format!("{reserved} of the block's {size} bytes are reserved so far: wait for the others"),
            }),
        }
    }

    /// A descriptor of the block for a client of this node.
    pub fn share(&self) -> Result<OwnedFd, Rejection> {
        self.check_reserved()?;
        let memory = self.block.memory();
        memory
            .fd()
            .try_clone_to_owned()
            .map_err(|error| Rejection::Unavailable {
                what: format!("a descriptor of a memory block: {error}"),
            })
    }

    /// Registers the block with a port, and adds a client's port to its peers. `host` chooses the interface of a new
    /// port.
    pub fn link(
        &mut self,
        client: &PortAddress,
        key: u64,
        host: Option<IpAddr>,
    ) -> Result<(PortAddress, RmaMemory, PortPeer), Rejection> {
        self.check_reserved()?;
        let size = self.block.size_bytes();
        let (port, registration) = self.registration(&client.provider, host)?;
        let peer = port.peer(client, key).map_err(|error| unavailable(&error))?;
        // The registered memory is longer: the page of the mark follows.
        let memory = RmaMemory {
            size,
            ..*registration.remote()
        };
        Ok((port.address(), memory, peer))
    }

    fn registration(&mut self, provider: &str, host: Option<IpAddr>) -> Result<&(Arc<Port>, Registration), Rejection> {
        let known = self.registrations.get(provider);
        if known.is_none_or(|(port, _)| port.failure().is_some()) {
            let (port, registration) = self.register(provider, host)?;
            self.registrations.insert(port.provider(), (port, registration));
        }
        self.registrations.get(provider).ok_or_else(|| Rejection::Unavailable {
            what: format!("provider {provider} is known by another name here"),
        })
    }

    fn register(&mut self, provider: &str, host: Option<IpAddr>) -> Result<(Arc<Port>, Registration), Rejection> {
        let library = match &self.library {
            Some(library) => library.clone(),
            None => Libfabric::load().map_err(|error| unavailable(&error))?,
        };
        self.library = Some(library.clone());
        let open = || {
            let port = Port::open_with(
                &providers::find_provider(&library, provider, host)?,
                PortOptions::default(),
            )?;
            let registration = port.register(self.block.memory(), Access::PeerReadsAndWrites)?;
            Ok((port, registration))
        };
        let (port, registration) = open().map_err(|error: OfiError| unavailable(&error))?;
        drive(port.clone()).map_err(|what| Rejection::Unavailable { what })?;
        Ok((port, registration))
    }
}

impl ReservedPages {
    fn reserve(&self, block: &MappedBlock) {
        let mut done = 0;
        while done < block.size_bytes() {
            let next = RESERVED_AT_ONCE.min(block.size_bytes() - done);
            if let Err(error) = block.reserve(done, next) {
                let size = block.size_bytes();
                let _ = self
                    .failure
                    .set(format!("the node has no {size} bytes of memory now: {error}"));
                return;
            }
            done += next;
            // Release pairs with the acquire in `progress`.
            self.bytes.store(done, Ordering::Release);
        }
    }
}

/// Starts a thread that serves a port until the port fails: software providers carry out a peer's RMA on this thread.
fn drive(port: Arc<Port>) -> Result<(), String> {
    crate::program::spawn("memory-port", move || {
        while port.failure().is_none() {
            port.sleep(SLEEP_MAX, || false);
        }
    })
}

fn unavailable(error: &OfiError) -> Rejection {
    Rejection::Unavailable {
        what: format!("a memory block over the fabric: {error}"),
    }
}
