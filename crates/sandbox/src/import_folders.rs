//! Folders of the host that an interpreter and its program import from, and which of them a sandbox shows.
//!
//! The import path of a program contains the folder in which the program is. If that is a home folder, the sandbox
//! would show the whole home folder, with its keys and histories. So folders of a user, and folders that contain one,
//! are never shown, whichever tenant requests the sandbox. A worker sees them only if its lease declares them.

use hotlease_nursery::policy::Mount;
use nix::unistd::{User, geteuid};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Home folder of this process's user, from the host's directory of users. The directory is asked once, because it may
/// be on another host, and slow.
static OWN_HOME: OnceLock<Option<PathBuf>> = OnceLock::new();
/// Folders with files of many users or of the system. They are not shown themselves, but folders in them may be shown.
/// Root's home folder is not here, because the list of users names it.
const COMMON: [&str; 12] = [
    "/", "/boot", "/home", "/media", "/mnt", "/opt", "/run", "/srv", "/tmp", "/var", "/var/lib", "/var/tmp",
];
/// Folders of which nothing is shown, neither the folders nor their contents.
const PRIVATE: [&str; 5] = ["/dev", "/etc", "/proc", "/run/user", "/sys"];
/// Names of files and folders by which a home folder is recognised even if no list of users names it.
const MARKS: [&str; 7] = [
    ".ssh",
    ".gnupg",
    ".netrc",
    ".bashrc",
    ".bash_history",
    ".profile",
    ".zshrc",
];
/// Files and folders that mark a Python environment: the first a virtual environment, the second an environment of
/// conda.
const ENVIRONMENTS: [&str; 2] = ["pyvenv.cfg", "conda-meta"];
/// Beginnings of the names of the folders in `lib` that contain the standard libraries of CPython, GraalPy and PyPy.
const LIBRARIES: [&[u8]; 2] = [b"python3", b"pypy3"];
/// Lowest user id of a person, by the convention of distributions.
const FIRST_PERSON: u32 = 1000;
/// Largest number of links to follow, as in the kernel: a longer chain is a loop.
pub(crate) const LINKS_MAX: usize = 40;

/// Home folders of a host.
#[derive(Debug, Clone, Default)]
pub struct HomeFolders(BTreeSet<PathBuf>);

impl HomeFolders {
    /// Home folders of this process's user, of root, of the people that the host's list of users names, and all folders
    /// in `/home`. Reads files.
    pub fn of_host() -> Self {
        let listed = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let people = listed.lines().filter_map(|line| {
            let mut fields = line.split(':').skip(2);
            let number: u32 = fields.next()?.parse().ok()?;
            (number == 0 || number >= FIRST_PERSON).then_some(fields.nth(2)?.into())
        });
        let own = OWN_HOME.get_or_init(|| Some(User::from_uid(geteuid()).ok()??.dir));
        let beside = std::fs::read_dir("/home").into_iter().flatten().flatten();
        people
            .chain(own.clone())
            .chain(std::env::home_dir())
            .chain(beside.map(|entry| entry.path()))
            .collect()
    }

    /// Whether a sandbox must not show this folder with its contents.
    pub fn hides(&self, folder: &Path) -> bool {
        // A sandbox shows the target of a link, so the target decides.
        let Ok(real) = folder.canonicalize() else {
            return false;
        };
        let has = |names: &[&str]| names.iter().any(|name| real.join(name).exists());
        let is_of_settings = real.parent().is_some_and(|parent| self.0.contains(parent))
            && real
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
            && !has(&ENVIRONMENTS);
        COMMON.iter().any(|common| real == Path::new(common))
            || PRIVATE.iter().any(|private| real.starts_with(private))
            || self.0.iter().any(|home| home.starts_with(&real))
            || is_of_settings
            || has(&MARKS)
    }
}

impl FromIterator<PathBuf> for HomeFolders {
    /// Collects home folders, except `/`, which the list of users names as the home folder of service users.
    fn from_iter<T: IntoIterator<Item = PathBuf>>(folders: T) -> Self {
        let real = folders.into_iter().filter_map(|folder| folder.canonicalize().ok());
        Self(real.filter(|folder| folder != Path::new("/")).collect())
    }
}

/// Existing folders that contain an interpreter or from which it imports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportFolders {
    /// Folders that a sandbox shows; none lies within another.
    pub shown: BTreeSet<PathBuf>,
    /// Folders that a sandbox does not show, because they are home folders, contain home folders, or belong to all
    /// users.
    pub hidden: BTreeSet<PathBuf>,
}

impl ImportFolders {
    /// Looks at the host for the folders of an interpreter and of an import path.
    pub fn find(interpreter: Option<&Path>, path: &[PathBuf], homes: &HomeFolders) -> Self {
        let mut found = Self::default();
        // Adds the prefix of PREFIX/bin/python, and the prefix of each file in its chain of links: the interpreter of a
        // virtual environment is a link to its base interpreter.
        let mut chain = interpreter.into_iter().flat_map(link_chain).peekable();
        while let Some(interpreter) = chain.next() {
            let is_link = chain.peek().is_some();
            let (folder, prefix) = (interpreter.parent(), interpreter.parent().and_then(Path::parent));
            // A link to an interpreter may be in any folder, such as `~/tools/bin`.
            let is_shown = |prefix: &Path| !homes.hides(prefix) && (!is_link || is_python_prefix(prefix));
            match prefix {
                // Of another prefix, such as `~/.local`, only the parts that an interpreter needs are shown.
                Some(prefix) if !is_shown(prefix) => {
                    let libraries = ["lib", "lib64"].map(|name| prefix.join(name));
                    let libraries = libraries.into_iter().filter(|_| !is_link);
                    let parts = folder.map(Path::to_owned).into_iter().chain(libraries);
                    parts
                        .filter(|part| !homes.hides(part))
                        .for_each(|part| found.add(&part, homes));
                }
                Some(prefix) => found.add(prefix, homes),
                None => {}
            }
        }
        path.iter().for_each(|folder| found.add(folder, homes));
        let all = found.shown.clone();
        let is_within = |folder: &PathBuf| folder.ancestors().skip(1).any(|above| all.contains(above));
        found.shown.retain(|folder| !is_within(folder));
        found
    }

    fn add(&mut self, folder: &Path, homes: &HomeFolders) {
        if !folder.is_absolute() || !folder.exists() {
            return;
        }
        if homes.hides(folder) {
            self.hidden.insert(folder.to_owned());
        } else if Mount::read_only(folder).fault().is_none() {
            self.shown.insert(folder.to_owned());
        }
    }
}

/// The path of an interpreter, and the paths that it leads to if it is a link, one after the other. Each link is read
/// when the path behind it is requested.
pub fn link_chain(interpreter: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let behind = |link: &PathBuf| {
        let target = std::fs::read_link(link).ok()?;
        Some(normal(&link.parent().unwrap_or(Path::new("/")).join(target)))
    };
    std::iter::successors(Some(interpreter.to_owned()), behind).take(LINKS_MAX)
}

/// Whether a folder is a Python environment, or contains Python's standard library.
pub(crate) fn is_python_prefix(prefix: &Path) -> bool {
    let has_library = |name: &str| {
        let entries = std::fs::read_dir(prefix.join(name)).into_iter().flatten().flatten();
        entries
            .filter(|entry| {
                LIBRARIES
                    .iter()
                    .any(|start| entry.file_name().as_encoded_bytes().starts_with(start))
            })
            .any(|entry| entry.path().join("os.py").is_file())
    };
    ENVIRONMENTS.iter().any(|name| prefix.join(name).exists()) || ["lib", "lib64"].into_iter().any(has_library)
}

/// Removes `.` and `..` from a path, without looking at the disk.
fn normal(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with the home folder `ann` and folders in it.
    fn host() -> (tempfile::TempDir, HomeFolders) {
        let folder = tempfile::tempdir().expect("a folder");
        for made in [
            "people/ann/.ssh",
            "people/ann/.config/hotlease",
            "people/ann/.venv/bin",
            "people/ann/.local/bin",
            "people/ann/.local/lib/python3.11/site-packages",
            "people/ann/.local/share/python/bin",
            "people/ann/project/.git",
            "people/bob/.ssh",
            "python/bin",
        ] {
            std::fs::create_dir_all(folder.path().join(made)).expect("made");
        }
        std::fs::write(folder.path().join("people/ann/.venv/pyvenv.cfg"), "").expect("written");
        std::os::unix::fs::symlink("people/ann", folder.path().join("link")).expect("linked");
        let homes = [folder.path().join("people/ann")].into_iter().collect();
        (folder, homes)
    }

    #[test]
    fn no_home_folder_is_shown_and_none_that_contains_one() {
        let (folder, homes) = host();
        for (name, is_hidden) in [
            ("people/ann", true),
            ("people", true),
            ("link", true),
            ("", true),
            ("people/ann/.ssh", true),
            ("people/ann/.config", true),
            ("people/bob", true),
            ("people/ann/project", false),
            ("people/ann/.venv", false),
            ("people/ann/.local/lib/python3.11/site-packages", false),
            ("link/project", false),
            ("missing", false),
        ] {
            assert_eq!(homes.hides(&folder.path().join(name)), is_hidden, "{name}");
        }
        for common in ["/", "/tmp", "/home", "/etc/ssl", "/proc/self"] {
            assert!(
                !Path::new(common).exists() || HomeFolders::default().hides(Path::new(common)),
                "{common}"
            );
        }
        assert!(HomeFolders::of_host().hides(&std::env::home_dir().expect("a home folder")));
    }

    #[test]
    fn a_program_s_own_folder_is_shown_and_its_home_folder_is_named() {
        let (folder, homes) = host();
        let at = |name: &str| folder.path().join(name);
        let path = ["people/ann", "people/ann/project", "people/ann/.venv/bin", "missing"].map(at);
        let found = ImportFolders::find(None, &path, &homes);
        assert_eq!(found.hidden, [at("people/ann")].into());
        assert_eq!(
            found.shown,
            [at("people/ann/.venv/bin"), at("people/ann/project")].into()
        );
    }

    #[test]
    fn an_interpreter_in_a_home_folder_shows_its_programs_and_not_the_home_folder() {
        let (folder, homes) = host();
        let at = |name: &str| folder.path().join(name);
        let base = at("people/ann/.local/share/python/bin/python3");
        std::fs::write(&base, "").expect("written");
        std::os::unix::fs::symlink(&base, at("people/ann/.local/bin/python3")).expect("linked");
        std::os::unix::fs::symlink("../../.local/bin/python3", at("people/ann/.venv/bin/python")).expect("linked");
        let found = ImportFolders::find(Some(&at("people/ann/.venv/bin/python")), &[], &homes);
        let shown = [
            at("people/ann/.venv"),
            at("people/ann/.local/bin"),
            at("people/ann/.local/share/python"),
        ];
        assert_eq!(found.shown, shown.into());
        assert!(found.hidden.is_empty(), "{found:?}");
        std::fs::create_dir(at("people/ann/bin")).expect("made");
        std::fs::write(at("people/ann/bin/python"), "").expect("written");
        let found = ImportFolders::find(Some(&at("people/ann/bin/python")), &[], &homes);
        assert_eq!(found.shown, [at("people/ann/bin")].into(), "{found:?}");
    }
}
