//! Values that an attempt gets in its environment: names of objects outside. These names must not make the attempt
//! succeed.

use crate::attempt::{StopReason, untried};
use std::path::PathBuf;
use std::str::FromStr;

/// Prefix of the variables' names.
pub const PREFIX: &str = "HOTLEASE_ESCAPE_";

pub(crate) fn text(name: &str) -> Result<String, StopReason> {
    match std::env::var(format!("{PREFIX}{name}")) {
        Ok(value) => Ok(value),
        Err(_) => untried(format!("this host's neighbour has no {name}")),
    }
}

pub(crate) fn path(name: &str) -> Result<PathBuf, StopReason> {
    Ok(text(name)?.into())
}

pub(crate) fn number<T: FromStr>(name: &str) -> Result<T, StopReason> {
    let value = text(name)?;
    match value.parse() {
        Ok(number) => Ok(number),
        Err(_) => untried(format!("{name} is {value:?}, and no number")),
    }
}
