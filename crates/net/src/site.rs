//! Which manager a client talks to: that of its own machine, or one on another host.

use crate::NetError;
use crate::address::Address;
use crate::grpc;
use crate::identity::Identity;
use crate::peer::Role;
use std::env;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use tonic::transport::Channel;

/// Environment variable that names the manager; several, separated by commas, where one serves and the others wait
/// to.
pub const MANAGER_VARIABLE: &str = "HOTLEASE_MANAGER";

/// The manager of a site, and who asks it.
#[derive(Debug, Clone)]
pub struct Site {
    /// The managers', of which one serves: at least one.
    pub managers: Vec<Address>,
    /// Ours, of role client.
    pub identity: Arc<Identity>,
}

impl Site {
    /// A channel to the manager that serves.
    pub fn channel(&self) -> Channel {
        grpc::channel_to_first(self.managers.clone(), Arc::clone(&self.identity), Role::Manager)
    }

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
        let managers = manager.split(',').map(|manager| manager.trim().parse());
        let managers = managers.collect::<Result<_, _>>()?;
        let identity = match identity {
            Some(dir) => Identity::load_as(dir, Role::Client)?,
            None => Identity::load_as(&Identity::default_dir()?, Role::Client)?,
        };
        Ok(Some(Self {
            managers,
            identity: Arc::new(identity),
        }))
    }
}

/// The managers, as they are shown and told one from another.
impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let managers: Vec<_> = self.managers.iter().map(Address::to_string).collect();
        f.write_str(&managers.join(","))
    }
}
