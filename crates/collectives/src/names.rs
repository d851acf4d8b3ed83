//! Names of values in tables, in errors and on command lines.

use crate::error::Error;

/// Name of a value.
pub(crate) fn name_of<T: PartialEq>(names: &[(T, &'static str)], value: &T) -> &'static str {
    let found = names.iter().find(|(named, _)| named == value);
    found.map_or("?", |(_, name)| name)
}

/// Value with this name; the error lists the names of all values of this kind.
pub(crate) fn parse_name<T: Copy>(names: &[(T, &str)], kind: &str, text: &str) -> Result<T, Error> {
    let found = names.iter().find(|(_, name)| *name == text);
    found.map(|(value, _)| *value).ok_or_else(|| {
        let names: Vec<&str> = names.iter().map(|(_, name)| *name).collect();
        let what = format!("there is no {kind} `{text}`; there are {}", names.join(", "));
        Error::Options { what }
    })
}
