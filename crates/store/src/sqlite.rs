//! Default store: SQLite in a directory of this node.
//!
//! The database uses WAL, so that readers never wait for the writer. With `synchronous = FULL`, a commit is on the disk
//! before a caller gets its answer, so acknowledged writes survive a crash of the node. The directory is locked.
//! A directory on a network file system is refused, because neither locks nor the shared memory of SQLite's log are
//! reliable there.

use crate::database::{DatabaseParts, DatabaseStore};
use crate::limits::Limits;
use crate::mark::{self, CommitMark, MARK_FILE};
use crate::sql::changes::StoreRules;
use crate::sql::{Cell, Cells, Sql, Value, WriterHook, schema};
use crate::{FINDINGS_MAX, StoreError};
use hotlease_journal::{StateDir, sync_directory};
use rusqlite::config::DbConfig;
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the database in its directory.
pub const LEDGER_FILE: &str = "ledger.db";
/// File that an interrupted restore leaves behind.
pub(crate) const RESTORING_FILE: &str = "ledger.db.restoring";
/// Application id that distinguishes hotlease's databases from other SQLite databases: "hlld".
const APPLICATION_ID: i64 = 0x686c_6c64;
/// Counter of commits; each commit raises it by one.
const COMMITS: &str = "commits";
/// Longest time that a write waits for another process that reads or copies the database.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
/// Size to which SQLite cuts the write-ahead log when possible, bytes.
const LOG_BYTES: i64 = 16 << 20;

/// Options of a store in SQLite.
#[derive(Clone)]
pub struct SqliteOptions {
    /// Limits of the store (default: [`Limits::DATABASE`]).
    pub limits: Limits,
    /// Whether agents are trusted in reports of leases that this manager did not grant (default: no; usage of these
    /// leases is recorded, but not billed).
    pub adopt_unknown: bool,
    /// Largest size of the database, bytes (default: SQLite's own limit, 16 TiB).
    pub bytes_max: Option<u64>,
    /// Called by the writer at each [`WriterMoment`](crate::WriterMoment), for tests that end the process at such a
    /// moment (default: none).
    pub hook: Option<WriterHook>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            limits: Limits::DATABASE,
            adopt_unknown: false,
            bytes_max: None,
            hook: None,
        }
    }
}

/// Opens the ledger in a directory, and migrates it to this version; makes the directory if it is missing. The
/// directory is locked until the store is dropped.
pub fn open_sqlite(directory: &Path, options: SqliteOptions) -> Result<DatabaseStore, StoreError> {
    let dir = StateDir::take(directory)?;
    let path = dir.path().join(LEDGER_FILE);
    if !path.exists() && dir.path().join(RESTORING_FILE).exists() {
        return Err(StoreError::Unusable {
            path,
            why: "a restore into this directory was interrupted; restore the backup again".into(),
        });
    }
    let answered = answered_commits(dir.path())?;
    let connection = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
    check_commits(&connection, &path, answered)?;
    let mut sql = SqliteSql::new(connection, path.clone());
    sql.set_up(options.bytes_max)?;
    sql.mark = Some(CommitMark::open(dir.path()).map_err(mark_error)?);
    // The file's name must be durable before its content.
    sync_directory(dir.path()).map_err(|error| StoreError::Disk {
        what: "make its name durable",
        why: error.to_string(),
    })?;
    let reader = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let reading = reader.pragma_update(None, "query_only", true);
    reading.map_err(|error| unusable(&path, &error))?;
    let rules = StoreRules {
        limits: options.limits,
        adopt_unknown: options.adopt_unknown,
    };
    let own = DatabaseParts {
        check: format!("PRAGMA integrity_check({FINDINGS_MAX})"),
        _dir: dir,
    };
    DatabaseStore::start(sql, SqliteSql::new(reader, path), rules, options.hook, Some(own))
}

/// Opens a SQLite file without reading it yet.
pub(crate) fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let opened = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX);
    let connection = opened.map_err(|error| unusable(path, &error))?;
    connection
        .busy_timeout(BUSY_LIMIT)
        .map_err(|error| unusable(path, &error))?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

pub(crate) fn unusable(path: &Path, error: &rusqlite::Error) -> StoreError {
    StoreError::Unusable {
        path: path.to_owned(),
        why: error.to_string(),
    }
}

/// Checks that the file is a ledger, and returns its version; 0 for an empty file.
pub(crate) fn version(connection: &Connection, path: &Path) -> Result<i64, StoreError> {
    let number = |pragma: &str| {
        let read = connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
        read.map_err(|error| unusable(path, &error))
    };
    let tables = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0));
    let is_empty = tables.map_err(|error| unusable(path, &error))? == 0;
    let version = number("user_version")?;
    if is_empty && version == 0 {
        return Ok(0);
    }
    if number("application_id")? != APPLICATION_ID {
        return Err(StoreError::Unusable {
            path: path.to_owned(),
            why: "it is a database of another program".into(),
        });
    }
    if version > schema::VERSION {
        return Err(StoreError::TooNew {
            path: path.to_owned(),
            found: version,
            known: schema::VERSION,
        });
    }
    Ok(version)
}

fn mark_error(error: std::io::Error) -> StoreError {
    StoreError::Disk {
        what: "open its mark",
        why: error.to_string(),
    }
}

/// Lower bound of the number of a ledger's answered commits. It must be read before the ledger.
pub(crate) fn answered_commits(directory: &Path) -> Result<u64, StoreError> {
    mark::read(directory).map_err(mark_error)
}

/// Refuses a ledger that contains fewer commits than were answered, and does not change its files.
pub(crate) fn check_commits(connection: &Connection, path: &Path, answered: u64) -> Result<(), StoreError> {
    // Otherwise closing the connection would remove the log, from which a person could still recover data.
    let keep_log = |keep| {
        let set = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep);
        set.map(drop).map_err(|error| unusable(path, &error))
    };
    keep_log(true)?;
    let commits = match version(connection, path)? {
        0 => None,
        _ => connection
            .query_row("SELECT value FROM counters WHERE name = ?1", [COMMITS], |row| {
                row.get(0)
            })
            .optional()
            .map_err(|error| unusable(path, &error))?,
    };
    let commits = u64::try_from(commits.unwrap_or(0_i64)).unwrap_or(0);
    if commits < answered {
        return Err(StoreError::Lost {
            path: path.to_owned(),
            mark: path.with_file_name(MARK_FILE),
            lost: answered - commits,
            answered,
        });
    }
    keep_log(false)
}

/// SQLite connection of the store.
pub(crate) struct SqliteSql {
    connection: Connection,
    path: PathBuf,
    /// The last error (whether the disk was full, and the message), to be reported if it lost the transaction.
    failed: Option<(bool, String)>,
    /// Number of the transaction that is being committed.
    commit: i64,
    /// Mark to which the number of each durable commit is written; `None` except in the store's writer.
    mark: Option<CommitMark>,
}

/// Binds a value by reference.
impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Int(number) => ValueRef::Integer(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Null => ValueRef::Null,
        }))
    }
}

impl SqliteSql {
    pub(crate) fn new(connection: Connection, path: PathBuf) -> Self {
        Self {
            connection,
            path,
            failed: None,
            commit: 0,
            mark: None,
        }
    }

    /// Sets the database's modes of writing, and migrates its tables.
    fn set_up(&mut self, bytes_max: Option<u64>) -> Result<(), StoreError> {
        let from = version(&self.connection, &self.path)?;
        let path = self.path.clone();
        let failed = |error| unusable(&path, &error);
        let connection = &self.connection;
        let mode: String = connection
            .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))
            .map_err(failed)?;
        if mode != "wal" {
            return Err(StoreError::Unusable {
                path,
                why: format!("its file system has no write-ahead log (mode {mode})"),
            });
        }
        connection.pragma_update(None, "synchronous", "full").map_err(failed)?;
        connection
            .pragma_update(None, "trusted_schema", false)
            .map_err(failed)?;
        connection
            .pragma_update_and_check(None, "journal_size_limit", LOG_BYTES, |_| Ok(()))
            .map_err(failed)?;
        if let Some(bytes) = bytes_max {
            let size: i64 = connection
                .pragma_query_value(None, "page_size", |row| row.get(0))
                .map_err(failed)?;
            let pages = i64::try_from(bytes).unwrap_or(i64::MAX) / size.max(1);
            connection
                .pragma_update_and_check(None, "max_page_count", pages.max(1), |_| Ok(()))
                .map_err(failed)?;
        }
        if from == schema::VERSION {
            return Ok(());
        }
        self.run("BEGIN IMMEDIATE", &[])?;
        let migrated = schema::migrate(self, from).and_then(|()| {
            self.run(&format!("PRAGMA application_id = {APPLICATION_ID}"), &[])?;
            self.run(&format!("PRAGMA user_version = {}", schema::VERSION), &[])
        });
        match migrated {
            Ok(()) => self.run("COMMIT", &[])?,
            Err(error) => {
                if let Err(worse) = self.run("ROLLBACK", &[]) {
                    tracing::warn!(error = %worse, "a migration that failed was not rolled back either");
                }
                return Err(error);
            }
        }
        if from > 0 {
            tracing::info!(path = %self.path.display(), from, to = schema::VERSION, "the ledger was migrated");
        }
        Ok(())
    }

    fn error(&mut self, what: &'static str, error: &rusqlite::Error) -> StoreError {
        let why = error.to_string();
        let full = error.sqlite_error_code() == Some(ErrorCode::DiskFull);
        self.failed = Some((full, why.clone()));
        match full {
            true => StoreError::NoSpace { why },
            false => StoreError::Disk { what, why },
        }
    }
}

fn cell(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Integer(number) => Cell::Int(number),
        ValueRef::Text(text) => Cell::Text(String::from_utf8_lossy(text).into_owned()),
        // Fractions and blobs are never written. A reader expects a number or text, so it reports the damage.
        ValueRef::Null | ValueRef::Real(_) | ValueRef::Blob(_) => Cell::Null,
    }
}

impl Sql for SqliteSql {
    fn run(&mut self, statement: &str, values: &[Value<'_>]) -> Result<(), StoreError> {
        let done = self.connection.prepare_cached(statement).and_then(|mut prepared| {
            let mut rows = prepared.query(rusqlite::params_from_iter(values))?;
            while rows.next()?.is_some() {}
            Ok(())
        });
        done.map_err(|error| self.error("be written", &error))
    }

    fn query(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
        each: &mut dyn FnMut(Cells) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut refused = None;
        let read = self.connection.prepare_cached(statement).and_then(|mut prepared| {
            let columns = prepared.column_count();
            let mut rows = prepared.query(rusqlite::params_from_iter(values))?;
            while let Some(row) = rows.next()? {
                let cells = (0..columns)
                    .map(|column| row.get_ref(column).map(cell))
                    .collect::<Result<Cells, _>>()?;
                if let Err(error) = each(cells) {
                    refused = Some(error);
                    break;
                }
            }
            Ok(())
        });
        read.map_err(|error| self.error("be read", &error))?;
        refused.map_or(Ok(()), Err)
    }

    fn seal(&mut self) -> Result<(), StoreError> {
        self.commit = schema::add(self, COMMITS, 1)?;
        Ok(())
    }

    fn note_durable(&mut self) {
        if let (Some(mark), Ok(commit)) = (&self.mark, u64::try_from(self.commit)) {
            mark.note(commit);
        }
    }

    fn lost(&mut self) -> Option<StoreError> {
        if !self.connection.is_autocommit() {
            return None;
        }
        let (full, why) = self.failed.take().unwrap_or_default();
        Some(match full {
            true => StoreError::NoSpace { why },
            false => StoreError::Disk {
                what: "be written",
                why,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A commit must reach the disk before it is answered. With a lower level than FULL, SQLite answers earlier, which
    /// a crash of a process alone would not reveal.
    #[test]
    fn the_writer_waits_for_the_disk() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(LEDGER_FILE);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut sql = SqliteSql::new(connect(&path, flags).expect("opened"), path);
        sql.set_up(None).expect("set up");
        let mut asked = |pragma: &str| {
            let mut answer = Cell::Null;
            let each = &mut |row: Cells| {
                answer = row[0].clone();
                Ok(())
            };
            sql.query(pragma, &[], each).expect("answered");
            answer
        };
        assert_eq!(asked("PRAGMA synchronous"), Cell::Int(2), "FULL");
        assert_eq!(asked("PRAGMA journal_mode"), Cell::Text("wal".into()));
    }
}
