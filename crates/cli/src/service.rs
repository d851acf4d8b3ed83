//! Notification of systemd (`Type=notify`): a unit counts as started when its service can be used, so that an
//! operator's next command finds it.

use sd_notify::NotifyState;

/// Tells systemd that the service can be used; does nothing outside of such a unit.
pub(crate) fn ready() {
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::warn!(%error, "systemd cannot be told that this is ready");
    }
}
