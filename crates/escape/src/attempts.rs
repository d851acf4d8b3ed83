//! Attempts to escape, one file for each line of the threat model.

mod agent;
mod devices;
mod files;
mod floods;
mod grants;
mod host;
mod identity;
mod ipc;
mod kernel;
mod keys;
mod mounts;
mod namespaces;
mod network;
mod processes;
mod staying;

use crate::attempt::Threat;

/// All attempts, grouped by threat.
pub fn themes() -> &'static [Threat] {
    &[
        processes::THEME,
        agent::THEME,
        ipc::THEME,
        keys::THEME,
        files::THEME,
        devices::THEME,
        network::THEME,
        kernel::THEME,
        namespaces::THEME,
        mounts::THEME,
        identity::THEME,
        host::THEME,
        grants::THEME,
        floods::THEME,
        staying::THEME,
    ]
}
