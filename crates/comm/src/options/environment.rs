//! Options from environment variables, which tell a program the communicator to join; `hotlease comm run` sets them,
//! for instance.

use super::Options;
use crate::error::Error;
use crate::secret::Secret;
use hotlease_collectives::Rank;
use std::ffi::OsString;

const RENDEZVOUS: &str = "HOTLEASE_COMM_RENDEZVOUS";
const NAME: &str = "HOTLEASE_COMM_NAME";
const SIZE: &str = "HOTLEASE_COMM_SIZE";
const RANK: &str = "HOTLEASE_COMM_RANK";

impl Options {
    /// Returns whether the environment has at least one of the variables that name the communicator to join.
    pub fn is_in_env() -> bool {
        [RENDEZVOUS, NAME, SIZE, RANK]
            .iter()
            .any(|name| std::env::var_os(name).is_some())
    }

    /// Reads options from the environment. Options without a variable here have their defaults:
    ///
    /// | variable | what |
    /// |---|---|
    /// | `HOTLEASE_COMM_RENDEZVOUS` | address of the rendezvous, `host:port` |
    /// | `HOTLEASE_COMM_NAME` | name of the communicator |
    /// | `HOTLEASE_COMM_SIZE` | number of members |
    /// | `HOTLEASE_COMM_RANK` | rank of this member; any free rank if not set |
    /// | `HOTLEASE_COMM_LINK` | `direct`, `tcp`, `ofi`, a store, or `auto`: see [`LinkChoice`](crate::LinkChoice) |
    /// | `HOTLEASE_COMM_LINKS`, `HOTLEASE_COMM_PRICES` | links and prices for `auto`: see [`AutoLink`](crate::AutoLink) |
    /// | `HOTLEASE_COMM_SECRET`, or `HOTLEASE_COMM_SECRET_FILE` | see [`Secret::from_environment`] |
    ///
    /// # Errors
    /// [`Error::Options`] with the variable that is missing or invalid; [`Error::Secret`].
    pub fn from_env() -> Result<Self, Error> {
        Self::of_variables(|name| std::env::var_os(name), Secret::from_environment)
    }

    fn of_variables(
        variable: impl Fn(&str) -> Option<OsString>,
        secret: impl FnOnce() -> Result<Secret, Error>,
    ) -> Result<Self, Error> {
        let rendezvous = text(
            RENDEZVOUS,
            variable(RENDEZVOUS),
            "the address of a rendezvous, host:port",
        )?;
        let name = text(NAME, variable(NAME), "the name of the communicator")?;
        let size = text(SIZE, variable(SIZE), "how many members it has")?;
        let mut options = Self::new(name, number(SIZE, &size)?, rendezvous, secret()?);
        if let Some(rank) = variable(RANK) {
            let rank = text(RANK, Some(rank), "this member's rank")?;
            options.rank = Some(number(RANK, &rank)?);
        }
        options.check()?;
        Ok(options)
    }
}

fn text(name: &str, value: Option<OsString>, what: &str) -> Result<String, Error> {
    let wrong = |why: String| Error::Options { what: why };
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Err(wrong(format!(
            "{name} is not set: {what}; `hotlease comm run -n 4 PROGRAM` sets all of them"
        )));
    };
    let value = value.into_string();
    value.map_err(|value| wrong(format!("{name} is {value:?}, which is no text")))
}

fn number(name: &str, text: &str) -> Result<Rank, Error> {
    text.trim().parse().map_err(|_| Error::Options {
        what: format!("{name} is {text:?}; it is a number"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Options, Error> {
        Options::of_variables(
            |name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.into())
            },
            || Secret::new(&[1; 16]),
        )
    }

    const ALL: [(&str, &str); 3] = [(RENDEZVOUS, "localhost:7072"), (NAME, "sums"), (SIZE, "4")];

    #[test]
    fn variables_of_the_environment_set_the_options() {
        let options = of(&ALL).expect("all that is needed");
        assert_eq!((options.name.as_str(), options.size, options.rank), ("sums", 4, None));
        assert_eq!(options.rendezvous, "localhost:7072");
        let with_rank: Vec<_> = ALL.into_iter().chain([(RANK, "3")]).collect();
        assert_eq!(of(&with_rank).expect("a rank too").rank, Some(3));
    }

    #[test]
    fn missing_and_invalid_variables_are_named() {
        for (missing, _) in ALL {
            let rest: Vec<_> = ALL.into_iter().filter(|(name, _)| *name != missing).collect();
            let text = of(&rest).expect_err(missing).to_string();
            assert!(text.contains(missing), "{text:?} does not name {missing}");
        }
        for (name, value) in [(SIZE, "many"), (SIZE, ""), (RANK, "-1"), (RANK, "4")] {
            let changed: Vec<_> = ALL
                .into_iter()
                .filter(|(known, _)| *known != name)
                .chain([(name, value)])
                .collect();
            let text = of(&changed).expect_err(value).to_string();
            let names_it = text.contains(name) || text.contains("rank 4 of 4");
            assert!(names_it, "{text:?} does not name {name}");
        }
    }
}
