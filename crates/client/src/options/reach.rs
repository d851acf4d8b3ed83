//! Reach: what functions may use beyond their sandbox, and the check of a grant against the request.

use crate::Error;
use hotlease_wire::grpc;
use hotlease_wire::limits::{DIRECTORIES_MAX, PATH_BYTES_MAX, STORAGE_MAX};
use hotlease_wire::storage::StoragePlace;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// Resources beyond the sandbox that functions of a lease may use. A site that does not grant them refuses the
/// lease.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reach {
    /// Directories of the nodes' hosts. Default: none; at most 16.
    pub directories: Vec<Directory>,
    /// The host's network: gangs need it, and so do workers whose client is on another host. Default: no.
    pub network: bool,
    /// Object storage, with keys that the agent makes for the lease and puts into the environment of its workers.
    /// Default: none; at most 16.
    pub storage: Vec<StoragePlace>,
}

/// A directory of the node's host that functions see. Text forms: `PATH`, `PATH:rw`, `PATH:INSIDE` or
/// `PATH:INSIDE:rw`.
///
/// ```
/// use hotlease_client::Directory;
/// let scratch: Directory = "/scratch/ann:rw".parse()?;
/// assert!(scratch.writable && scratch.inside.is_none());
/// # Ok::<(), hotlease_client::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Path on the host: absolute, at most 1024 bytes.
    pub path: PathBuf,
    /// Path at which functions see it. Default: the same path.
    pub inside: Option<PathBuf>,
    /// Whether functions may change it. Default: no.
    pub writable: bool,
}

impl FromStr for Directory {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut parts: Vec<&str> = text.split(':').collect();
        let writable = parts.last() == Some(&"rw");
        if writable {
            parts.pop();
        }
        let (path, inside) = match parts[..] {
            [path] => (path, None),
            [path, inside] => (path, Some(inside)),
            _ => {
                return Err(Error::Options {
                    what: format!("a mount is PATH[:INSIDE][:rw], not {text:?}"),
                });
            }
        };
        let directory = Self {
            path: path.into(),
            inside: inside.map(Into::into),
            writable,
        };
        directory.check().map(|()| directory)
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)?;
        if let Some(inside) = &self.inside {
            write!(f, ":{}", inside.display())?;
        }
        f.write_str(if self.writable { ":rw" } else { "" })
    }
}

impl Directory {
    fn check(&self) -> Result<(), Error> {
        let is_plain = |path: &Path| {
            path.is_absolute()
                && path.to_str().is_some_and(|text| text.len() <= PATH_BYTES_MAX)
                && path
                    .components()
                    .all(|part| matches!(part, Component::Normal(_) | Component::RootDir))
        };
        if [Some(&self.path), self.inside.as_ref()]
            .into_iter()
            .flatten()
            .all(|path| is_plain(path))
        {
            return Ok(());
        }
        Err(Error::Options {
            what: format!(
                "paths of mounts are absolute, without `..`, and have at most {PATH_BYTES_MAX} bytes of UTF-8, unlike {self}"
            ),
        })
    }
}

impl Reach {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.directories.len() > DIRECTORIES_MAX {
            return Err(Error::Options {
                what: format!(
                    "mounts must be at most {DIRECTORIES_MAX}, not {}",
                    self.directories.len()
                ),
            });
        }
        if self.storage.len() > STORAGE_MAX {
            return Err(Error::Options {
                what: format!(
                    "places of storage must be at most {STORAGE_MAX}, not {}",
                    self.storage.len()
                ),
            });
        }
        for place in &self.storage {
            let what = match place.to_string().parse::<StoragePlace>() {
                Ok(same) if same == *place => continue,
                Ok(_) => format!("{place} is another file than intended"),
                Err(bad) => bad.to_string(),
            };
            return Err(Error::Options { what });
        }
        self.directories.iter().try_for_each(Directory::check)
    }

    pub(crate) fn request(&self) -> Option<grpc::Reach> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let directory = |of: &Directory| grpc::Directory {
            path: text(&of.path),
            inside: of.inside.as_deref().map(text).unwrap_or_default(),
            writable: of.writable,
        };
        (*self != Self::default()).then(|| grpc::Reach {
            directories: self.directories.iter().map(directory).collect(),
            network: self.network,
            storage: self.storage.iter().map(StoragePlace::to_string).collect(),
            ..grpc::Reach::default()
        })
    }

    /// The reach in a grant. The grant must state what was requested: if it does not, the agent has not understood the
    /// request.
    pub(crate) fn check_granted(&self, says: Option<&grpc::Reach>) -> Result<Self, Error> {
        let says = says.cloned().unwrap_or_default();
        let of = |of: grpc::Directory| Directory {
            path: of.path.into(),
            inside: (!of.inside.is_empty()).then(|| of.inside.into()),
            writable: of.writable,
        };
        let storage = says.storage.iter().map(|text| text.parse());
        let granted = Self {
            directories: says.directories.into_iter().map(of).collect(),
            network: says.network,
            // Text that cannot be parsed is not what was requested.
            storage: storage.filter_map(Result::ok).collect(),
        };
        if granted.directories != self.directories
            || granted.storage != self.storage
            || (self.network && !granted.network)
        {
            return Err(Error::protocol(
                "the agent's grant does not state the mounts, the storage or the network that were asked for; install the same \
                 hotlease on both sides",
            ));
        }
        Ok(granted)
    }

    /// The reach that two leases have in common.
    pub(crate) fn of_both(self, other: &Self) -> Self {
        Self {
            network: self.network && other.network,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_read_and_written_alike() {
        for (text, inside, writable) in [
            ("/scratch/ann", None, false),
            ("/scratch/ann:rw", None, true),
            ("/scratch/ann:/data", Some("/data"), false),
            ("/scratch/ann:/data:rw", Some("/data"), true),
        ] {
            let directory: Directory = text.parse().expect("good");
            assert_eq!(
                (directory.inside.as_deref(), directory.writable),
                (inside.map(Path::new), writable)
            );
            assert_eq!(directory.to_string(), text);
        }
        for bad in ["", "rw", ":rw", "scratch", "/a/../b", "/a:b", "/a:/b:/c", "/a:/b:ro"] {
            assert!(bad.parse::<Directory>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_grant_states_what_was_asked_for() {
        let asked = Reach {
            directories: vec!["/scratch/ann:/data:rw".parse().expect("good")],
            network: true,
            storage: vec!["s3://data/ann:rw".parse().expect("good")],
        };
        let says = asked.request();
        assert_eq!(asked.check_granted(says.as_ref()).expect("the same"), asked);
        assert!(asked.check_granted(None).is_err(), "an agent that knows nothing of it");
        let mut less = says.clone().expect("asked");
        less.storage.clear();
        assert!(
            asked.check_granted(Some(&less)).is_err(),
            "an agent that knows nothing of storage"
        );
        let nothing = Reach::default();
        assert_eq!(nothing.request(), None);
        let more = grpc::Reach {
            network: true,
            ..grpc::Reach::default()
        };
        assert!(nothing.check_granted(Some(&more)).expect("of kind process").network);
    }
}
