//! Attempts to escape, one file for each line of the threat model.

mod agent;
mod devices;
mod ending;
mod files;
mod floods;
mod grants;
mod identity;
mod ipc;
mod kernel;
mod keys;
mod machine;
mod mounts;
mod namespaces;
mod network;
mod processes;

use crate::attempt::Theme;

/// All attempts, grouped by threat.
pub fn themes() -> &'static [Theme] {
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
        machine::THEME,
        grants::THEME,
        floods::THEME,
        ending::THEME,
    ]
}
