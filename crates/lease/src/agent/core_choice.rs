//! Choice of cores in the words of an operator.

use std::fmt;
use std::str::FromStr;

/// Choice of cores to offer, among those that the agent may run on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CoreChoice {
    /// All cores that the agent may run on.
    #[default]
    All,
    /// This number of cores, counted from the end, because most systems put their own work on the first cores.
    Count(usize),
    /// These cores.
    List(Vec<u32>),
    /// No core until the manager orders otherwise: standby.
    NoCores,
}

/// Error: a text that is no [`CoreChoice`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names no cores: write {}", advice(.text))]
pub struct BadCoreChoice {
    text: String,
}

fn advice(text: &str) -> &'static str {
    match text.parse() {
        Ok(0) => "`none` for no core, or `0,` for the core of this number",
        _ => "`all`, `none`, a count like `2`, or a list like `0,2-5`",
    }
}

/// More cores than any host has; a bound for lists like `0-4294967295`.
const CORES_MAX: usize = 8192;

impl FromStr for CoreChoice {
    type Err = BadCoreChoice;

    /// Parses `all`, `none`, a count (`2`), or a list of numbers and ranges (`0,2-5`). A list of one number ends with a
    /// comma: `3,`.
    fn from_str(text: &str) -> Result<Self, BadCoreChoice> {
        let bad = || BadCoreChoice { text: text.to_owned() };
        if text == "all" {
            return Ok(Self::All);
        }
        if text == "none" {
            return Ok(Self::NoCores);
        }
        if let Ok(count) = text.parse::<usize>() {
            return match count {
                0 => Err(bad()),
                count => Ok(Self::Count(count)),
            };
        }
        let mut cores = Vec::new();
        for part in text.trim_end_matches(',').split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u32 = first.trim().parse().map_err(|_| bad())?;
            let last: u32 = last.trim().parse().map_err(|_| bad())?;
            if last < first || cores.len() + (last - first) as usize >= CORES_MAX {
                return Err(bad());
            }
            cores.extend(first..=last);
        }
        cores.sort_unstable();
        cores.dedup();
        Ok(Self::List(cores))
    }
}

impl fmt::Display for CoreChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::NoCores => f.write_str("none"),
            Self::Count(count) => count.fmt(f),
            Self::List(cores) => {
                for (position, core) in cores.iter().enumerate() {
                    let comma = if position > 0 && cores.len() > 1 { "," } else { "" };
                    write!(f, "{comma}{core}")?;
                }
                if cores.len() == 1 {
                    f.write_str(",")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_choices_are_read_and_written_alike() {
        for (text, choice) in [
            ("all", CoreChoice::All),
            ("none", CoreChoice::NoCores),
            ("2", CoreChoice::Count(2)),
            ("3,", CoreChoice::List(vec![3])),
            ("0,2-4", CoreChoice::List(vec![0, 2, 3, 4])),
            ("5,1,5", CoreChoice::List(vec![1, 5])),
        ] {
            assert_eq!(text.parse(), Ok(choice.clone()), "{text}");
            assert_eq!(choice.to_string().parse(), Ok(choice.clone()), "{choice} from {text}");
        }
        for bad in ["", "0", "-1", "a", "1,,2", "5-2", "0-4294967295", "1-", ",", "1;2"] {
            assert!(bad.parse::<CoreChoice>().is_err(), "{bad:?} was taken");
        }
        let zero = "0".parse::<CoreChoice>().map_err(|error| error.to_string());
        assert!(zero.is_err_and(|error| error.contains("`none`") && error.contains("`0,`")));
    }
}
