//! Registration of memory with the worker, and its removal.

use super::{REQUEST_LIMIT, WORKER, WorkerConnection, unexpected};
use crate::Error;
use crate::session::region::Region;
use crate::session::registrations::{KnownRegion, Registrations};
use hotlease_fabric::memory::Memory;
use hotlease_fabric::ofi::{Access, OfiError};
use hotlease_wire::Rejection;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest};
use hotlease_wire::ids::RegionId;
use std::sync::{Arc, Weak};

impl WorkerConnection {
    /// Registers memory with the worker. If there is no room, memory not used lately is deregistered.
    pub(crate) async fn register(&self, id: RegionId, region: Weak<Region>, memory: &Arc<Memory>) -> Result<(), Error> {
        let size_bytes = memory.size_bytes();
        // The lock is held until the worker has answered, so that a removal and the next registration reach the worker
        // in this order. The time limit ends this wait if the worker has stopped while another task holds the lock.
        let mut known = match tokio::time::timeout(REQUEST_LIMIT, self.registrations.lock()).await {
            Ok(known) => known,
            Err(_) => return Err(Error::no_answer(WORKER, REQUEST_LIMIT)),
        };
        known.check(size_bytes)?;
        while known.is_full_for(size_bytes) {
            let idle = self.take_idle(&mut known);
            self.forget(idle.ok_or_else(|| known.in_use(size_bytes))?).await?;
        }
        let (request, fds, registration) = match self.port.get() {
            None => {
                let register = ConnectionRequest::Register { region: id, size_bytes };
                (register, vec![memory.fd()], None)
            }
            Some(port) => {
                let attempt = || port.register(memory, Access::PeerReadsAndWrites);
                let registration = self.make_room_and_try(&mut known, size_bytes, attempt).await?;
                let memory = *registration.remote();
                let register = ConnectionRequest::RegisterFabric { region: id, memory };
                (register, Vec::new(), Some(registration))
            }
        };
        match self.link.ask(&request, &fds, WORKER, REQUEST_LIMIT).await {
            Ok((ConnectionReply::Done, _)) => {}
            Err(error) if self.is_lost(&error) => {}
            other => return Err(unexpected("Register", other)),
        }
        known.put(KnownRegion {
            id,
            region,
            size_bytes,
            _registration: registration,
        });
        Ok(())
    }

    /// Makes an attempt to register. If the provider has no room, closes unused registrations until `size_bytes` bytes
    /// are freed or none is left, and makes a second attempt if it has closed any.
    pub(crate) async fn make_room_and_try<R>(
        &self,
        known: &mut Registrations,
        size_bytes: u64,
        attempt: impl Fn() -> Result<R, OfiError>,
    ) -> Result<R, Error> {
        let first = match attempt() {
            Ok(registration) => return Ok(registration),
            Err(error) => error,
        };
        let (mut closed, mut freed) = (0, 0);
        while freed < size_bytes
            && let Some(idle) = self.take_idle(known)
        {
            (closed, freed) = (closed + 1, freed + idle.size_bytes);
            self.forget(idle).await?;
        }
        let again = if closed == 0 { Err(first) } else { attempt() };
        again.map_err(|error| Error::Unregistered {
            size_bytes,
            why: format!(
                "{error}, although {closed} that were not in use were closed for it; a process may lock only so \
                 much memory: raise that (`ulimit -l`), or lease with a smaller `registered_bytes`"
            ),
        })
    }

    /// Registrations and memory of the port.
    #[cfg(test)]
    pub(crate) fn holdings(&self) -> Option<hotlease_fabric::ofi::PortResources> {
        Some(self.port.get()?.holdings())
    }

    /// Deregisters from the worker the memory of a buffer that is gone.
    pub(crate) async fn deregister(&self, region: RegionId) {
        let gone = self.registrations.lock().await.take(region);
        if let Some(gone) = gone {
            // A worker that does not answer is dying, and its registrations end with it.
            let _ = self.forget(gone).await;
        }
    }

    /// Takes a registration that may be closed; `None` if there is none.
    fn take_idle(&self, known: &mut Registrations) -> Option<KnownRegion> {
        known.take_idle(self.id).or_else(|| {
            // An abandoned invocation counts as in flight until its ring entry is needed.
            for channel in self.channels().iter().filter_map(Weak::upgrade) {
                channel.release_answered();
            }
            known.take_idle(self.id)
        })
    }

    async fn forget(&self, known: KnownRegion) -> Result<(), Error> {
        let deregister = ConnectionRequest::Deregister { region: known.id };
        let answer = self.link.ask(&deregister, &[], WORKER, REQUEST_LIMIT).await;
        // The registration is closed on this side only now: the worker may use the memory until it has deregistered it.
        drop(known);
        match answer {
            Ok((ConnectionReply::Refused(refusal), _)) => {
                tracing::debug!(%refusal, "the worker did not forget a buffer");
                Ok(())
            }
            Err(error) if !self.is_lost(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether the worker is dead. The channel's error is then better, because it has the cause. (The socket may be
    /// closed before the cause is known.)
    fn is_lost(&self, error: &Error) -> bool {
        self.death.get().is_some() || matches!(error, Error::Refused(Rejection::Unavailable { .. }))
    }
}
