//! Compiled Python modules, each of which is valid for one modification time of its source.
//!
//! All files in an image have the same time, so that equal trees make equal images. Python's compiled modules
//! (`__pycache__/*.pyc`) contain the time of their source, and would be ignored in the image. As an image is read-only,
//! every process would then compile all modules anew: a cold import of pandas takes three times as long. So bytecode
//! that was valid in the tree gets the time of the image's files, and stays valid.

use crate::survey::{Entry, EntryKind};
use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Header of bytecode: magic number, flags, time of the source, its length; four bytes each (PEP 552).
pub(crate) const HEADER_BYTES: usize = 16;
const TIME: std::ops::Range<usize> = 8..12;

/// Path of the source of a compiled module: `a/__pycache__/b.cpython-311.pyc` belongs to `a/b.py`. Returns `None` for
/// other files.
pub(crate) fn source_of(path: &Path) -> Option<PathBuf> {
    let folder = path.parent()?;
    let name = path.file_name()?.as_bytes();
    if folder.file_name()? != "__pycache__" || !name.ends_with(b".pyc") {
        return None;
    }
    let stem = name.split(|byte| *byte == b'.').next()?;
    let source = [stem, b".py"].concat();
    Some(folder.parent()?.join(std::ffi::OsStr::from_bytes(&source)))
}

/// Replaces the source's time by the time of the image's files, if the header is valid for that source. Returns whether
/// the bytecode is valid in the image.
pub(crate) fn renew(header: &mut [u8; HEADER_BYTES], source: &Path, time: u32) -> bool {
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    // Python checks bytecode with these flags by a hash of the source, or never.
    if word(4) != 0 {
        return true;
    }
    let Ok(found) = fs::metadata(source) else {
        return false;
    };
    // Compares like Python: the lowest 32 bits of time and length.
    let is_right = word(8) == found.mtime() as u32 && word(12) == found.len() as u32;
    if is_right {
        header[TIME].copy_from_slice(&time.to_le_bytes());
    }
    is_right
}

/// Number of Python sources without valid bytecode. `good`: the sources with valid bytecode.
pub(crate) fn count_uncompiled(entries: &[Entry], good: &HashSet<PathBuf>) -> u64 {
    let is_source = |entry: &&Entry| {
        let is_file = matches!(entry.what, EntryKind::File { bytes: 1.., .. });
        is_file && entry.path.extension().is_some_and(|extension| extension == "py")
    };
    entries
        .iter()
        .filter(is_source)
        .filter(|entry| !good.contains(&entry.path))
        .count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_was_right_is_right_again() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("b.py");
        fs::write(&source, "x = 1\n").unwrap();
        let found = fs::metadata(&source).unwrap();
        let header = |flags: u32, time: u32, bytes: u32| -> [u8; HEADER_BYTES] {
            let words = [7, flags, time, bytes];
            let bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
            bytes.try_into().unwrap()
        };
        let mut right = header(0, found.mtime() as u32, 6);
        assert!(renew(&mut right, &source, 99));
        assert_eq!(right, header(0, 99, 6));
        for mut stale in [header(0, 5, 6), header(0, found.mtime() as u32, 7)] {
            let before = stale;
            assert!(!renew(&mut stale, &source, 99), "a stale one was made to look right");
            assert_eq!(stale, before);
        }
        let mut by_hash = header(1, 5, 5);
        assert!(renew(&mut by_hash, &source, 99));
        assert_eq!(by_hash, header(1, 5, 5));
    }

    #[test]
    fn sources_are_named_by_what_is_compiled() {
        let of = |path: &str| source_of(Path::new(path));
        assert_eq!(of("a/__pycache__/b.cpython-311.opt-1.pyc"), Some("a/b.py".into()));
        assert_eq!(of("__pycache__/b.cpython-311.pyc"), Some("b.py".into()));
        assert_eq!(of("a/b.pyc"), None);
        assert_eq!(of("__pycache__/b.py"), None);
    }
}
