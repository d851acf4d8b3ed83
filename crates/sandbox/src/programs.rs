//! Paths of programs that are installed together.

use std::path::{Path, PathBuf};

/// Possible paths of a program `name` that belongs to `program`: in the same folder, or in `../libexec/hotlease`
/// relative to that folder.
pub fn candidate_paths(program: &Path, name: &str) -> [PathBuf; 2] {
    let directory = program.parent().unwrap_or(Path::new("/"));
    [directory.join(name), directory.join("../libexec/hotlease").join(name)]
}

/// Path of the program `name` that belongs to the program `worker`. If the environment `variable` is set, it names the
/// path.
pub fn find_program(worker: &Path, name: &str, variable: &str) -> PathBuf {
    if let Some(named) = std::env::var_os(variable).filter(|named| !named.is_empty()) {
        return named.into();
    }
    let own = std::env::current_exe().unwrap_or_default();
    let places = [candidate_paths(worker, name), candidate_paths(&own, name)].concat();
    let found = places.iter().find(|place| place.is_file());
    found.unwrap_or(&places[0]).clone()
}
