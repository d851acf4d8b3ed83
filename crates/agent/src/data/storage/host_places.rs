//! Places of connections at the host's loopback: which connection makes room for a new one, and how many connections
//! each tenant may have.
//!
//! Every process of the host can connect to the loopback port, and the address of its connection does not identify the
//! process. A connection is *unknown* until its first signed request has proved its lease. Unknown and known
//! connections have separate places.
//!
//! If all places of unknown connections are taken, a new connection takes the place of the connection that has been
//! unknown for longest. A connection can only be replaced after some time, and only if the kernel has no unread byte of
//! it: a client whose request was not read yet is not closed for others. If no connection can be replaced, the new
//! connection waits in the accept queue.
//!
//! A tenant may have at most as many known connections as there are free places. A tenant that is alone gets half of
//! the places, the next tenant half of the rest. So a few tenants that collude cannot keep others out.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Pause between two looks for room while all places of unknown connections are taken.
const ROOM_PAUSE: Duration = Duration::from_millis(50);

/// Limits of the connections at the host's loopback, of all leases and strangers.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostLimits {
    /// Largest number of connections that have not proved a lease.
    pub unknown: usize,
    /// Largest number of connections that have proved a lease.
    pub known: usize,
    /// Time after which an unknown connection is closed if a new one needs its place.
    pub silence: Duration,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self {
            unknown: 512,
            known: 1024,
            silence: Duration::from_millis(300),
        }
    }
}

/// Socket of an unknown connection.
trait UnknownSocket {
    /// Whether the kernel has no unread byte from the peer.
    fn is_quiet(&self) -> bool;
}

/// Duplicate of the descriptor that serves the connection; it does not block.
impl UnknownSocket for TcpStream {
    /// A connection that the peer has closed is quiet, too.
    fn is_quiet(&self) -> bool {
        !matches!(self.peek(&mut [0]), Ok(1..))
    }
}

/// Connections by number. Each new connection gets a higher number.
struct HostTable<S> {
    limits: HostLimits,
    unknown: BTreeMap<u64, (Instant, S)>,
    /// Counts of known connections by tenant, without zeros.
    of_tenants: HashMap<String, usize>,
    known: usize,
    next: u64,
}

impl<S: UnknownSocket> HostTable<S> {
    fn new(limits: HostLimits) -> Self {
        Self {
            limits,
            unknown: BTreeMap::new(),
            of_tenants: HashMap::new(),
            known: 0,
            next: 0,
        }
    }

    /// Adds an unknown connection. Returns its number and, if it replaces another connection, the socket to close.
    /// Fails with `socket` if there is no room.
    fn add(&mut self, now: Instant, socket: S) -> Result<(u64, Option<S>), S> {
        let mut replaced = None;
        if self.unknown.len() >= self.limits.unknown {
            replaced = self.take_quiet(now);
            if replaced.is_none() {
                return Err(socket);
            }
        }
        let number = self.next;
        self.next += 1;
        self.unknown.insert(number, (now, socket));
        Ok((number, replaced))
    }

    fn take_quiet(&mut self, now: Instant) -> Option<S> {
        let silence = self.limits.silence;
        let old = self.unknown.iter();
        let mut old = old.take_while(|(_, (since, _))| now.duration_since(*since) >= silence);
        let number = *old.find(|(_, (_, socket))| socket.is_quiet())?.0;
        self.unknown.remove(&number).map(|(_, socket)| socket)
    }

    /// Counts an unknown connection as a known connection of its tenant from now on. Fails if the tenant has its share
    /// already, or if the connection was closed for another.
    fn assign(&mut self, number: u64, tenant: &str) -> Result<(), NoShare> {
        let own = self.of_tenants.get(tenant).copied().unwrap_or_default();
        if own >= self.limits.known - self.known || self.unknown.remove(&number).is_none() {
            return Err(NoShare);
        }
        self.of_tenants.insert(tenant.to_owned(), own + 1);
        self.known += 1;
        Ok(())
    }

    /// Removes a known connection of this tenant; without a tenant, an unknown connection that may be gone already.
    fn leave(&mut self, number: u64, tenant: Option<&str>) {
        let Some(tenant) = tenant else {
            self.unknown.remove(&number);
            return;
        };
        if let Some(count) = self.of_tenants.get_mut(tenant) {
            self.known -= 1;
            *count -= 1;
            if *count == 0 {
                self.of_tenants.remove(tenant);
            }
        }
    }
}

/// Refusal of a further known connection: its tenant has its full share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoShare;

/// Places of all connections at the host's loopback.
#[derive(Clone)]
pub(super) struct HostPlaces(Arc<Mutex<HostTable<TcpStream>>>);

impl HostPlaces {
    pub fn new(limits: HostLimits) -> Self {
        Self(Arc::new(Mutex::new(HostTable::new(limits))))
    }

    fn table(&self) -> MutexGuard<'_, HostTable<TcpStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place, and closes the connection that `stream` replaces, if any.
    pub async fn enter(&self, stream: &tokio::net::TcpStream) -> io::Result<HostPlace> {
        let mut handle = TcpStream::from(stream.as_fd().try_clone_to_owned()?);
        loop {
            let added = self.table().add(Instant::now(), handle);
            match added {
                Ok((number, replaced)) => {
                    if let Some(replaced) = replaced {
                        // Fails only if the peer has closed it already.
                        let _ = replaced.shutdown(Shutdown::Both);
                    }
                    return Ok(HostPlace {
                        places: self.clone(),
                        number,
                        tenant: Mutex::default(),
                    });
                }
                Err(back) => handle = back,
            }
            sleep(ROOM_PAUSE).await;
        }
    }
}

/// Place of one connection. Dropping it frees the place.
pub(super) struct HostPlace {
    places: HostPlaces,
    number: u64,
    /// Tenant for which a known connection is counted.
    tenant: Mutex<Option<String>>,
}

impl HostPlace {
    /// Counts the connection for the tenant whose lease it has proved. From then on the connection cannot be replaced.
    pub fn assign(&self, tenant: &str) -> Result<(), NoShare> {
        let mut assigned = self.tenant.lock().unwrap_or_else(PoisonError::into_inner);
        if assigned.is_none() {
            self.places.table().assign(self.number, tenant)?;
            *assigned = Some(tenant.to_owned());
        }
        Ok(())
    }
}

impl Drop for HostPlace {
    fn drop(&mut self) {
        let tenant = self.tenant.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        self.places.table().leave(self.number, tenant.as_deref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    const SILENCE: Duration = Duration::from_millis(300);

    /// Name of a connection, and whether the kernel has bytes of it.
    #[derive(Debug)]
    struct FakeSocket(&'static str, Rc<Cell<bool>>);

    impl UnknownSocket for FakeSocket {
        fn is_quiet(&self) -> bool {
            !self.1.get()
        }
    }

    fn socket(name: &'static str) -> FakeSocket {
        FakeSocket(name, Rc::default())
    }

    fn table(unknown: usize, known: usize) -> HostTable<FakeSocket> {
        HostTable::new(HostLimits {
            unknown,
            known,
            silence: SILENCE,
        })
    }

    /// Adds a connection. Returns its number, and the name of the connection that was closed for it.
    fn add(table: &mut HostTable<FakeSocket>, now: Instant, name: &'static str) -> Option<(u64, Option<&'static str>)> {
        let (number, replaced) = table.add(now, socket(name)).ok()?;
        Some((number, replaced.map(|socket| socket.0)))
    }

    #[test]
    fn a_new_connection_replaces_the_longest_unknown_one_that_says_nothing() {
        let (mut table, begun) = (table(3, 8), Instant::now());
        let reads = socket("has bytes that were not read");
        reads.1.set(true);
        table.add(begun, reads).expect("room");
        for name in ["first", "second"] {
            assert_eq!(add(&mut table, begun, name).expect("room").1, None);
        }
        assert_eq!(add(&mut table, begun, "early"), None, "all are new");
        let now = begun + SILENCE;
        for (name, expected) in [("third", "first"), ("fourth", "second")] {
            assert_eq!(add(&mut table, now, name).expect("room").1, Some(expected));
        }
        assert_eq!(add(&mut table, now, "fifth"), None, "all are new, or have bytes");
        assert_eq!(table.unknown.len(), 3);
    }

    #[test]
    fn a_known_connection_is_replaced_by_none_and_leaves_its_place_to_unknown_ones() {
        let (mut table, begun) = (table(1, 8), Instant::now());
        let (first, _) = add(&mut table, begun, "first").expect("room");
        assert_eq!(table.assign(first, "ann"), Ok(()));
        let (second, closed) = add(&mut table, begun + SILENCE, "second").expect("room");
        assert_eq!(closed, None);
        let (_, closed) = add(&mut table, begun + 2 * SILENCE, "third").expect("room");
        assert_eq!(closed, Some("second"));
        assert_eq!(table.assign(second, "ann"), Err(NoShare), "its place is another's");
        table.leave(second, None);
        assert_eq!((table.known, table.unknown.len()), (1, 1));
    }

    #[test]
    fn tenants_that_take_all_that_they_get_leave_places_to_others() {
        let (mut table, now) = (table(1, 64), Instant::now());
        let mut share = |tenant: &str| {
            let mut count = 0;
            loop {
                let (number, _) = add(&mut table, now, "new").expect("room");
                if table.assign(number, tenant).is_err() {
                    table.leave(number, None);
                    return count;
                }
                count += 1;
            }
        };
        assert_eq!(["ann", "bob", "eve"].map(&mut share), [32, 16, 8]);
        assert_eq!(share("dan"), 4, "three tenants together keep out a fourth");
        assert_eq!(share("ann"), 0);
        for (tenant, count) in [("ann", 32), ("bob", 16), ("eve", 8), ("dan", 4)] {
            (0..count).for_each(|_| table.leave(0, Some(tenant)));
        }
        assert!(table.of_tenants.is_empty() && table.known == 0 && table.unknown.is_empty());
    }
}
