//! What systemd is told of this process (`Type=notify`): a unit is up when what it is for can be used, so that the next
//! command of an operator finds it.

use sd_notify::NotifyState;

/// It can be used. Nobody is told where nobody asked.
pub(crate) fn ready() {
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::warn!(%error, "systemd cannot be told that this is ready");
    }
}
