//! Calls that leave a mark of each run: `fixtures/tally.c`.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// Calls that can be told apart.
const MARKS: u32 = 1 << 22;
const MARK_BYTES: u64 = 4;

/// A file of marks, one for each number.
#[derive(Debug)]
pub struct Tally {
    _directory: TempDir,
    path: PathBuf,
    marks: File,
    next: AtomicU64,
}

/// One call that is to be made.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its number.
    pub number: u64,
    /// The function's input.
    pub input: Vec<u8>,
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

impl Tally {
    /// No call was made.
    ///
    /// # Panics
    /// If there is no room for its file.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("marks");
        let mut options = OpenOptions::new();
        let marks = options.read(true).write(true).create_new(true).open(&path);
        let marks = marks.expect("a file of marks");
        marks.set_len(MARK_BYTES * u64::from(MARKS)).expect("its length");
        Self {
            _directory: directory,
            path,
            marks,
            next: AtomicU64::new(0),
        }
    }

    /// The next call, which computes for so many microseconds.
    ///
    /// # Panics
    /// After four million.
    pub fn call(&self, microseconds: u32) -> Call {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        assert!(number < MARKS.into(), "no mark is left");
        let path = self.path.to_str().expect("a path in UTF-8");
        let mut input = number.to_le_bytes().to_vec();
        input.extend(microseconds.to_le_bytes());
        input.extend(MARKS.to_le_bytes());
        input.extend(path.as_bytes());
        Call { number, input }
    }

    /// Whether this is what the function answers.
    pub fn is_answer(call: u64, answer: &[u8]) -> bool {
        let expected = call.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        answer == expected.to_le_bytes()
    }

    /// How often a call has run.
    pub fn runs(&self, number: u64) -> u32 {
        let mut mark = [0; MARK_BYTES as usize];
        self.marks
            .read_exact_at(&mut mark, number * MARK_BYTES)
            .expect("a mark");
        u32::from_le_bytes(mark)
    }

    /// Runs of all calls.
    pub fn total(&self) -> u64 {
        let made = self.next.load(Ordering::Relaxed);
        let mut marks = vec![0; (made * MARK_BYTES) as usize];
        self.marks.read_exact_at(&mut marks, 0).expect("marks");
        marks
            .chunks_exact(MARK_BYTES as usize)
            .map(|mark| u64::from(u32::from_le_bytes(mark.try_into().expect("four bytes"))))
            .sum()
    }
}
