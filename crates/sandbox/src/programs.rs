//! Paths of programs that are installed together.

use std::path::{Path, PathBuf};

/// Paths at which a program that belongs to `program` may be: beside it, or one in `bin` and the other in
/// `libexec/hotlease`.
pub fn candidate_paths(program: &Path, name: &str) -> [PathBuf; 2] {
    let directory = program.parent().unwrap_or(Path::new("/"));
    [directory.join(name), directory.join("../libexec/hotlease").join(name)]
}

/// Path of the program of this name that belongs to this worker's program, unless the environment `variable` names
/// another.
pub fn find_program(worker: &Path, name: &str, variable: &str) -> PathBuf {
    if let Some(named) = std::env::var_os(variable).filter(|named| !named.is_empty()) {
        return named.into();
    }
    let own = std::env::current_exe().unwrap_or_default();
    let places = [candidate_paths(worker, name), candidate_paths(&own, name)].concat();
    let found = places.iter().find(|place| place.is_file());
    found.unwrap_or(&places[0]).clone()
}
