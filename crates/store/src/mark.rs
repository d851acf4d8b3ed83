//! Mark of a ledger: lower bound of the number of answered commits, in a file beside the database.
//!
//! SQLite reads its log up to the first frame with a wrong checksum. So if bytes of the log are overwritten, answered
//! commits would be lost silently. Each commit therefore raises a count in the database, and once the commit is
//! durable, the count is written to this file. A ledger with fewer commits than its mark has lost commits.
//!
//! The mark is never ahead of the ledger. It is written only after the sync of a commit has succeeded, so the ledger
//! has all commits that a mark on the disk counts. The mark needs no sync of its own, because an older value is also a
//! lower bound. A torn write damages one of two slots; the other slot stays.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Name of the mark in the directory of the ledger.
pub(crate) const MARK_FILE: &str = "ledger.mark";
/// Distance of the slots, bytes: a torn write of a disk damages one sector.
const SECTOR_BYTES: usize = 512;
const SLOT_BYTES: usize = 16;

/// Number of commits, followed by its complement, so that an empty or half written slot is not read as a number.
fn slot(commits: u64) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    let (number, complement) = bytes.split_at_mut(SLOT_BYTES / 2);
    number.copy_from_slice(&commits.to_le_bytes());
    complement.copy_from_slice(&(!commits).to_le_bytes());
    bytes
}

/// Greatest number in the slots of a mark; 0 if the file is missing or has no valid slot.
pub(crate) fn read(directory: &Path) -> io::Result<u64> {
    let mut bytes = Vec::new();
    let file = match File::open(directory.join(MARK_FILE)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        file => file?,
    };
    file.take(2 * SECTOR_BYTES as u64).read_to_end(&mut bytes)?;
    let commits = bytes.chunks(SECTOR_BYTES).filter_map(|sector| {
        let (number, _) = sector.split_first_chunk()?;
        let commits = u64::from_le_bytes(*number);
        sector.starts_with(&slot(commits)).then_some(commits)
    });
    let most = commits.max();
    if most.is_none() && !bytes.is_empty() {
        tracing::warn!("{MARK_FILE} is damaged: whether the ledger has lost writes cannot be told this time");
    }
    Ok(most.unwrap_or(0))
}

/// Mark, open for the process that writes the ledger.
pub(crate) struct CommitMark(File);

impl CommitMark {
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600);
        file.open(directory.join(MARK_FILE)).map(Self)
    }

    /// Notes that a commit, and so all earlier commits, are durable.
    pub(crate) fn note(&self, commits: u64) {
        let offset = commits % 2 * SECTOR_BYTES as u64;
        if let Err(error) = self.0.write_all_at(&slot(commits), offset) {
            // The mark is then too low, which is allowed, because it is a lower bound.
            tracing::debug!(%error, "cannot write {MARK_FILE}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_mark_tells_the_last_number_and_a_torn_write_leaves_the_one_before() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(MARK_FILE);
        assert_eq!(read(dir.path()).expect("read"), 0, "there is none");
        let mark = CommitMark::open(dir.path()).expect("opened");
        assert_eq!(read(dir.path()).expect("read"), 0, "it is empty");
        let mut before = 0;
        for commits in 250..=260 {
            let old = fs::read(&path).expect("read");
            mark.note(commits);
            assert_eq!(read(dir.path()).expect("read"), commits);
            let new = fs::read(&path).expect("read");
            for kept in 1..SLOT_BYTES {
                // The first bytes are from the new write, the other bytes from before it.
                let at = usize::try_from(commits % 2).expect("0 or 1") * SECTOR_BYTES;
                let mut torn = old.clone();
                torn.resize(torn.len().max(at + kept), 0);
                torn[at..at + kept].copy_from_slice(&new[at..at + kept]);
                fs::write(&path, torn).expect("written");
                let found = read(dir.path()).expect("read");
                assert!(
                    (before..=commits).contains(&found),
                    "{kept} bytes of {commits}: {found}"
                );
            }
            fs::write(&path, new).expect("written");
            before = commits;
        }
    }
}
