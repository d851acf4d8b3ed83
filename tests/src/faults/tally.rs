//! Calls that leave a mark of each run: `fixtures/tally.c`.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// Largest number of calls that can be distinguished.
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

/// One call to be made.
#[derive(Debug, Clone)]
pub struct Call {
    /// Number of the call.
    pub number: u64,
    /// The function's input.
    pub input: Vec<u8>,
}

impl Call {
    /// A call that leaves its mark in the file at `path`.
    pub fn new(number: u64, microseconds: u32, path: &str) -> Self {
        let mut input = number.to_le_bytes().to_vec();
        input.extend(microseconds.to_le_bytes());
        input.extend(MARKS.to_le_bytes());
        input.extend(path.as_bytes());
        Self { number, input }
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

impl Tally {
    /// A tally without calls.
    ///
    /// # Panics
    /// If there is no space for the tally's file.
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

    /// The next call, which computes for `microseconds`.
    ///
    /// # Panics
    /// After four million calls.
    pub fn call(&self, microseconds: u32) -> Call {
        let (numbers, path) = self.reserve(1);
        Call::new(numbers.start, microseconds, path)
    }

    /// Reserves numbers for a process that makes calls by itself; returns them, and the path of the marks.
    ///
    /// # Panics
    /// After four million calls.
    pub fn reserve(&self, count: u64) -> (Range<u64>, &str) {
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        let end = first + count;
        assert!(end <= MARKS.into(), "no mark is left");
        (first..end, self.path.to_str().expect("a path in UTF-8"))
    }

    /// Returns whether `answer` is the function's answer to `call`.
    pub fn is_answer(call: u64, answer: &[u8]) -> bool {
        let expected = call.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        answer == expected.to_le_bytes()
    }

    /// Number of times that a call has run.
    pub fn runs(&self, number: u64) -> u32 {
        let mut mark = [0; MARK_BYTES as usize];
        self.marks
            .read_exact_at(&mut mark, number * MARK_BYTES)
            .expect("a mark");
        u32::from_le_bytes(mark)
    }

    /// Number of runs of all calls.
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
