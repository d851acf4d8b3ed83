//! Environment of workers: variables that they inherit from the agent, and the size of the teams of threads that
//! libraries start.

use std::ffi::{OsStr, OsString};

/// Environment variables that a worker inherits. They contain no secrets. With them users' libraries are found
/// (`LD_LIBRARY_PATH`), print text (locale) and write files (`HOME`, `TMPDIR`).
const INHERITED: [&str; 10] = [
    "HOME",
    "HOTLEASE_LIBFABRIC",
    "HOTLEASE_LOG",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PATH",
    "RUST_BACKTRACE",
    "TMPDIR",
    "TZ",
];

/// Variable of OpenMP with the number of threads of a team. The variables of [`FOLLOWERS`] default to it.
const OPENMP: &str = "OMP_NUM_THREADS";
/// Variables of libraries that otherwise take their number of threads from [`OPENMP`]: OpenBLAS, MKL, BLIS, numexpr,
/// and Accelerate in its ports.
const FOLLOWERS: [&str; 5] = [
    "BLIS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
];
/// Variable of Rust's rayon.
const RAYON: &str = "RAYON_NUM_THREADS";
/// Number of cores of a slot. A library that is loaded before the slot's thread is pinned would otherwise count the
/// node's processors. A team of that many threads on one core takes milliseconds for a loop of one microsecond.
const CORES: &str = "1";

/// Variables that workers inherit from this process.
pub(crate) fn inherited() -> Vec<(OsString, OsString)> {
    let threads = [OPENMP, RAYON].into_iter().chain(FOLLOWERS);
    let names = INHERITED.into_iter().chain(threads);
    names
        .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
        .collect()
}

/// Adds variables that set the size of teams of threads for one slot to a worker's environment. A variable that is set
/// already is not replaced; if it is [`OPENMP`], the variables that default to it are not added.
pub(crate) fn add_team_sizes(environment: &mut Vec<(OsString, OsString)>) {
    let is_named = |name: &str| environment.iter().any(|(named, _)| named == OsStr::new(name));
    let followers = FOLLOWERS.iter().copied().filter(|_| !is_named(OPENMP));
    let names = followers.chain([OPENMP, RAYON]).filter(|name| !is_named(name));
    let added: Vec<_> = names.map(|name| (name.into(), CORES.into())).collect();
    environment.extend(added);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(named: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut environment = named.iter().map(|(name, value)| (name.into(), value.into())).collect();
        add_team_sizes(&mut environment);
        let text = |word: OsString| word.into_string().expect("text");
        let mut all: Vec<_> = environment
            .into_iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn teams_have_the_size_of_a_slot_unless_a_variable_says_otherwise() {
        let all = with(&[("PATH", "/bin")]);
        assert_eq!(all.len(), 1 + FOLLOWERS.len() + 2);
        assert!(
            all.iter().all(|(name, value)| name == "PATH" || value == "1"),
            "{all:?}"
        );
        let own = with(&[("OPENBLAS_NUM_THREADS", "3")]);
        let value = |name: &str| {
            own.iter()
                .find(|(named, _)| named == name)
                .map(|(_, value)| value.as_str())
        };
        assert_eq!(value("OPENBLAS_NUM_THREADS"), Some("3"));
        assert_eq!([OPENMP, "MKL_NUM_THREADS", RAYON].map(value), [Some("1"); 3]);
    }

    #[test]
    fn libraries_that_follow_openmp_still_do() {
        let all = with(&[(OPENMP, "4")]);
        assert_eq!(
            all,
            [(OPENMP, "4"), (RAYON, "1")].map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }
}
