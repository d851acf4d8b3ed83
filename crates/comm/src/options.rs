//! How a communicator is made.

mod environment;

use crate::choice::Table;
use crate::error::Error;
use crate::schedule::Rank;
use crate::secret::Secret;
use hotlease_wire::comm::frame::EAGER_BYTES_MAX;
use hotlease_wire::comm::rendezvous::WAIT_MS_MAX;
use hotlease_wire::comm::{NAME_BYTES_MAX, RANKS_MAX};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What members talk over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LinkChoice {
    /// Shared memory between members of one node, TCP between others.
    #[default]
    Direct,
    /// TCP between all.
    Tcp,
}

/// What a member asks for. Name, size and secret are the same at all of them.
#[derive(Debug, Clone)]
pub struct Options {
    /// Of the communicator, 1 to 128 bytes. Groups of one name that meet one after the other are different groups.
    pub name: String,
    /// How many members there are, 1 to 2048.
    pub size: Rank,
    /// This member's rank (default: whichever is left when all have come).
    pub rank: Option<Rank>,
    /// Where the rendezvous is, as `host:port`.
    pub rendezvous: String,
    /// What all members and the rendezvous know.
    pub secret: Secret,
    /// How long all of this may take until every member is connected (default: 30 s).
    pub join_timeout: Duration,
    /// In which time the failure of a member is known to all others (default: 2 s).
    pub failure_bound: Duration,
    /// How long to look for news before sleeping until there are some (default: 20 us; not at all where a node has more members than
    /// processors).
    pub spin: Duration,
    /// The longest message that is sent without asking the receiver, bytes, at most 65536 (default: 16384).
    pub eager_bytes: u64,
    /// Memory for large messages that come while this member waits in a send, so that two that send to each other first
    /// both go on, bytes (default: 256 MiB). What does not fit waits for its receive.
    pub early_bytes: u64,
    /// How long finishing may wait for others to read what this member has sent (default: 30 s).
    pub linger: Duration,
    /// Encrypt what members send each other (default: no; who they are is always proved, and what they tell the
    /// rendezvous, or it relays, is always encrypted).
    pub is_sealed: bool,
    /// What members talk over (default: that which `HOTLEASE_COMM_LINK` names, `direct` or `tcp`, or else direct). A member that has
    /// chosen TCP shares memory with nobody.
    pub link: LinkChoice,
    /// The address at which other members reach this one (default: that with which it reached the rendezvous).
    pub address: Option<IpAddr>,
    /// Join a communicator that exists, and whose members call [`Communicator::grow`](crate::Communicator::grow). `size` is what it
    /// grows to, and `rank` stays open: members keep theirs (default: no).
    pub is_newcomer: bool,
    /// Checked mode: before each collective, members compare what they call, and if two call something else all get an error that
    /// says who, what and where. It costs an allgather of 256 bytes. All members have to be in it (default: no; also switched on by
    /// `HOTLEASE_COMM_CHECKED=1`).
    pub is_checked: bool,
    /// Which algorithm is used when. The same at all members (default: the table in the file that `HOTLEASE_COMM_TABLE` names, or else
    /// the built-in one).
    pub table: Option<Arc<Table>>,
}

impl Options {
    /// A member of any rank, with the defaults.
    pub fn new(name: impl Into<String>, size: Rank, rendezvous: impl Into<String>, secret: Secret) -> Self {
        Self {
            name: name.into(),
            size,
            rank: None,
            rendezvous: rendezvous.into(),
            secret,
            join_timeout: Duration::from_secs(30),
            failure_bound: Duration::from_secs(2),
            spin: Duration::from_micros(20),
            eager_bytes: 16 * 1024,
            early_bytes: 256 << 20,
            linger: Duration::from_secs(30),
            is_sealed: false,
            link: LinkChoice::Direct,
            address: None,
            is_newcomer: false,
            is_checked: false,
            table: None,
        }
    }

    pub(crate) fn is_checked(&self) -> bool {
        self.is_checked || std::env::var_os("HOTLEASE_COMM_CHECKED").is_some_and(|value| value == "1")
    }

    /// What members are to talk over.
    pub(crate) fn link(&self) -> Result<LinkChoice, Error> {
        match self.link {
            LinkChoice::Direct => std::env::var_os("HOTLEASE_COMM_LINK")
                .map_or(Ok(LinkChoice::Direct), |name| named(&name.to_string_lossy())),
            link @ LinkChoice::Tcp => Ok(link),
        }
    }

    /// The table that is to be used.
    pub(crate) fn table(&self) -> Result<Arc<Table>, Error> {
        if let Some(table) = &self.table {
            return Ok(Arc::clone(table));
        }
        let Some(path) = std::env::var_os("HOTLEASE_COMM_TABLE") else {
            return Ok(Arc::new(Table::built_in().clone()));
        };
        let path = Path::new(&path);
        let wrong = |why: String| Error::Table {
            why: format!("{}, named by HOTLEASE_COMM_TABLE: {why}", path.display()),
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        match Table::parse(&text) {
            Err(Error::Table { why }) => Err(wrong(why)),
            parsed => parsed.map(Arc::new),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Options { what });
        let (name, size) = (self.name.len(), self.size);
        if !(1..=NAME_BYTES_MAX).contains(&name) {
            return wrong(format!(
                "a name of {name} bytes; it must have 1 to {NAME_BYTES_MAX}"
            ));
        }
        if !(1..=RANKS_MAX).contains(&size) {
            return wrong(format!(
                "a communicator of {size}; it can have 1 to {RANKS_MAX} members"
            ));
        }
        if let Some(rank) = self.rank.filter(|rank| *rank >= size) {
            return wrong(format!("rank {rank} of {size}; ranks are counted from 0"));
        }
        if let Some(rank) = self.rank.filter(|_| self.is_newcomer) {
            return wrong(format!(
                "rank {rank} of a newcomer; members keep theirs, and newcomers get the next ones"
            ));
        }
        if self.eager_bytes > EAGER_BYTES_MAX {
            let bytes = self.eager_bytes;
            return wrong(format!(
                "`eager_bytes` of {bytes}; it can be {EAGER_BYTES_MAX} at most"
            ));
        }
        if self.failure_bound < Duration::from_millis(100) {
            let bound = self.failure_bound;
            return wrong(format!(
                "`failure_bound` of {bound:?}; it must be 100 ms at least"
            ));
        }
        let join_timeout = self.join_timeout;
        if join_timeout.is_zero() || join_timeout > Duration::from_millis(WAIT_MS_MAX) {
            return wrong(format!(
                "`join_timeout` of {join_timeout:?}; it must be over 0 and at most a day"
            ));
        }
        Ok(())
    }
}

/// A link by the name that the environment gives.
fn named(name: &str) -> Result<LinkChoice, Error> {
    match name {
        "direct" => Ok(LinkChoice::Direct),
        "tcp" => Ok(LinkChoice::Tcp),
        _ => {
            let what = format!("HOTLEASE_COMM_LINK is {name:?}; it is `direct` or `tcp`");
            Err(Error::Options { what })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_with_its_name() {
        let options = Options::new("n", 2, "localhost:1", Secret::new(&[1; 16]).expect("16 bytes"));
        assert_eq!(options.check(), Ok(()));
        let refused = |change: fn(&mut Options), part: &str| {
            let mut options = options.clone();
            change(&mut options);
            let text = options.check().expect_err(part).to_string();
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        };
        refused(|options| options.name.clear(), "name of 0 bytes");
        refused(|options| options.size = 0, "communicator of 0");
        refused(|options| options.rank = Some(2), "rank 2 of 2");
        refused(
            |options| (options.is_newcomer, options.rank) = (true, Some(1)),
            "rank 1 of a newcomer",
        );
        refused(|options| options.eager_bytes = 1 << 20, "eager_bytes");
        refused(|options| options.failure_bound = Duration::ZERO, "failure_bound");
        refused(|options| options.join_timeout = Duration::ZERO, "join_timeout");
    }

    #[test]
    fn links_have_names() {
        assert_eq!(named("direct"), Ok(LinkChoice::Direct));
        assert_eq!(named("tcp"), Ok(LinkChoice::Tcp));
        let error = named("tpc").expect_err("there is none").to_string();
        assert!(
            error.contains("HOTLEASE_COMM_LINK") && error.contains("tpc"),
            "{error}"
        );
    }
}
