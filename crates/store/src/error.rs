//! Errors of opening, reading or changing stored state.

use hotlease_journal::DirectoryError;

/// Error of opening, reading or changing state. Nothing was changed, except as documented at [`StoreError::Disk`].
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A limit was reached, and no old record can be removed to make room.
    #[error("the store holds {limit} {what}, its limit, and none of them is over; end some of them first")]
    Full {
        /// Kind of record.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The bill has more lines than one response can hold.
    #[error("this bill has more than {limit} lines; ask for one tenant or job, or by tenant")]
    TooManyLines {
        /// The limit.
        limit: usize,
    },
    /// A member belongs to another tenant already.
    #[error("{member} belongs to tenant {tenant} already; remove it there first")]
    MemberOfOther {
        /// The member.
        member: String,
        /// The tenant to which the member belongs.
        tenant: String,
    },
    /// The tenant does not exist.
    #[error("there is no tenant {name}; add it with `hotlease admin tenant add {name}`")]
    NoTenant {
        /// Name of the tenant.
        name: String,
    },
    /// The directory cannot be used, or another process uses it.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The disk is full. Nothing was changed. The request can be repeated once there is room.
    #[error("the ledger cannot grow ({why}); free some space where it is kept")]
    NoSpace {
        /// Error message of the database.
        why: String,
    },
    /// Reading or writing failed. After a failed write the content of the disk is unknown until the ledger is opened
    /// again, so every later write is refused.
    #[error("the ledger cannot {what}: {why}")]
    Disk {
        /// Operation that failed.
        what: &'static str,
        /// Error message of the database.
        why: String,
    },
    /// The file is not a ledger of hotlease, or is damaged.
    #[error("{path} cannot be used: {why}")]
    Unusable {
        /// Path of the file.
        path: std::path::PathBuf,
        /// Description of the fault.
        why: String,
    },
    /// The ledger contains fewer commits than were acknowledged to callers.
    #[error(
        "{path} has lost the last {lost} of {answered} commits that were answered: bytes of it or of its log ({path}-wal) \
         were overwritten, or an older copy is in its place. Restore a backup; or, to go on without these grants and reports, \
         remove {mark}"
    )]
    Lost {
        /// Path of the ledger.
        path: std::path::PathBuf,
        /// Path of the mark, which records how many commits were answered.
        mark: std::path::PathBuf,
        /// Number of commits that are missing, at least.
        lost: u64,
        /// Number of commits that were answered, at least.
        answered: u64,
    },
    /// A newer version of hotlease wrote the ledger.
    #[error(
        "{path} was written by a newer version of hotlease (schema {found}, this one knows {known}); \
         use that version, or restore a backup"
    )]
    TooNew {
        /// Path of the ledger.
        path: std::path::PathBuf,
        /// Schema version of the ledger.
        found: i64,
        /// Newest schema version that this program supports.
        known: i64,
    },
    /// Another manager leads the database: this manager must not write any more.
    #[error("another manager leads the ledger (epoch {leader}, this one had {ours}); ask that one")]
    OtherLeader {
        /// Epoch of this manager.
        ours: i64,
        /// Epoch of the manager that leads.
        leader: i64,
    },
    /// The writer of the store has ended; the log has details.
    #[error("the ledger is closed: {why}; start the manager again")]
    Closed {
        /// Reason for the end.
        why: String,
    },
}
