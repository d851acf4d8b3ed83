//! Options of a communicator.

mod auto;
mod environment;
mod link;

pub use auto::AutoLink;
pub use link::{LinkChoice, StoreAddress};

use crate::error::Error;
use crate::link::StoreOpener;
use crate::secret::Secret;
use hotlease_collectives::model::LinkPrices;
use hotlease_collectives::{Error as PlanError, Rank, Table};
use hotlease_wire::comm::frame::EAGER_BYTES_MAX;
use hotlease_wire::comm::rendezvous::WAIT_MS_MAX;
use hotlease_wire::comm::{NAME_BYTES_MAX, RANKS_MAX};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Options of a member. Name, size and secret are the same at all members.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the communicator, 1 to 128 bytes. Groups with the same name that meet one after the other are different
    /// groups.
    pub name: String,
    /// Number of members, 1 to 2048.
    pub size: Rank,
    /// Rank of this member (default: a rank that is free when all members have arrived).
    pub rank: Option<Rank>,
    /// Address of the rendezvous, as `host:port`.
    pub rendezvous: String,
    /// Secret that all members and the rendezvous have.
    pub secret: Secret,
    /// Maximum time until every member is connected (default: 30 s).
    pub join_timeout: Duration,
    /// Maximum time until all other members have noticed the failure of a member (default: 2 s).
    pub failure_bound: Duration,
    /// Time that a waiting member polls before it sleeps (default: 20 us; zero: it sleeps at once). If a node has more
    /// members than processors, this time is multiplied by the number of members that share a processor, and a member
    /// yields the processor between two polls (`sched_yield`). It polls only as long as a yield takes microseconds: if
    /// another program computes beside the members, they sleep at once. A member that is preempted on a processor of
    /// its own also sleeps at once. A sleeping member needs no processor.
    pub spin: Duration,
    /// Length of the longest message that is sent without asking the receiver, if the receiver has received enough of
    /// the earlier messages; bytes, at most 262144 (default: 262144).
    pub eager_bytes: u64,
    /// Memory for large messages that arrive while this member waits in a send, bytes (default: 256 MiB). Because of
    /// it, two members that first send to each other can both go on. A message that does not fit waits for its receive.
    pub early_bytes: u64,
    /// Maximum time that finishing waits for other members to read what this member has sent (default: 30 s).
    pub linger: Duration,
    /// Whether to encrypt the data between members (default: no). Identities are always proved, and data to or through
    /// the rendezvous is always encrypted.
    pub is_sealed: bool,
    /// Link of the members, the same at all members (default: the link that `HOTLEASE_COMM_LINK` names, else direct:
    /// memory inside a node, TCP between nodes).
    pub link: LinkChoice,
    /// Address at which other members reach this member (default: the address from which it reached the rendezvous).
    pub address: Option<IpAddr>,
    /// Whether to join an existing communicator whose members call [`Communicator::grow`](crate::Communicator::grow).
    /// `size` is then the new size, and `rank` must be `None`: members keep their ranks (default: no).
    pub is_newcomer: bool,
    /// Checked mode: before each collective, members compare their calls. If two members call different collectives,
    /// all members get an error with the members, their calls and the places of the calls. This costs an allgather of
    /// 256 bytes. All members must use the same mode (default: no; `HOTLEASE_COMM_CHECKED=1` also switches it on).
    pub is_checked: bool,
    /// Table that chooses the algorithms, the same at all members (default: the table in the file that
    /// `HOTLEASE_COMM_TABLE` names, else the built-in table).
    pub table: Option<Arc<Table>>,
    /// Prices by which `auto` chooses the link, the same at all members (default: the prices in the file that
    /// `HOTLEASE_COMM_PRICES` names, else the built-in prices).
    pub prices: Option<Arc<LinkPrices>>,
    /// Stores that this program can communicate through: `hotlease_stores::openers()` (default: none).
    pub stores: &'static [StoreOpener],
}

impl Options {
    /// Makes options with the defaults, and with any rank.
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
            eager_bytes: EAGER_BYTES_MAX,
            early_bytes: 256 << 20,
            linger: Duration::from_secs(30),
            is_sealed: false,
            link: LinkChoice::default(),
            address: None,
            is_newcomer: false,
            is_checked: false,
            table: None,
            prices: None,
            stores: &[],
        }
    }

    pub(crate) fn is_checked(&self) -> bool {
        self.is_checked || std::env::var_os("HOTLEASE_COMM_CHECKED").is_some_and(|value| value == "1")
    }

    /// Copies the options. Adds the link that the environment names, if the options name none, and the table and prices
    /// that the link depends on.
    pub(crate) fn resolve(&self) -> Result<Self, Error> {
        let mut options = self.clone();
        if let (LinkChoice::Direct, Some(text)) = (&self.link, std::env::var_os("HOTLEASE_COMM_LINK")) {
            options.link = parse_named_link(&text.to_string_lossy())?;
        }
        options.table = Some(options.table()?);
        if let LinkChoice::Auto(auto) = options.link {
            options.link = LinkChoice::Auto(auto.with_links()?);
            options.prices = Some(options.prices()?);
        }
        options.check()?;
        Ok(options)
    }

    /// The opener of a link through a store.
    pub(crate) fn opener(&self, link: &LinkChoice) -> Result<&'static StoreOpener, Error> {
        let is_it = |opener: &&StoreOpener| Some(opener.kind) == link.kind();
        self.stores.iter().find(is_it).ok_or_else(|| {
            let kind = link.kind().map(|kind| kind.to_string()).unwrap_or_default();
            let what = format!(
                "the link {link}: this program was built without links through {kind}; it needs the crate hotlease-stores with \
                 the feature `{kind}`, and `hotlease_stores::openers()` as `Options::stores` (libhotlease: the feature `stores`)"
            );
            Error::Options { what }
        })
    }

    /// The table to use.
    pub(crate) fn table(&self) -> Result<Arc<Table>, Error> {
        if let Some(table) = &self.table {
            return Ok(Arc::clone(table));
        }
        let found = read_named_file("HOTLEASE_COMM_TABLE", Table::parse).map_err(|why| Error::Table { why })?;
        Ok(Arc::new(found.unwrap_or_else(|| Table::built_in().clone())))
    }

    /// The prices to use.
    fn prices(&self) -> Result<Arc<LinkPrices>, Error> {
        if let Some(prices) = &self.prices {
            return Ok(Arc::clone(prices));
        }
        let found = read_named_file("HOTLEASE_COMM_PRICES", LinkPrices::parse).map_err(|why| Error::Prices { why })?;
        Ok(Arc::new(found.unwrap_or_else(|| LinkPrices::built_in().clone())))
    }

    /// Link for this number of members.
    pub(crate) fn choose_link(&self, size: Rank) -> Result<LinkChoice, Error> {
        match &self.link {
            LinkChoice::Auto(auto) => auto.choose(size, &*self.table()?, &*self.prices()?),
            link => Ok(link.clone()),
        }
    }

    /// Text of the options that all members must agree on, so that they choose the same link.
    pub(crate) fn agreement(&self) -> Result<String, Error> {
        let LinkChoice::Auto(auto) = &self.link else {
            return Ok(self.link.agreed());
        };
        let figures = format!("{:?} {:?}", self.table()?, self.prices()?);
        let digest = blake3::hash(figures.as_bytes()).to_hex();
        Ok(format!("{} by the figures {}", auto.agreed(), &digest[..8]))
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Options { what });
        let (name, size) = (self.name.len(), self.size);
        if !(1..=NAME_BYTES_MAX).contains(&name) {
            return wrong(format!("a name of {name} bytes; it must have 1 to {NAME_BYTES_MAX}"));
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
            return wrong(format!("`eager_bytes` of {bytes}; it can be {EAGER_BYTES_MAX} at most"));
        }
        if let LinkChoice::Auto(auto) = &self.link {
            auto.check()?;
        }
        if self.is_sealed && self.link.is_fabric() {
            return wrong("`is_sealed` over libfabric, which encrypts nothing; over `tcp` it does".into());
        }
        if self.is_sealed && self.link.is_mediated() {
            let link = &self.link;
            return wrong(format!(
                "`is_sealed` over {link}: only direct connections are encrypted here; use a store with TLS"
            ));
        }
        if self.failure_bound < Duration::from_millis(100) {
            let bound = self.failure_bound;
            return wrong(format!("`failure_bound` of {bound:?}; it must be 100 ms at least"));
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

/// Reads the file that a variable names, if it is set.
fn read_named_file<T>(variable: &str, parse: fn(&str) -> Result<T, PlanError>) -> Result<Option<T>, String> {
    let Some(path) = std::env::var_os(variable) else {
        return Ok(None);
    };
    let path = Path::new(&path);
    let wrong = |why: String| format!("{}, named by {variable}: {why}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    parse(&text).map(Some).map_err(|error| match error {
        PlanError::Table { why } | PlanError::Prices { why } => wrong(why),
        error => wrong(error.to_string()),
    })
}

/// Parses the link that the environment names.
fn parse_named_link(text: &str) -> Result<LinkChoice, Error> {
    text.parse().map_err(|error| match error {
        Error::Options { what } => Error::Options {
            what: format!("HOTLEASE_COMM_LINK, {what}"),
        },
        error => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_options_are_refused_by_name() {
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
        let sealed_store = |options: &mut Options| {
            options.is_sealed = true;
            options.link = "redis://h".parse().expect("a link");
        };
        refused(sealed_store, "is_sealed");
        refused(
            |options| (options.is_sealed, options.link) = (true, LinkChoice::OFI),
            "is_sealed",
        );
        let sealed_perhaps = |options: &mut Options| {
            options.is_sealed = true;
            options.link = "auto:direct,redis://h".parse().expect("a link");
        };
        refused(sealed_perhaps, "is_sealed");
        let sealed_fabric = |options: &mut Options| {
            options.is_sealed = true;
            options.link = "auto:direct,ofi".parse().expect("a link");
        };
        refused(sealed_fabric, "is_sealed");
        fn auto(links: Vec<LinkChoice>) -> LinkChoice {
            let auto = AutoLink::default();
            LinkChoice::Auto(AutoLink { links, ..auto })
        }
        let nested = |options: &mut Options| options.link = auto(vec![auto(Vec::new())]);
        refused(nested, "`auto` is none");
    }

    #[test]
    fn link_that_this_program_cannot_open_is_refused_with_what_it_lacks() {
        let options = Options::new("n", 2, "localhost:1", Secret::new(&[1; 16]).expect("16 bytes"));
        let link: LinkChoice = "redis://me:secret@h".parse().expect("a link");
        let error = options.opener(&link).expect_err("there is none").to_string();
        for part in ["redis://h", "hotlease-stores", "feature `redis`", "`Options::stores`"] {
            assert!(
                error.contains(part) && !error.contains("secret"),
                "{error:?} lacks {part:?}"
            );
        }
    }

    #[test]
    fn an_invalid_link_in_the_environment_is_an_error() {
        assert_eq!(parse_named_link("tcp"), Ok(LinkChoice::Tcp));
        let error = parse_named_link("tpc").expect_err("there is none").to_string();
        assert!(
            error.contains("HOTLEASE_COMM_LINK") && error.contains("`tcp`"),
            "{error}"
        );
    }
}
