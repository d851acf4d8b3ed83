//! Notice that other clients find no room on a node where this client has a lease.

use std::fmt;
use std::sync::OnceLock;

/// Receiver of the notice, if the program has set one.
#[derive(Default)]
pub(crate) struct RoomNotice(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl RoomNotice {
    /// Sets the receiver, once.
    pub(crate) fn set(&self, receiver: Box<dyn Fn() + Send + Sync>) {
        // A second receiver has no effect.
        let _ = self.0.set(receiver);
    }

    /// Calls the receiver.
    pub(crate) fn tell(&self) {
        if let Some(receiver) = self.0.get() {
            receiver();
        }
    }
}

impl fmt::Debug for RoomNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RoomNotice").field(&self.0.get().is_some()).finish()
    }
}
