//! Tasks that need the results of others, equal tasks of which one runs, and memoised results.

pub mod checkpoint;
pub mod graph;
pub mod join_table;
