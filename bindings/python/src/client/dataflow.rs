//! Tasks that need results of other tasks, equal tasks that run only once, and memoised results.

pub mod checkpoint;
pub mod graph;
pub mod join_table;
