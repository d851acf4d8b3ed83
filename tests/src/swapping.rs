//! Nodes whose agents keep what functions leave in workers in one directory.

use crate::nodes::Nodes;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// How long these agents give a worker to save its state.
pub const SAVING: Duration = Duration::from_millis(500);

/// See the module.
pub struct Swapping {
    /// A manager, and the agents.
    pub nodes: Nodes,
    directory: TempDir,
}

impl Swapping {
    /// So many agents, with further arguments.
    ///
    /// # Panics
    /// If they do not start.
    pub fn start(count: usize, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path().to_str().expect("text");
        let all = [&["--swap-directory", path, "--swap-limit", "500ms"], arguments].concat();
        Self {
            nodes: Nodes::start_with(count, &all),
            directory,
        }
    }

    /// Where states are.
    ///
    /// # Panics
    /// If that is no text.
    pub fn directory(&self) -> &str {
        self.directory.path().to_str().expect("text")
    }

    /// What a command prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let line = [&["--json"], arguments].concat();
        let done = self.nodes.hotlease(&line).output().expect("it runs");
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{line:?}: {errors}");
        let text = String::from_utf8(done.stdout).expect("text");
        text.lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    /// What became of the state of a lease, in words, and how long restoring it took.
    ///
    /// # Panics
    /// If nothing is known of it.
    pub fn explained(&self, lease: &str) -> (String, Value) {
        let explained = &self.json(&["explain", lease])[0];
        let kept = explained["kept"].as_str().expect("text").to_owned();
        (kept, explained["phases"]["restore"].clone())
    }

    /// All files of the one tenant's.
    ///
    /// # Panics
    /// If they cannot be listed.
    pub fn files(&self) -> Vec<PathBuf> {
        let Some(folder) = fs::read_dir(self.directory.path()).expect("a folder").next() else {
            return Vec::new();
        };
        let listed = fs::read_dir(folder.expect("an entry").path()).expect("a folder");
        let mut files: Vec<_> = listed.map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        files
    }

    /// The first state that is whole.
    pub fn saved(&self) -> Option<PathBuf> {
        let mut files = self.files().into_iter();
        files.find(|path| path.extension().is_some_and(|end| end == "state"))
    }

    /// Gives the node back that holds a lease, and waits until it is clean; which one that was.
    ///
    /// # Panics
    /// If they are not clean in time.
    pub fn drain_holder_of(&self, lease: &str) -> usize {
        let holder = self.nodes.holder(lease);
        let agent = self.nodes.nodes[holder].id();
        self.json(&["admin", "node", "drain", &agent, "--within", "60s", "--wait"]);
        holder
    }
}
