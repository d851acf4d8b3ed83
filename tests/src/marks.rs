//! Count of a function's runs, independent of what its callers were told.

use std::path::PathBuf;

/// A file in which each run of a function leaves a byte.
pub struct Marks(tempfile::TempDir);

impl Default for Marks {
    fn default() -> Self {
        Self::new()
    }
}

impl Marks {
    /// A file without marks.
    ///
    /// # Panics
    /// If there is no directory for temporary files.
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    /// Path of the file.
    pub fn path(&self) -> PathBuf {
        self.0.path().join("marks")
    }

    /// The function's input: the file's path.
    pub fn input(&self) -> Vec<u8> {
        self.path().into_os_string().into_encoded_bytes()
    }

    /// Number of runs so far.
    pub fn count(&self) -> usize {
        std::fs::read(self.path()).map_or(0, |marks| marks.len())
    }
}
