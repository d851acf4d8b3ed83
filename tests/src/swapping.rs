//! Nodes whose agents save the states of workers in one directory.

use crate::nodes::Nodes;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// Time that these agents give a worker to save its state.
pub const SAVING: Duration = Duration::from_millis(500);

/// A manager and agents that share a directory of states.
pub struct Swapping {
    /// The manager and the agents.
    pub nodes: Nodes,
    directory: TempDir,
}

impl Swapping {
    /// Starts `count` agents, with further arguments.
    ///
    /// # Panics
    /// If the agents do not start.
    pub fn start(count: usize, arguments: &[&str]) -> Self {
        Self::start_with_limit("500ms", count, arguments)
    }

    /// Starts agents as [`Swapping::start`], which give a worker the time `limit` to save its state.
    ///
    /// # Panics
    /// If the agents do not start.
    pub fn start_with_limit(limit: &str, count: usize, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path().to_str().expect("text");
        let all = [&["--swap-directory", path, "--swap-limit", limit], arguments].concat();
        Self {
            nodes: Nodes::start_with(count, &all),
            directory,
        }
    }

    /// Directory of the states.
    ///
    /// # Panics
    /// If the path is no text.
    pub fn directory(&self) -> &str {
        self.directory.path().to_str().expect("text")
    }

    /// Objects that a command prints with `--json`.
    ///
    /// # Panics
    /// If the command fails.
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

    /// Description of a lease's state by the manager, and the time that restoring it took.
    ///
    /// # Panics
    /// If the manager does not know the lease.
    pub fn explained(&self, lease: &str) -> (String, Value) {
        let explained = &self.json(&["explain", lease])[0];
        let kept = explained["kept"].as_str().expect("text").to_owned();
        (kept, explained["phases"]["restore"].clone())
    }

    /// All files of the only tenant.
    ///
    /// # Panics
    /// If the files cannot be listed.
    pub fn files(&self) -> Vec<PathBuf> {
        let Some(folder) = fs::read_dir(self.directory.path()).expect("a folder").next() else {
            return Vec::new();
        };
        let listed = fs::read_dir(folder.expect("an entry").path()).expect("a folder");
        let mut files: Vec<_> = listed.map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        files
    }

    /// The first complete state.
    pub fn saved(&self) -> Option<PathBuf> {
        let mut files = self.files().into_iter();
        files.find(|path| path.extension().is_some_and(|end| end == "state"))
    }

    /// Drains the node that holds a lease, and waits until the node is clean; returns the node's number.
    ///
    /// # Panics
    /// If the node is not clean in time.
    pub fn drain_holder_of(&self, lease: &str) -> usize {
        let holder = self.nodes.holder(lease);
        let agent = self.nodes.nodes[holder].id();
        self.json(&["admin", "node", "drain", &agent, "--within", "60s", "--wait"]);
        holder
    }
}
