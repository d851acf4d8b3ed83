//! Disks, clocks and cores that behave as a test says: `fixtures/faulty_system.c` in a daemon, and orders to the
//! daemon.

use crate::library::compile;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fault of a durable operation of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    /// The daemon is killed with -9 before the operation.
    KillBefore,
    /// The daemon is killed with -9 after the operation, before any client is told.
    KillAfter,
    /// The daemon is killed with -9 in the middle of the operation: half of a write is done.
    Tear,
    /// The machine loses its power before the operation: writes that were not synced are lost, in part.
    Power,
    /// The operation fails: no space.
    NoSpace,
    /// The operation fails: device error.
    IoError,
}

const OPERATIONS: u64 = 0;
const STRIKE_AT: u64 = 8;
const SPAN: u64 = 16;
const CLOCK: u64 = 24;
const HOW: u64 = 32;
const CORES: u64 = 36;
const STRUCK: u64 = 40;
const SEED: u64 = 44;
const PREFIX: u64 = 48;
const PREFIX_BYTES: usize = 200;

/// Orders to the daemons that were started under them.
#[derive(Debug)]
pub struct System {
    orders: File,
    path: PathBuf,
}

impl System {
    /// Makes orders without faults. `orders` is the file to make; operations on files under `state` are durable
    /// operations.
    ///
    /// # Panics
    /// If the file cannot be made.
    pub fn new(orders: &Path, state: &Path) -> Self {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(orders).expect("a file of orders");
        file.set_len(4096).expect("its length");
        let system = Self {
            orders: file,
            path: orders.to_owned(),
        };
        let prefix = state.to_str().expect("a path in UTF-8").as_bytes();
        assert!(prefix.len() < PREFIX_BYTES, "too long a path");
        system.put(PREFIX, prefix);
        system
    }

    /// Makes a daemon start under these orders.
    pub fn over(&self, command: &mut Command) {
        command.env("LD_PRELOAD", Self::library());
        command.env("HOTLEASE_TEST_SYSTEM", &self.path);
    }

    /// The library that obeys the orders.
    pub fn library() -> PathBuf {
        compile("faulty_system", &[])
    }

    /// The file of orders.
    pub fn orders(&self) -> &Path {
        &self.path
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        // A write to the file is a write to the memory that the daemon has mapped.
        self.orders.write_all_at(bytes, at).expect("an order");
    }

    fn number<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.orders.read_exact_at(&mut bytes, at).expect("a number");
        bytes
    }

    /// Number of durable operations so far, of all daemons under these orders.
    pub fn operations(&self) -> u64 {
        u64::from_le_bytes(self.number(OPERATIONS))
    }

    /// Number of durable operations that were struck.
    pub fn struck(&self) -> u32 {
        u32::from_le_bytes(self.number(STRUCK))
    }

    /// Strikes operation `number`, counted from 1, and the operations after it, `span` in all. [`Strike::Power`] must
    /// be ordered before the daemon starts, as the library must know which writes were not synced.
    pub fn strike(&self, number: u64, span: u64, how: Strike, seed: u64) {
        let how: u32 = match how {
            Strike::KillBefore => 1,
            Strike::KillAfter => 2,
            Strike::Tear => 3,
            Strike::Power => 4,
            Strike::NoSpace => 5,
            Strike::IoError => 6,
        };
        self.put(STRIKE_AT, &0u64.to_le_bytes());
        self.put(HOW, &how.to_le_bytes());
        self.put(SPAN, &span.to_le_bytes());
        self.put(SEED, &(seed as u32).to_le_bytes());
        self.put(STRIKE_AT, &number.to_le_bytes());
    }

    /// Strikes the next operations.
    pub fn strike_next(&self, span: u64, how: Strike) {
        self.strike(self.operations() + 1, span, how, 0);
    }

    /// Ends all strikes.
    pub fn heal(&self) {
        self.put(STRIKE_AT, &0u64.to_le_bytes());
    }

    /// Shifts the time of day by `seconds`.
    pub fn set_clock(&self, seconds: i64) {
        self.put(CLOCK, &(seconds * 1_000_000_000).to_le_bytes());
    }

    /// Makes the machine pretend to have this many cores, at most 1024.
    pub fn pretend_cores(&self, cores: u32) {
        self.put(CORES, &cores.to_le_bytes());
    }
}
