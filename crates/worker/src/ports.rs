//! The ports of a worker's slots: one for each slot and provider that a client has asked for.
//!
//! libfabric is loaded when the first client from another host asks for a port: a worker that serves only its own node
//! never maps libfabric.

use crate::slot::mailbox::{Mailbox, SlotMessage};
use hotlease_fabric::ofi::{Libfabric, OfiError, Port, PortOptions, providers};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// The ports of a worker's slots, and the library that they use.
pub struct SlotPorts {
    library: Option<Arc<Libfabric>>,
    /// Ports of each slot, by provider: at most as many as the table of providers has rows.
    ports: Vec<BTreeMap<&'static str, Arc<Port>>>,
    options: PortOptions,
}

impl SlotPorts {
    /// Makes an empty set. `sleep`: whether ports have a descriptor to sleep on.
    pub fn new(slots: usize, sleep: bool) -> Self {
        Self {
            library: None,
            ports: vec![BTreeMap::new(); slots],
            options: PortOptions {
                sleep,
                ..PortOptions::default()
            },
        }
    }

    /// Returns the port of a slot, and opens it if there is none. The slot drives the port from now on. `host` chooses
    /// the interface of a new port.
    pub fn port(
        &mut self,
        slot: usize,
        mailbox: &Mailbox,
        provider: &str,
        host: Option<IpAddr>,
    ) -> Result<Arc<Port>, OfiError> {
        if let Some(port) = self.ports[slot].get(provider)
            && port.failure().is_none()
        {
            return Ok(port.clone());
        }
        let library = match &self.library {
            Some(library) => library.clone(),
            None => Libfabric::load()?,
        };
        self.library = Some(library.clone());
        let port = Port::open_with(&providers::find_provider(&library, provider, host)?, self.options)?;
        self.ports[slot].insert(port.provider(), port.clone());
        mailbox.put(SlotMessage::Port(port.clone()));
        Ok(port)
    }
}
