//! Tests of what only a database on a disk promises: durability.

mod backups;
mod files;
mod kills;
mod place;
mod scene;
