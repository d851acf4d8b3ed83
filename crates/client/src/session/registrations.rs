//! Registrations of memory with one worker, within limits: memory not used lately makes room for new memory.
//!
//! The order of use is kept approximately, by the clock algorithm of operating systems: each use marks its buffer; a
//! search for room skips a marked buffer once and removes the mark. An exact order would cost each invocation a lock.

use crate::Error;
use crate::options::LeaseOptions;
use crate::session::region::Region;
use crate::session::transport::Transport;
use hotlease_fabric::fence;
use hotlease_fabric::ofi::Registration;
use hotlease_wire::ids::RegionId;
use std::collections::VecDeque;
use std::sync::Weak;

/// Limits of the memory that is registered with a worker at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegistrationLimits {
    pub(crate) buffers: usize,
    pub(crate) bytes: u64,
}

impl RegistrationLimits {
    /// Limits of each connection of a lease with these options.
    pub(crate) fn of(options: &LeaseOptions, transport: &Transport) -> Self {
        Self {
            buffers: options.registered_buffers as usize,
            bytes: match transport {
                Transport::Shm => u64::MAX,
                Transport::Ofi { .. } => options.registered_bytes,
            },
        }
    }
}

/// Memory that is registered with the worker.
pub(crate) struct KnownRegion {
    pub(crate) id: RegionId,
    /// Dangling when the buffer is gone: then the registration may be removed at once.
    pub(crate) region: Weak<Region>,
    pub(crate) size_bytes: u64,
    /// Over a fabric: the registration that lets the worker read and write the memory.
    pub(crate) _registration: Option<Registration>,
}

/// All registrations with one worker. Changed on the control thread only, by one request to the worker at a time.
pub(crate) struct Registrations {
    limits: RegistrationLimits,
    /// The front is considered first.
    known: VecDeque<KnownRegion>,
    size_bytes: u64,
}

impl Registrations {
    pub(crate) fn new(limits: RegistrationLimits) -> Self {
        Self {
            limits,
            known: VecDeque::new(),
            size_bytes: 0,
        }
    }

    /// Refuses memory that would not fit even if it were the only registration.
    pub(crate) fn check(&self, size_bytes: u64) -> Result<(), Error> {
        if size_bytes <= self.limits.bytes {
            return Ok(());
        }
        Err(Error::Unregistered {
            size_bytes,
            why: format!(
                "`registered_bytes` of the lease is {}; lease with more, or use smaller buffers",
                self.limits.bytes
            ),
        })
    }

    /// Whether another registration must be removed first.
    pub(crate) fn is_full_for(&self, size_bytes: u64) -> bool {
        self.known.len() >= self.limits.buffers || self.size_bytes + size_bytes > self.limits.bytes
    }

    /// The error when all registrations that fill the limits are in use.
    pub(crate) fn in_use(&self, size_bytes: u64) -> Error {
        let (buffers, bytes) = (self.known.len(), self.size_bytes);
        let option = if buffers >= self.limits.buffers {
            "registered_buffers"
        } else {
            "registered_bytes"
        };
        if !fence::heavy() {
            let why = format!(
                "{buffers} buffers ({bytes} bytes) are registered, and this kernel lacks membarrier(2), without which \
                 none of them can be closed; drop some, or lease with a larger `{option}`"
            );
            return Error::Unregistered { size_bytes, why };
        }
        Error::BuffersInUse {
            size_bytes,
            buffers,
            bytes,
            option,
        }
    }

    /// Removes a registration that no invocation in flight uses and that was not used lately; the caller must tell
    /// the worker. From now on an invocation that uses the buffer registers it again.
    pub(crate) fn take_idle(&mut self, connection: u64) -> Option<KnownRegion> {
        // Goes around twice, because the first round may only remove marks.
        for _ in 0..2 * self.known.len() {
            let known = self.known.pop_front()?;
            let goes = match known.region.upgrade() {
                Some(region) => !region.take_mark(connection) && region.remove_connection(connection),
                None => true,
            };
            if goes {
                self.size_bytes -= known.size_bytes;
                return Some(known);
            }
            self.known.push_back(known);
        }
        None
    }

    pub(crate) fn put(&mut self, known: KnownRegion) {
        self.size_bytes += known.size_bytes;
        self.known.push_back(known);
    }

    /// Removes the registration of a buffer that is gone, unless it was removed before to make room.
    pub(crate) fn take(&mut self, id: RegionId) -> Option<KnownRegion> {
        let position = self.known.iter().position(|known| known.id == id)?;
        let known = self.known.remove(position)?;
        self.size_bytes -= known.size_bytes;
        Some(known)
    }
}
