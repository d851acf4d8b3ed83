//! What only a database on a disk can promise: to survive.

mod backups;
mod files;
mod kills;
mod place;
mod scene;
