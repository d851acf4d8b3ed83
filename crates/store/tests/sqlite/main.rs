//! Tests of a promise that only a database on a disk makes: durability.

mod backups;
mod directory;
mod files;
mod kills;
mod marks;
mod records;
