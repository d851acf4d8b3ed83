//! Seats: the place of each slot of a lease in the gang that its functions run in.

use crate::control::Control;
use crate::invoker::Invoker;
use crate::lease::manager::site_of;
use crate::session::connection::WorkerConnection;
use crate::{Error, LeaseOptions};
use hotlease_wire::comm::seat::Seat;
use hotlease_wire::ids::SlotIndex;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::{Arc, Weak};
use tokio::task::JoinSet;

/// The workers whose slots were assigned seats.
pub struct SeatedWorkers(Vec<Weak<WorkerConnection>>);

impl SeatedWorkers {
    /// Whether all of these workers are still alive, as far as is known.
    pub fn is_whole(&self) -> bool {
        self.0.iter().all(|connection| {
            let connection = connection.upgrade();
            connection.is_some_and(|connection| connection.death().is_none() && !connection.is_doomed())
        })
    }
}

impl Invoker {
    /// Assigns each slot its seat in a gang, in the order of slots: invocations that are submitted from now on find the
    /// seat. A worker that replaces one of these workers gets no seats.
    ///
    /// # Errors
    /// Errors of a worker that does not answer, or is gone; other workers may have got their seats by then.
    pub fn seat(&self, seats: Vec<Seat>) -> Result<SeatedWorkers, Error> {
        let slots = self.slots();
        if seats.len() != slots {
            let what = format!("{} seats for {slots} slots", seats.len());
            return Err(Error::Options { what });
        }
        let of_worker = usize::from(self.options().slots);
        let mut told = Vec::with_capacity(slots);
        for (slot, seat) in seats.into_iter().enumerate() {
            let channel = self.inner().last_channel(slot);
            let channel = channel.ok_or(Error::NoSuchSlot { index: slot, slots })?;
            told.push((SlotIndex((slot % of_worker) as u16), seat, channel.connection().clone()));
        }
        let seated = SeatedWorkers(told.iter().map(|(_, _, worker)| Arc::downgrade(worker)).collect());
        Control::get()?.run(async move {
            let mut all = JoinSet::new();
            for (slot, seat, worker) in told {
                all.spawn(async move { worker.seat(slot, seat).await });
            }
            while let Some(told) = all.join_next().await {
                told.map_err(|error| Error::failed_task(&error))??;
            }
            Ok(())
        })?;
        Ok(seated)
    }
}

impl LeaseOptions {
    /// The address at which the manager reaches this host, and most likely the workers do, too; 127.0.0.1 for a manager
    /// of this host. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Network`] if the manager's address is not valid, [`Error::Local`] if no route leads to it.
    pub fn own_address(&self) -> Result<IpAddr, Error> {
        let Some(manager) = site_of(self)?.and_then(|site| site.managers.into_iter().next()) else {
            return Ok(Ipv4Addr::LOCALHOST.into());
        };
        local_address_towards(&manager.authority())
            .map_err(Error::local("find this host's address towards the manager"))
    }
}

/// The local address from which this host sends to `host_and_port`.
fn local_address_towards(host_and_port: &str) -> io::Result<IpAddr> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for there in host_and_port.to_socket_addrs()? {
        let any: IpAddr = match there {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let from = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(there)?;
            socket.local_addr()
        });
        match from {
            Ok(from) => return Ok(from.ip()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_reached_by_itself() {
        assert_eq!(
            local_address_towards("127.0.0.1:1").expect("there is a way"),
            Ipv4Addr::LOCALHOST
        );
        let options = LeaseOptions {
            runtime_dir: Some("/nowhere".into()),
            ..LeaseOptions::default()
        };
        assert_eq!(options.own_address().expect("no manager is asked"), Ipv4Addr::LOCALHOST);
    }
}
