//! Backup and restore of a SQLite ledger. A backup may run while the ledger is in use; a restore must not.

use crate::mark::MARK_FILE;
use crate::sql::{Cell, Sql};
use crate::sqlite::{RESTORING_FILE, SqliteSql, answered_commits, check_commits, connect, unusable, version};
use crate::{LEDGER_FILE, StoreError};
use hotlease_journal::{StateDir, sync_directory};
use rusqlite::{Connection, OpenFlags};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Summary of a copy of a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupSummary {
    /// Size of the copy, bytes.
    pub bytes: u64,
    /// Number of ledger rows in the copy.
    pub rows: u64,
    /// Schema version of the copy's tables.
    pub schema: i64,
    /// Directory to which the replaced ledger was moved (restore only).
    pub replaced: Option<PathBuf>,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    move |error| StoreError::Disk {
        what,
        why: error.to_string(),
    }
}

/// Copies the ledger of a state directory, as of one moment, into a new file. A manager may use the ledger meanwhile.
/// The copy is durable when this function returns. Fails if the file exists.
pub fn backup(directory: &Path, to: &Path) -> Result<BackupSummary, StoreError> {
    let from = directory.join(LEDGER_FILE);
    let answered = answered_commits(directory)?;
    let source = connect(&from, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    check_commits(&source, &from, answered)?;
    if version(&source, &from)? == 0 {
        return Err(StoreError::Unusable {
            path: from,
            why: "there is nothing in it".into(),
        });
    }
    // The file is private from its first byte. SQLite fills an empty file, and refuses a file that is not empty.
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to);
    made.map_err(failed("be copied to a new file"))?;
    let copied = source
        .execute("VACUUM INTO ?1", [to.to_string_lossy().as_ref()])
        .map_err(|error| unusable(to, &error))
        .and_then(|_| check(to));
    let done = copied.and_then(|summary| {
        let synced = File::open(to).and_then(|file| file.sync_all());
        synced.map_err(failed("make the copy durable"))?;
        if let Some(folder) = parent(to) {
            sync_directory(folder).map_err(failed("make the copy durable"))?;
        }
        Ok(summary)
    });
    if done.is_err() {
        // An incomplete copy must not be mistaken for a whole copy. An error of this removal is ignored, because `done`
        // has the original error.
        let _ = fs::remove_file(to);
    }
    done
}

/// Parent directory of a file, which must be synced to make the file's name durable.
fn parent(path: &Path) -> Option<&Path> {
    let parent = path.parent()?;
    Some(if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    })
}

/// Replaces a state directory's ledger by a copy, and keeps the old ledger in a directory beside it. Fails while a
/// manager uses the directory, and if the copy is damaged or was written by a newer version.
pub fn restore(directory: &Path, from: &Path) -> Result<BackupSummary, StoreError> {
    let mut summary = check(from)?;
    let dir = StateDir::take(directory)?;
    let restoring = dir.path().join(RESTORING_FILE);
    copy(from, &restoring).map_err(failed("be restored"))?;
    check(&restoring)?;
    let ledger = dir.path().join(LEDGER_FILE);
    // The write-ahead log belongs to the old ledger; SQLite makes the index of the log anew. The mark is moved last: as
    // long as the old ledger is in place, the mark shows that its log is missing.
    let old = ["ledger.db-wal", "ledger.db-shm", LEDGER_FILE, MARK_FILE];
    if old.iter().any(|name| dir.path().join(name).exists()) {
        let aside = (1..).map(|number| dir.path().join(format!("replaced-{number}")));
        let aside = aside.into_iter().find(|aside| !aside.exists());
        let aside = aside.unwrap_or_else(|| dir.path().join("replaced"));
        DirBuilder::new()
            .mode(0o700)
            .create(&aside)
            .map_err(failed("put the present one aside"))?;
        for name in old {
            match fs::rename(dir.path().join(name), aside.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("put the present one aside")(error));
                }
                _ => {}
            }
        }
        summary.replaced = Some(aside);
    }
    fs::rename(&restoring, &ledger).map_err(failed("be restored"))?;
    sync_directory(dir.path()).map_err(failed("be restored"))?;
    Ok(summary)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut target = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(to)?;
    io::copy(&mut File::open(from)?, &mut target)?;
    target.sync_all()
}

/// Checks that a copy is whole, and summarises it.
fn check(path: &Path) -> Result<BackupSummary, StoreError> {
    let bytes = fs::metadata(path).map_err(|error| StoreError::Unusable {
        path: path.to_owned(),
        why: error.to_string(),
    })?;
    let connection: Connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let schema = version(&connection, path)?;
    let mut sql = SqliteSql::new(connection, path.to_owned());
    let mut problem = (schema == 0).then(|| "there is nothing in it".to_owned());
    sql.query("PRAGMA integrity_check(1)", &[], &mut |row| {
        if let [Cell::Text(found)] = &row[..]
            && found != "ok"
        {
            problem = Some(found.clone());
        }
        Ok(())
    })?;
    if let Some(why) = problem {
        return Err(StoreError::Unusable {
            path: path.to_owned(),
            why,
        });
    }
    let mut rows = 0;
    sql.query("SELECT count(*) FROM ledger", &[], &mut |row| {
        if let [Cell::Int(count)] = row[..] {
            rows = u64::try_from(count).unwrap_or(0);
        }
        Ok(())
    })?;
    Ok(BackupSummary {
        bytes: bytes.len(),
        rows,
        schema,
        replaced: None,
    })
}
