//! Check of an interpreter that a stranger names: the author of an image.
//!
//! A sandbox shows the folders around its interpreter. So the interpreter must be a Python of the host, and all links
//! and folders on the way to it must belong to root or to this process's user: others could otherwise put a link in
//! its place that leads to any folder, also after this check.

use crate::import_folders::{LINKS_MAX, is_python_prefix, link_chain};
use nix::unistd::{getegid, geteuid};
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Beginnings of the names of interpreters.
const NAMES: [&str; 3] = ["python", "pypy", "graalpy"];
/// Mode bits: others may write, the group may write, and only owners may rename entries of a folder.
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// Reason why a sandbox does not show the folders around an interpreter that a stranger names.
#[derive(Debug, thiserror::Error)]
pub enum NamedPythonError {
    /// The path, or a link that it leads through, does not have the name of an interpreter in a folder `bin`.
    #[error("{} is not named like a Python in a folder `bin`", .0.display())]
    Name(PathBuf),
    /// There is no file at the path.
    #[error("{} cannot be reached: {source}", path.display())]
    Unreachable {
        /// Path that was looked at.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Another user could put something else in the place of a folder or link on the way.
    #[error(
        "{} can be changed by users other than root and this agent's own user (owner {owner}, mode {mode:o})",
        path.display()
    )]
    Unsafe {
        /// The folder, link or file.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// The folder around the file, or around a link to it, is no environment and has no standard library.
    #[error("{} is no Python environment, and has no standard library (lib/python3.*/os.py)", .0.display())]
    NoLibrary(PathBuf),
}

/// Checks that `interpreter`, an absolute path, leads to a Python of the host in folders that only root and this
/// process's user can change. Reads folders of the host.
///
/// # Errors
/// Fails with the first path that breaks a rule.
pub fn check_named_python(interpreter: &Path) -> Result<(), NamedPythonError> {
    check_name(interpreter)?;
    let real = follow(interpreter)?;
    // A sandbox also shows the folders around links.
    for path in link_chain(interpreter).chain([real]) {
        let prefix = path.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
        if !is_python_prefix(prefix) {
            return Err(NamedPythonError::NoLibrary(prefix.to_owned()));
        }
    }
    Ok(())
}

/// Whether a path has the name of an interpreter in a folder `bin`.
pub fn is_named_python(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    NAMES.iter().any(|start| name.starts_with(start.as_bytes()))
        && path.parent().is_some_and(|folder| folder.ends_with("bin"))
}

fn check_name(path: &Path) -> Result<(), NamedPythonError> {
    match is_named_python(path) {
        true => Ok(()),
        false => Err(NamedPythonError::Name(path.to_owned())),
    }
}

/// Follows a path as the kernel does, and checks each folder and link on the way. Returns the path of the file without
/// links.
fn follow(path: &Path) -> Result<PathBuf, NamedPythonError> {
    let owned = |path: &Path| -> Vec<OsString> { path.iter().rev().map(OsString::from).collect() };
    let mut place = PathBuf::new();
    let mut pending = owned(path);
    let mut followed = 0;
    while let Some(part) = pending.pop() {
        let next = match Path::new(&part).components().next() {
            Some(Component::RootDir) => PathBuf::from("/"),
            // No links are left in `place`, so that the text of the path suffices.
            Some(Component::ParentDir) => {
                place.pop();
                continue;
            }
            Some(Component::Normal(name)) => place.join(name),
            _ => continue,
        };
        let unreachable = |source| NamedPythonError::Unreachable {
            path: next.clone(),
            source,
        };
        let found = next.symlink_metadata().map_err(unreachable)?;
        check_owner(&next, &found)?;
        if !found.is_symlink() {
            place = next;
            continue;
        }
        let target = next.read_link().map_err(unreachable)?;
        followed += 1;
        if followed > LINKS_MAX {
            return Err(unreachable(nix::errno::Errno::ELOOP.into()));
        }
        if pending.is_empty() {
            check_name(&place.join(&target))?;
        }
        pending.extend(owned(&target));
    }
    match place.is_file() {
        true => Ok(place),
        false => Err(NamedPythonError::Unreachable {
            path: place,
            source: io::ErrorKind::NotFound.into(),
        }),
    }
}

/// Refuses what another user may change. A group may write if it is this process's own: its members are trusted by the
/// user who made the folder so.
fn check_owner(path: &Path, found: &Metadata) -> Result<(), NamedPythonError> {
    let is_ours = [0, geteuid().as_raw()].contains(&found.uid());
    let is_group_ours = [0, getegid().as_raw()].contains(&found.gid());
    let mode = found.mode();
    // The permissions of a link have no meaning. In a folder with the sticky bit only owners can rename entries.
    let is_exempt = found.is_symlink() || found.is_dir() && mode & STICKY != 0;
    let is_open = mode & OTHERS_WRITE != 0 || mode & GROUP_WRITES != 0 && !is_group_ours;
    match is_ours && (is_exempt || !is_open) {
        true => Ok(()),
        false => Err(NamedPythonError::Unsafe {
            path: path.to_owned(),
            owner: found.uid(),
            mode: mode & 0o7777,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A host with a Python in `python`, and a project with a tool.
    fn host() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for made in [
            "python/bin",
            "python/lib/python3.11",
            "project/src",
            "project/bin",
            "venv/bin",
            "evil/bin",
        ] {
            fs::create_dir_all(folder.path().join(made)).expect("made");
        }
        for file in [
            "python/bin/python3.11",
            "python/lib/python3.11/os.py",
            "project/src/tool",
            "project/bin/python-tool",
            "project/notes",
            "venv/pyvenv.cfg",
        ] {
            fs::write(folder.path().join(file), "").expect("written");
        }
        symlink("python3.11", folder.path().join("python/bin/python3")).expect("a link");
        symlink("python", folder.path().join("current")).expect("a link");
        folder
    }

    #[test]
    fn a_python_of_the_host_passes() {
        let folder = host();
        symlink("../../current/bin/python3", folder.path().join("venv/bin/python3")).expect("a link");
        for named in [
            "python/bin/python3.11",
            "python/bin/python3",
            "current/bin/python3",
            "venv/bin/python3",
        ] {
            let checked = check_named_python(&folder.path().join(named));
            assert!(checked.is_ok(), "{named}: {checked:?}");
        }
        let checked = check_named_python(&std::env::current_exe().expect("a program"));
        assert!(matches!(checked, Err(NamedPythonError::Name(_))), "{checked:?}");
    }

    #[test]
    fn nothing_else_passes() {
        let folder = host();
        let at = |name: &str| folder.path().join(name);
        symlink(at("project/src/tool"), at("evil/bin/python3")).expect("a link");
        symlink(at("project/bin/python-tool"), at("evil/bin/python4")).expect("a link");
        symlink("python5", at("evil/bin/python5")).expect("a link");
        symlink("../../python/bin/python3", at("evil/bin/python6")).expect("a link");
        for named in [
            "evil/bin/python3",
            "evil/bin/python4",
            "evil/bin/python5",
            "evil/bin/python6",
            "project/bin/python-tool",
            "project/src/tool",
            "python/bin/python9",
            "python/bin",
        ] {
            let checked = check_named_python(&at(named));
            assert!(checked.is_err(), "{named} was let through");
        }
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused() {
        let folder = host();
        let python = folder.path().join("python");
        let named = python.join("bin/python3");
        for (mode, is_safe) in [(0o777, false), (0o757, false), (0o1777, true), (0o755, true)] {
            fs::set_permissions(&python, Permissions::from_mode(mode)).expect("set");
            let checked = check_named_python(&named);
            let is_refused = matches!(&checked, Err(NamedPythonError::Unsafe { path, .. }) if *path == python);
            assert_eq!(
                (checked.is_ok(), is_refused),
                (is_safe, !is_safe),
                "{mode:o}: {checked:?}"
            );
        }
        // Only root can give files away.
        if geteuid().is_root() {
            let link = python.join("bin/python3");
            std::os::unix::fs::lchown(&link, Some(4242), None).expect("given away");
            let checked = check_named_python(&named);
            assert!(
                matches!(checked, Err(NamedPythonError::Unsafe { owner: 4242, .. })),
                "{checked:?}"
            );
        }
    }
}
