//! `hotlease_comm_options`: options of a member that joins.

use crate::argument::{optional_text, path};
use crate::comm::rendezvous::given_secret;
use crate::status::Failure;
use hotlease_comm::Secret;
use std::ffi::{c_char, c_void};
use std::str::FromStr;
use std::time::Duration;

/// `hotlease_comm_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    struct_size: usize,
    name: *const c_char,
    rendezvous: *const c_char,
    secret: *const c_void,
    secret_size: usize,
    secret_file: *const c_char,
    size: u32,
    has_rank: u32,
    rank: u32,
    sealed: u32,
    join_timeout_ms: u64,
    failure_bound_ms: u64,
    linger_ms: u64,
    spin_us: i64,
    eager_bytes: u64,
    early_bytes: u64,
    address: *const c_char,
    newcomer: u32,
    checked: u32,
    link: *const c_char,
}

impl Default for Options {
    fn default() -> Self {
        // SAFETY: all fields are numbers or pointers.
        unsafe { std::mem::zeroed() }
    }
}

impl Options {
    /// Converts to the library's options: each is the given value, else the value in the environment, else the default.
    ///
    /// # Safety
    /// The texts and the secret are NULL or valid.
    pub(super) unsafe fn understood(&self) -> Result<hotlease_comm::Options, Failure> {
        // SAFETY: the caller's promise.
        let texts = unsafe {
            (
                optional_text(self.name, "options->name")?,
                optional_text(self.rendezvous, "options->rendezvous")?,
                optional_text(self.address, "options->address")?,
                optional_text(self.link, "options->link")?,
            )
        };
        let (name, rendezvous, address, link) = texts;
        let name = given_or(name, "options->name", "HOTLEASE_COMM_NAME")?;
        let rendezvous = given_or(rendezvous, "options->rendezvous", "HOTLEASE_COMM_RENDEZVOUS")?;
        let size = match self.size {
            0 => {
                number_variable("HOTLEASE_COMM_SIZE")?.ok_or_else(|| missing("options->size", "HOTLEASE_COMM_SIZE"))?
            }
            size => size,
        };
        // SAFETY: the caller's promise.
        let secret = unsafe { self.secret() }?;
        let mut options = hotlease_comm::Options::new(name, size, rendezvous, secret);
        #[cfg(feature = "stores")]
        {
            options.stores = hotlease_stores::openers();
        }
        options.rank = match flag(self.has_rank, "has_rank")? {
            true => Some(self.rank),
            false => number_variable("HOTLEASE_COMM_RANK")?,
        };
        options.is_sealed = flag(self.sealed, "sealed")?;
        options.is_newcomer = flag(self.newcomer, "newcomer")?;
        options.is_checked = flag(self.checked, "checked")?;
        for (given, option) in [
            (self.join_timeout_ms, &mut options.join_timeout),
            (self.failure_bound_ms, &mut options.failure_bound),
            (self.linger_ms, &mut options.linger),
        ] {
            if given != 0 {
                *option = Duration::from_millis(given);
            }
        }
        options.spin = match self.spin_us {
            0 => options.spin,
            -1 => Duration::ZERO,
            spin => Duration::from_micros(u64::try_from(spin).map_err(|_| unknown("spin_us", spin))?),
        };
        if self.eager_bytes != 0 {
            options.eager_bytes = self.eager_bytes;
        }
        if self.early_bytes != 0 {
            options.early_bytes = self.early_bytes;
        }
        let parsed = address.map(|address| address.parse().map_err(|_| unknown("address", address)));
        options.address = parsed.transpose()?;
        if let Some(link) = link {
            options.link = link.parse()?;
        }
        Ok(options)
    }

    /// Reads the secret.
    ///
    /// # Safety
    /// The secret and the file's name are NULL or valid.
    unsafe fn secret(&self) -> Result<Secret, Failure> {
        // SAFETY: the caller's promise.
        if let Some(secret) = unsafe { given_secret(self.secret, self.secret_size) }? {
            return Ok(secret);
        }
        if self.secret_file.is_null() {
            return Ok(Secret::from_environment()?);
        }
        // SAFETY: the caller's promise.
        Ok(Secret::from_file(unsafe {
            path(self.secret_file, "options->secret_file")
        }?)?)
    }
}

fn given_or(given: Option<&str>, option: &str, variable: &str) -> Result<String, Failure> {
    match given {
        Some(given) => Ok(given.to_owned()),
        None => from_environment(variable)?.ok_or_else(|| missing(option, variable)),
    }
}

fn from_environment(variable: &str) -> Result<Option<String>, Failure> {
    match std::env::var_os(variable).map(std::ffi::OsString::into_string) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(text)),
        Some(Err(_)) => Err(Failure::Argument(format!("{variable} is not UTF-8"))),
    }
}

fn number_variable<N: FromStr>(variable: &str) -> Result<Option<N>, Failure> {
    let parsed = from_environment(variable)?.map(|text| {
        let parsed = text.trim().parse();
        parsed.map_err(|_| Failure::Argument(format!("{variable} is `{text}`, which is no number that it can be")))
    });
    parsed.transpose()
}

fn flag(given: u32, field: &str) -> Result<bool, Failure> {
    match given {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(unknown(field, other)),
    }
}

fn missing(option: &str, variable: &str) -> Failure {
    Failure::Argument(format!("neither {option} nor {variable} is set"))
}

fn unknown(field: &str, value: impl std::fmt::Display) -> Failure {
    Failure::Argument(format!("options->{field} cannot be {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enough() -> Options {
        Options {
            struct_size: size_of::<Options>(),
            name: c"name".as_ptr(),
            rendezvous: c"localhost:7072".as_ptr(),
            secret: c"sixteen bytes and more".as_ptr().cast(),
            secret_size: 22,
            size: 3,
            ..Options::default()
        }
    }

    fn understood(options: Options) -> Result<hotlease_comm::Options, String> {
        // SAFETY: its texts are literals.
        unsafe { options.understood() }.map_err(|failure| match failure {
            Failure::Argument(what) => what,
            Failure::Comm(error) => error.to_string(),
            _ => "another failure".into(),
        })
    }

    #[test]
    fn zero_is_the_default_of_every_option() {
        let options = understood(enough()).expect("it is enough");
        let secret = Secret::new(b"sixteen bytes and more").expect("22 bytes");
        let mut expected = hotlease_comm::Options::new("name", 3, "localhost:7072", secret);
        expected.stores = options.stores;
        assert_eq!(format!("{options:?}"), format!("{expected:?}"));
    }

    #[test]
    fn given_options_replace_the_defaults() {
        let options = Options {
            has_rank: 1,
            sealed: 1,
            join_timeout_ms: 1,
            failure_bound_ms: 200,
            linger_ms: 3,
            spin_us: -1,
            eager_bytes: 5,
            early_bytes: 6,
            address: c"10.0.0.7".as_ptr(),
            newcomer: 1,
            checked: 1,
            link: c"redis://cache:6379".as_ptr(),
            ..enough()
        };
        let options = understood(options).expect("it makes sense");
        assert_eq!(options.rank, Some(0));
        assert!(options.is_sealed && options.is_newcomer && options.is_checked);
        let times = [
            options.join_timeout,
            options.failure_bound,
            options.linger,
            options.spin,
        ];
        assert_eq!(times, [1, 200, 3, 0].map(Duration::from_millis));
        assert_eq!((options.eager_bytes, options.early_bytes), (5, 6));
        assert_eq!(
            options.address.map(|address| address.to_string()).as_deref(),
            Some("10.0.0.7")
        );
        assert_eq!(options.link.to_string(), "redis://cache:6379");
    }

    #[test]
    fn invalid_arguments_are_refused_by_name() {
        let short = "it has 3 bytes";
        for (options, part) in [
            (
                Options {
                    has_rank: 2,
                    ..enough()
                },
                "has_rank cannot be 2",
            ),
            (Options { sealed: 7, ..enough() }, "sealed cannot be 7"),
            (
                Options {
                    spin_us: -2,
                    ..enough()
                },
                "spin_us cannot be -2",
            ),
            (
                Options {
                    address: c"here".as_ptr(),
                    ..enough()
                },
                "address cannot be here",
            ),
            (
                Options {
                    link: c"pigeons".as_ptr(),
                    ..enough()
                },
                "a link",
            ),
            (
                Options {
                    secret_size: 3,
                    ..enough()
                },
                short,
            ),
        ] {
            let refused = understood(options).expect_err(part);
            assert!(refused.contains(part), "{refused:?} lacks {part:?}");
        }
    }
}
