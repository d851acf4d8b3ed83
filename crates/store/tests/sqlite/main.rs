//! Tests of what only a database on a disk promises: durability.

mod backups;
mod directory;
mod files;
mod kills;
mod marks;
mod records;
