//! Which manager a client talks to: that of its own machine, or one on another host.

use crate::NetError;
use crate::address::Address;
use crate::identity::Identity;
use crate::peer::Role;
use std::env;
use std::path::Path;
use std::sync::Arc;

/// Environment variable that names the manager.
pub const MANAGER_VARIABLE: &str = "HOTLEASE_MANAGER";

/// A manager on another host, and who asks it.
#[derive(Debug, Clone)]
pub struct Site {
    /// The manager's.
    pub manager: Address,
    /// Ours, of role client.
    pub identity: Arc<Identity>,
}

impl Site {
    /// The manager that was asked for, else, unless `local` was, the one of `$HOTLEASE_MANAGER`; none: that of
    /// this machine. The identity is the one asked for, else [`Identity::default_dir`].
    pub fn find(
        manager: Option<&str>,
        identity: Option<&Path>,
        local: bool,
    ) -> Result<Option<Self>, NetError> {
        let variable = || env::var(MANAGER_VARIABLE).ok().filter(|_| !local);
        let Some(manager) = manager.map(str::to_owned).or_else(variable) else {
            return Ok(None);
        };
        if manager.is_empty() {
            return Ok(None);
        }
        let manager = manager.parse()?;
        let identity = match identity {
            Some(dir) => Identity::load_as(dir, Role::Client)?,
            None => Identity::load_as(&Identity::default_dir()?, Role::Client)?,
        };
        Ok(Some(Self {
            manager,
            identity: Arc::new(identity),
        }))
    }
}
