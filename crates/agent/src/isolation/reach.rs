//! Access of a lease's functions beyond their sandbox: what its client asked for, as far as the site grants it to the
//! tenant.
//!
//! Code of the agent's own user gains nothing by leaving a sandbox, so that user may ask for any directory; other
//! tenants may ask for directories that an operator has granted. Only paths are compared here; the nursery opens the
//! directories, link by link (see [`hotlease_sandbox::DeclaredDirectory`]).

use hotlease_sandbox::{DeclaredDirectory, Kind, WorkerReach};
use hotlease_wire::Rejection;
use hotlease_wire::grpc;
use hotlease_wire::limits::{DIRECTORIES_MAX, PATH_BYTES_MAX};
use nix::unistd::{AccessFlags, access};
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// Placeholder for the name of the tenant that asks.
pub(crate) const TENANT: &str = "{tenant}";
/// Suffix of a grant or request to write.
const WRITABLE: &str = ":rw";
/// The system's own folders, on which nothing else is mounted.
const SYSTEM: [&str; 8] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc"];

/// A directory that an operator lets leases ask for, with everything in it: `PATH`, or `PATH:rw` to write there.
/// `{tenant}` in it is the name of the tenant that asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryGrant {
    path: String,
    writable: bool,
}

/// Error: a text that is no [`DirectoryGrant`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} grants no directory: write an absolute path without `..`, such as /scratch/{{tenant}}, and :rw behind it to let functions write"
)]
pub struct BadDirectoryGrant {
    text: String,
}

impl FromStr for DirectoryGrant {
    type Err = BadDirectoryGrant;

    fn from_str(text: &str) -> Result<Self, BadDirectoryGrant> {
        let (path, writable) = match text.strip_suffix(WRITABLE) {
            Some(path) => (path, true),
            None => (text, false),
        };
        match is_plain(Path::new(path)) {
            true => Ok(Self {
                path: path.to_owned(),
                writable,
            }),
            false => Err(BadDirectoryGrant { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for DirectoryGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.writable { WRITABLE } else { "" };
        write!(f, "{}{end}", self.path)
    }
}

impl DirectoryGrant {
    /// The path up to the first part with the tenant's name, and the rest; `None` if this tenant has no grant.
    fn of(&self, tenant: &str) -> Option<(PathBuf, PathBuf)> {
        let mut parts = [PathBuf::new(), PathBuf::new()];
        let mut is_named = false;
        for part in Path::new(&self.path).components() {
            let text = part.as_os_str().to_str()?;
            is_named |= text.contains(TENANT);
            parts[usize::from(is_named)].push(text.replace(TENANT, tenant));
        }
        let [trusted, own] = parts;
        // A name such as `..` or `a/b` would lead to another directory.
        let same =
            own.components().count() + trusted.components().count() == Path::new(&self.path).components().count();
        (same && is_plain(&trusted.join(&own))).then_some((trusted, own))
    }
}

fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && path
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::RootDir))
}

/// Access that a site grants to leases.
#[derive(Debug, Clone, Default)]
pub(crate) struct Grants {
    /// Directories that leases may ask for.
    pub directories: Vec<DirectoryGrant>,
    /// Whether leases may ask for the host's network.
    pub network: bool,
    /// Name of the host, as its operator has set it.
    pub node: String,
}

impl Grants {
    /// Returns the access of a lease's workers that `asked` requests, in a sandbox of this kind. `is_own`: the tenant
    /// is the agent's own user, who needs no grants. Blocks: looks at directories, perhaps over a network.
    pub fn reach(
        &self,
        asked: &grpc::Reach,
        (tenant, is_own): (&str, bool),
        kind: Kind,
    ) -> Result<WorkerReach, Rejection> {
        if asked.directories.len() > DIRECTORIES_MAX {
            return Err(Rejection::TooMany {
                what: "directories that a lease declares".into(),
                limit: DIRECTORIES_MAX as u64,
            });
        }
        if kind == Kind::Process {
            for directory in &asked.directories {
                self.check_of_process(directory)?;
            }
            // Workers run as the agent's own user, with the host's own file systems and network.
            return Ok(WorkerReach {
                directories: Vec::new(),
                network: true,
                ..WorkerReach::default()
            });
        }
        if asked.network && !self.network {
            return Err(self.refused(
                "the network".into(),
                "this site gives sandboxes none; do without it, or have its operator grant it with `hotlease agent \
                 --sandbox-network`"
                    .into(),
            ));
        }
        let mut directories: Vec<DeclaredDirectory> = Vec::new();
        for directory in &asked.directories {
            let declared = self.declared(directory, tenant, is_own)?;
            if directories.iter().any(|other| other.target == declared.target) {
                return Err(bad(directory, "another directory has the same path in the sandbox"));
            }
            declared.check().map_err(|error| {
                self.refused(
                    directory_text(directory),
                    format!("{error}; nothing forbids it, but it cannot be opened on this node"),
                )
            })?;
            directories.push(declared);
        }
        Ok(WorkerReach {
            directories,
            network: asked.network,
            ..WorkerReach::default()
        })
    }

    fn refused(&self, what: String, why: String) -> Rejection {
        Rejection::OutOfReach {
            what,
            node: self.node.clone(),
            why,
        }
    }

    fn check_of_process(&self, directory: &grpc::Directory) -> Result<(), Rejection> {
        let (path, inside) = paths(directory)?;
        if inside != path {
            return Err(bad(
                directory,
                "in a sandbox of kind process a directory has its path of the host; leave out the path in the sandbox, \
                 or ask for kind namespace",
            ));
        }
        let needed = match directory.writable {
            true => AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK,
            false => AccessFlags::R_OK | AccessFlags::X_OK,
        };
        let seen = std::fs::metadata(path).and_then(|found| match found.is_dir() {
            true => Ok(access(path, needed)?),
            false => Err(std::io::ErrorKind::NotADirectory.into()),
        });
        seen.map_err(|error| {
            let why = format!("{error}, for the agent's user, which runs functions in a sandbox of kind process");
            self.refused(directory_text(directory), why)
        })
    }

    fn declared(
        &self,
        directory: &grpc::Directory,
        tenant: &str,
        is_own: bool,
    ) -> Result<DeclaredDirectory, Rejection> {
        let (path, inside) = paths(directory)?;
        let declared = |trusted: PathBuf, own: PathBuf, beneath: PathBuf, as_owner| DeclaredDirectory {
            trusted,
            own,
            beneath,
            target: inside.to_owned(),
            writable: directory.writable,
            as_owner,
        };
        let system = SYSTEM.iter().map(Path::new);
        if system
            .into_iter()
            .any(|own| inside.starts_with(own) || own.starts_with(inside))
        {
            return Err(bad(directory, "it would cover the system's own files"));
        }
        let found = if is_own {
            declared(path.to_owned(), PathBuf::new(), PathBuf::new(), true)
        } else {
            let mut granted: Vec<_> = self.grants_for(tenant).collect();
            // After sorting, the longest granted path that fits is found first.
            granted.sort_by_key(|(_, trusted, own)| {
                std::cmp::Reverse(trusted.components().count() + own.components().count())
            });
            let fits = granted.into_iter().find_map(|(grant, trusted, own)| {
                let beneath = path.strip_prefix(trusted.join(&own)).ok()?;
                let may = grant.writable || !directory.writable;
                // In its own directory, and where it may write, a tenant has the owner's rights. In a shared directory
                // that it can only read, it has the rights of other users.
                let as_owner = directory.writable || !own.as_os_str().is_empty();
                may.then(|| declared(trusted, own, beneath.to_owned(), as_owner))
            });
            fits.ok_or_else(|| self.not_granted(directory, tenant))?
        };
        match found.fault() {
            Some(fault) => Err(bad(directory, &fault)),
            None => Ok(found),
        }
    }

    /// Grants that apply to this tenant.
    fn grants_for(&self, tenant: &str) -> impl Iterator<Item = (&DirectoryGrant, PathBuf, PathBuf)> {
        let of = move |grant| {
            let (trusted, own) = DirectoryGrant::of(grant, tenant)?;
            Some((grant, trusted, own))
        };
        self.directories.iter().filter_map(of)
    }

    fn not_granted(&self, directory: &grpc::Directory, tenant: &str) -> Rejection {
        let granted: Vec<String> = self
            .grants_for(tenant)
            .take(DIRECTORIES_MAX)
            .map(|(grant, trusted, own)| {
                let how = if grant.writable { "to read and write" } else { "to read" };
                let path: PathBuf = trusted.components().chain(own.components()).collect();
                format!("{} {how}", path.display())
            })
            .collect();
        let granted = match granted.is_empty() {
            true => "no directory".to_owned(),
            false => granted.join(", "),
        };
        let end = if directory.writable { WRITABLE } else { "" };
        self.refused(
            directory_text(directory),
            format!(
                "this site grants tenant {tenant} {granted}; ask for what is granted, or have its operator grant it with \
                 `hotlease agent --sandbox-grant {}{end}`",
                directory.path
            ),
        )
    }
}

fn directory_text(directory: &grpc::Directory) -> String {
    let how = if directory.writable {
        "to read and write"
    } else {
        "to read"
    };
    format!("{} {how}", directory.path)
}

fn bad(directory: &grpc::Directory, why: &str) -> Rejection {
    Rejection::BadRequest {
        what: format!("the directory {}: {why}", directory.path),
    }
}

/// Path of a directory on the host, and in the sandbox.
fn paths(directory: &grpc::Directory) -> Result<(&Path, &Path), Rejection> {
    let grpc::Directory { path, inside, .. } = directory;
    if path.len().max(inside.len()) > PATH_BYTES_MAX || !is_plain(Path::new(path)) {
        let why = format!("its path must be absolute, without `..`, and have at most {PATH_BYTES_MAX} bytes");
        return Err(bad(directory, &why));
    }
    match inside.as_str() {
        "" => Ok((Path::new(path), Path::new(path))),
        inside => Ok((Path::new(path), Path::new(inside))),
    }
}

/// Message that describes the access of a lease to its client. The directories are taken from `asked`, because `reach`
/// lists none for kind `process`.
pub(crate) fn client_reach(reach: &WorkerReach, asked: &grpc::Reach) -> grpc::Reach {
    grpc::Reach {
        directories: asked.directories.clone(),
        network: reach.network,
        ..grpc::Reach::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(directories: &[&str], network: bool) -> Grants {
        Grants {
            directories: directories.iter().map(|text| text.parse().expect("a grant")).collect(),
            network,
            node: "n1".into(),
        }
    }

    fn asking(path: &str, writable: bool) -> grpc::Reach {
        grpc::Reach {
            directories: vec![grpc::Directory {
                path: path.into(),
                inside: "/data".into(),
                writable,
            }],
            ..grpc::Reach::default()
        }
    }

    #[test]
    fn grants_are_read_and_written_alike() {
        for text in ["/scratch/{tenant}", "/scratch/{tenant}:rw", "/data/a:b"] {
            assert_eq!(text.parse::<DirectoryGrant>().expect("good").to_string(), text);
        }
        for bad in ["", "scratch", "/a/../b", ":rw", "a:rw"] {
            assert!(bad.parse::<DirectoryGrant>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn no_lease_reaches_what_is_not_granted() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).display().to_string();
        for name in ["scratch/ann/runs", "scratch/bob", "reference", "home"] {
            std::fs::create_dir_all(at(name)).expect("made");
        }
        std::os::unix::fs::symlink("bob", at("scratch/eve")).expect("linked");
        for user in ["ann", "bob"] {
            // A writable directory of root would be refused.
            let given = std::os::unix::fs::chown(at(&format!("scratch/{user}")), Some(54_321), None);
            assert!(given.is_ok() || !nix::unistd::geteuid().is_root());
        }
        let (own, shared) = (at("scratch/{tenant}:rw"), at("reference"));
        let grants = grants(&[&own, &shared], false);
        for (tenant, name, writable, is_good) in [
            ("ann", "scratch/ann", true, true),
            ("ann", "scratch/ann/runs", true, true),
            ("ann", "scratch/ann", false, true),
            ("ann", "reference", false, true),
            ("ann", "reference", true, false),
            ("ann", "scratch/bob", false, false),
            ("ann", "scratch", false, false),
            ("ann", "home", false, false),
            ("ann", "scratch/ann/missing", false, false),
            ("ann", "scratch/ann/../bob", false, false),
            ("eve", "scratch/eve", false, false),
            ("..", "scratch/..", false, false),
            ("..", "", false, false),
            (".", "scratch", false, false),
            ("ann/runs", "scratch/ann/runs", false, false),
            ("uid:7", "home", false, false),
        ] {
            let asked = asking(&at(name), writable);
            let reach = grants.reach(&asked, (tenant, false), Kind::Namespace);
            assert_eq!(reach.is_ok(), is_good, "{tenant} asks for {name}: {reach:?}");
        }
        let refused = grants.reach(&asking(&at("home"), true), ("ann", false), Kind::Namespace);
        let Err(Rejection::OutOfReach { what, node, why }) = refused else {
            panic!("{refused:?}")
        };
        assert!(what.contains(&at("home")) && node == "n1", "{what} on {node}");
        for word in [
            at("scratch/ann"),
            at("reference"),
            format!("--sandbox-grant {}:rw", at("home")),
        ] {
            assert!(why.contains(&word), "{why} does not say {word}");
        }
        let anything = grants.reach(&asking(&at("home"), false), ("uid:7", true), Kind::Namespace);
        assert!(anything.is_ok(), "its own user reaches it anyhow: {anything:?}");
    }

    #[test]
    fn a_tenant_s_own_directory_is_seen_as_its_owner_and_a_shared_one_as_everybody() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("ann")).expect("made");
        let base = folder.path().display().to_string();
        let grants = grants(&[&base, &format!("{base}/{{tenant}}")], false);
        let as_owner = |path: String| {
            let reach = grants.reach(&asking(&path, false), ("ann", false), Kind::Namespace);
            reach.expect("granted").directories[0].as_owner
        };
        assert!(as_owner(format!("{base}/ann")) && !as_owner(base.clone()));
    }

    #[test]
    fn directories_of_the_sandbox_itself_cannot_be_covered() {
        for inside in ["/usr/lib", "/", "/etc", "/proc/1", "/dev", "data", "/a/../usr"] {
            let mut asked = asking("/tmp", false);
            asked.directories[0].inside = inside.into();
            let refused = grants(&[], false).reach(&asked, ("uid:7", true), Kind::Namespace);
            assert!(
                matches!(refused, Err(Rejection::BadRequest { .. })),
                "{inside}: {refused:?}"
            );
        }
        let mut twice = asking("/tmp", false);
        twice.directories.push(twice.directories[0].clone());
        let refused = grants(&[], false).reach(&twice, ("uid:7", true), Kind::Namespace);
        assert!(matches!(refused, Err(Rejection::BadRequest { .. })), "{refused:?}");
        twice.directories = vec![twice.directories[0].clone(); DIRECTORIES_MAX + 1];
        let refused = grants(&[], false).reach(&twice, ("uid:7", true), Kind::Process);
        assert!(matches!(refused, Err(Rejection::TooMany { .. })), "{refused:?}");
    }

    #[test]
    fn a_lease_has_a_network_if_it_asks_and_the_site_grants_it() {
        let asking = |network| grpc::Reach {
            network,
            ..grpc::Reach::default()
        };
        for (granted, asked, expected) in [
            (false, false, Some(false)),
            (false, true, None),
            (true, false, Some(false)),
            (true, true, Some(true)),
        ] {
            let reach = grants(&[], granted).reach(&asking(asked), ("ann", false), Kind::Namespace);
            assert_eq!(reach.ok().map(|reach| reach.network), expected, "{granted} {asked}");
        }
        let refused = grants(&[], false).reach(&asking(true), ("uid:7", true), Kind::Container);
        assert!(
            matches!(&refused, Err(Rejection::OutOfReach { why, .. }) if why.contains("--sandbox-network")),
            "{refused:?}"
        );
    }

    #[test]
    fn kind_process_reaches_what_its_user_does_and_shows_nothing_elsewhere() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().display().to_string();
        let reach = |path: &str, inside: &str| {
            let mut asked = asking(path, true);
            asked.directories[0].inside = inside.into();
            grants(&[], false).reach(&asked, ("ann", false), Kind::Process)
        };
        assert!(reach(&path, "").is_ok_and(|reach| reach.network));
        assert!(matches!(reach(&path, "/data"), Err(Rejection::BadRequest { .. })));
        let missing = format!("{path}/missing");
        assert!(matches!(reach(&missing, ""), Err(Rejection::OutOfReach { .. })));
    }
}
