//! Environment of a program inside a machine or a container. The process outside, which makes the machine or container,
//! carries it in its own environment.
//!
//! A tenant chooses variables of its workers. The loader, the C library, interpreters and container runtimes obey
//! variables such as `LD_PRELOAD`, `GLIBC_TUNABLES` or `PYTHONPATH`; in a process outside they would run the tenant's
//! code there. Therefore the process outside gets each variable under a name that no program uses; the variable gets
//! back its real name only inside.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Prefix of the names that carry variables of the program inside.
const PREFIX: &str = "HOTLEASE_INSIDE_";

/// Renames the variables to names that no program uses.
pub fn wrap(environment: &[(OsString, OsString)]) -> Vec<(OsString, OsString)> {
    let wrapped = environment.iter().map(|(name, value)| {
        let mut outside = OsString::from(PREFIX);
        outside.push(name);
        (outside, value.clone())
    });
    wrapped.collect()
}

/// Finds the variables that [`wrap`] has renamed in this environment, and gives them back their real names.
pub fn unwrap(environment: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let hidden = environment.into_iter().filter_map(|(name, value)| {
        let name = name.as_bytes().strip_prefix(PREFIX.as_bytes())?;
        Some((OsString::from_vec(name.to_vec()), value))
    });
    hidden.collect()
}

/// Name that carries the variable of this number, if the name of the variable is passed in another way.
pub(crate) fn numbered(number: usize) -> OsString {
    format!("{PREFIX}{number}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_come_out_as_they_went_in_and_no_others() {
        let list = |pairs: &[(&str, &str)]| -> Vec<(OsString, OsString)> {
            let pairs = pairs.iter();
            pairs.map(|(name, value)| (name.into(), value.into())).collect()
        };
        let inside = list(&[
            ("LD_PRELOAD", "/data/x.so"),
            ("HOTLEASE_INSIDE_", "a=b"),
            ("HOTLEASE_INSIDE_LD_AUDIT", ""),
        ]);
        let outside = wrap(&inside);
        assert!(
            outside
                .iter()
                .all(|(name, _)| name.as_bytes().starts_with(PREFIX.as_bytes())),
            "{outside:?}"
        );
        let all = list(&[("PATH", "/usr/bin")]).into_iter().chain(outside);
        assert_eq!(unwrap(all), inside);
    }
}
