//! Why state was not opened, read or changed.

use hotlease_journal::DirectoryError;
use hotlease_wire::ids::{AgentId, BootId, LeaseId};

/// Why state was not opened, read or changed. Nothing was changed then, except as said at
/// [`StoreError::Disk`].
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A bound was reached and nothing old can make room.
    #[error("the store holds {limit} {what}, its limit, and none of them is over; end some of them first")]
    Full {
        /// Of what.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// A ledger row names another tenant than its key did before.
    #[error("usage of lease {lease} of agent {agent} (boot {boot}) was reported for another tenant before")]
    TenantChanged {
        /// The reporting agent.
        agent: AgentId,
        /// Its run.
        boot: BootId,
        /// The lease.
        lease: LeaseId,
    },
    /// More lines than one answer holds.
    #[error("this bill has more than {limit} lines; ask for one tenant or job, or by tenant")]
    TooManyLines {
        /// The bound.
        limit: usize,
    },
    /// Somebody belongs to another tenant already.
    #[error("{member} belongs to tenant {tenant} already; remove it there first")]
    Taken {
        /// Who.
        member: String,
        /// To whom.
        tenant: String,
    },
    /// There is no such tenant.
    #[error("there is no tenant {name}; add it with `hotlease admin tenant add {name}`")]
    NoTenant {
        /// Which.
        name: String,
    },
    /// The directory cannot be used, or somebody else uses it.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The disk is full: nothing was changed, and what asks again once there is room succeeds.
    #[error("the ledger cannot grow ({why}); free some space where it is kept")]
    NoSpace {
        /// In the database's words.
        why: String,
    },
    /// Reading or writing failed. After a failed write nobody knows what the disk holds until the ledger is
    /// opened again, so every later one is refused.
    #[error("the ledger cannot {what}: {why}")]
    Disk {
        /// What was tried.
        what: &'static str,
        /// In the database's words.
        why: String,
    },
    /// The file is none of ours, or damaged.
    #[error("{path} cannot be used: {why}")]
    Unusable {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        why: String,
    },
    /// A newer version wrote it.
    #[error(
        "{path} was written by a newer version of hotlease (schema {found}, this one knows {known}); \
         use that version, or restore a backup"
    )]
    TooNew {
        /// Which.
        path: std::path::PathBuf,
        /// The schema it has.
        found: i64,
        /// The newest that this program knows.
        known: i64,
    },
    /// Another manager leads the database: this one must not write any more.
    #[error("another manager leads the ledger (epoch {leader}, this one had {ours}); ask that one")]
    Deposed {
        /// The epoch of this manager.
        ours: i64,
        /// The leader's.
        leader: i64,
    },
    /// Its writer ended; see the log.
    #[error("the ledger is closed: {why}; start the manager again")]
    Closed {
        /// Why.
        why: String,
    },
}
