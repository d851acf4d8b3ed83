//! Survey of a tree: lists its entries in a fixed order, within limits, and refuses entries that no image may contain.

use crate::error::{ImageError, io};
use crate::limits::Limits;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// Limit of the bytes of all paths and link targets of a tree together: 64 bytes for each of a million entries. They are
/// in memory, about twice, while the tree is packed or checked.
const PATH_BYTES_MAX: u64 = 64 << 20;
/// Limit of the bytes of all places at which links of a tree are looked up, one look-up for each component of their
/// targets. It is reached after 2.6 s of work (measured in the test below).
const LOOKED_UP_BYTES_MAX: u64 = 1 << 30;
/// Links in a row after which the kernel gives up.
const LINKS_MAX: usize = 40;

/// Entry of a tree: a folder, a file or a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Path below the root.
    pub(crate) path: PathBuf,
    pub(crate) what: EntryKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Folder { mode: u32 },
    File { mode: u32, bytes: u64 },
    Link { target: PathBuf },
}

/// Entries of a whole tree.
#[derive(Debug)]
pub(crate) struct Survey {
    /// Entries without the root: a folder before its contents, names in the order of their bytes.
    pub(crate) entries: Vec<Entry>,
    /// Size of all files together, bytes.
    pub(crate) contents_bytes: u64,
}

pub(crate) fn contents_error(path: &Path, why: impl Into<String>) -> ImageError {
    ImageError::Contents {
        path: path.to_owned(),
        why: why.into(),
    }
}

/// Walks the tree at `root` without following links.
pub(crate) fn survey(root: &Path, limits: &Limits) -> Result<Survey, ImageError> {
    let mut survey = Survey {
        entries: Vec::new(),
        contents_bytes: 0,
    };
    let mut path_bytes = 0;
    // Paths that are still to be visited, the next one at the end.
    let mut pending = names(root, Path::new(""), limits, &mut path_bytes)?;
    while let Some(path) = pending.pop() {
        let at = root.join(&path);
        let found = fs::symlink_metadata(&at).map_err(io("look at", &at))?;
        let kind = found.file_type();
        let what = if kind.is_dir() {
            pending.extend(names(root, &path, limits, &mut path_bytes)?);
            EntryKind::Folder { mode: found.mode() }
        } else if kind.is_symlink() {
            let target = fs::read_link(&at).map_err(io("read the link", &at))?;
            count_path(&target, &mut path_bytes)?;
            EntryKind::Link { target }
        } else if kind.is_file() {
            survey.contents_bytes = survey.contents_bytes.saturating_add(found.len());
            check_limit(
                "bytes of all files together",
                survey.contents_bytes,
                limits.contents_bytes,
            )?;
            EntryKind::File {
                mode: found.mode(),
                bytes: found.len(),
            }
        } else {
            let what = match () {
                () if kind.is_socket() => "a socket",
                () if kind.is_fifo() => "a named pipe",
                () => "a device",
            };
            return Err(contents_error(&path, format!("it is {what}; remove it")));
        };
        survey.entries.push(Entry { path, what });
        let entries = survey.entries.len() + pending.len();
        check_limit("files, folders and links", entries as u64, limits.entries)?;
    }
    Ok(survey)
}

/// Adds the bytes of a path to `path_bytes`, the bytes of all paths of the tree so far.
fn count_path(path: &Path, path_bytes: &mut u64) -> Result<(), ImageError> {
    *path_bytes += path.as_os_str().len() as u64;
    check_limit("bytes of all paths together", *path_bytes, PATH_BYTES_MAX)
}

/// Entries of a folder, last name first.
fn names(root: &Path, folder: &Path, limits: &Limits, path_bytes: &mut u64) -> Result<Vec<PathBuf>, ImageError> {
    let at = root.join(folder);
    let mut names = Vec::new();
    for entry in fs::read_dir(&at).map_err(io("list", &at))? {
        let name = folder.join(entry.map_err(io("list", &at))?.file_name());
        count_path(&name, path_bytes)?;
        names.push(name);
        check_limit("files, folders and links", names.len() as u64, limits.entries)?;
    }
    names.sort_unstable_by(|a, b| b.as_os_str().as_bytes().cmp(a.as_os_str().as_bytes()));
    Ok(names)
}

pub(crate) fn check_limit(what: &'static str, found: u64, most: u64) -> Result<(), ImageError> {
    match found > most {
        true => Err(ImageError::Limit { what, found, most }),
        false => Ok(()),
    }
}

/// Links of a tree with their targets.
pub(crate) struct Links<'a> {
    targets: HashMap<&'a Path, &'a Path>,
    /// Bytes of the places that were looked up so far.
    looked_up_bytes: u64,
}

impl<'a> Links<'a> {
    pub(crate) fn of(entries: &'a [Entry]) -> Self {
        let link = |entry: &'a Entry| match &entry.what {
            EntryKind::Link { target } => Some((entry.path.as_path(), target.as_path())),
            _ => None,
        };
        Self {
            targets: entries.iter().filter_map(link).collect(),
            looked_up_bytes: 0,
        }
    }

    /// Target of the link at `path`; `None` if there is no link.
    pub(crate) fn target(&self, path: &Path) -> Option<&'a Path> {
        self.targets.get(path).copied()
    }

    /// Follows the link at `path`. Returns the link that leads out of the tree: the link at `path`, or a link on the
    /// way to its target. Returns `None` if the target is inside the tree, or does not exist. The text of a target does
    /// not suffice: if `a` is a link, the meaning of `a/../..` depends on the target of `a`.
    ///
    /// # Errors
    /// Following the links of the tree takes too much work: some links lead through many others.
    pub(crate) fn leaves_by(&mut self, path: &'a Path) -> Result<Option<&'a Path>, ImageError> {
        let mut by = path;
        let mut place = path.parent().unwrap_or(Path::new("")).to_owned();
        let Some(target) = self.targets.get(path) else {
            return Ok(None);
        };
        let mut pending: Vec<Component> = target.components().rev().collect();
        let mut followed = 0;
        while let Some(component) = pending.pop() {
            match component {
                Component::RootDir | Component::Prefix(_) => return Ok(Some(by)),
                Component::CurDir => {}
                Component::ParentDir if place.pop() => {}
                Component::ParentDir => return Ok(Some(by)),
                Component::Normal(name) => {
                    place.push(name);
                    self.looked_up_bytes += place.as_os_str().len() as u64;
                    check_limit(
                        "bytes of the paths that its links lead through",
                        self.looked_up_bytes,
                        LOOKED_UP_BYTES_MAX,
                    )?;
                    if let Some((link, target)) = self.targets.get_key_value(place.as_path()) {
                        followed += 1;
                        if followed > LINKS_MAX {
                            return Ok(None);
                        }
                        by = link;
                        place.pop();
                        pending.extend(target.components().rev());
                    }
                }
            }
        }
        Ok(None)
    }
}

/// Whether a virtual environment has its interpreter at this path: `bin/python`, `bin/python3`, `bin/python3.11`.
pub(crate) fn is_interpreter(path: &Path) -> bool {
    let name = path.file_name().unwrap_or(OsStr::new("")).as_bytes();
    let version = name.strip_prefix(b"python");
    path.parent() == Some(Path::new("bin"))
        && version.is_some_and(|rest| rest.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(all: &[(&str, &str)]) -> Vec<Entry> {
        let entry = |(path, target): &(&str, &str)| Entry {
            path: path.into(),
            what: EntryKind::Link { target: target.into() },
        };
        all.iter().map(entry).collect()
    }

    #[test]
    fn the_bytes_of_all_paths_have_a_limit() {
        let mut counted = PATH_BYTES_MAX - 3;
        assert!(count_path(Path::new("a/b"), &mut counted).is_ok());
        let refused = count_path(Path::new("a"), &mut counted);
        assert!(
            matches!(
                refused,
                Err(ImageError::Limit {
                    most: PATH_BYTES_MAX,
                    ..
                })
            ),
            "{refused:?}"
        );
    }

    #[test]
    fn links_that_leave_are_found_by_where_they_lead() {
        let entries = links(&[
            ("lib64", "lib"),
            ("p/q/d", "../../r"),
            ("p/q/sly", "d/../../etc"),
            ("up", ".."),
            ("root", "/etc/passwd"),
            ("over", "root"),
            ("deep/a", "../x/../y/./z"),
            ("nowhere", "nothing/at/all"),
            ("loop", "loop"),
            ("through", "lib64/../p/q/d/x"),
        ]);
        let mut links = Links::of(&entries);
        let mut by = |path: &'static str| links.leaves_by(Path::new(path)).expect("little work");
        for stays in ["lib64", "p/q/d", "deep/a", "nowhere", "loop", "through", "no link"] {
            assert_eq!(by(stays), None, "{stays}");
        }
        // If only its text counted, the target would be p/etc.
        assert!(by("p/q/sly").is_some());
        assert_eq!(by("up"), Some(Path::new("up")));
        assert_eq!(by("over"), Some(Path::new("root")));
    }

    #[test]
    fn links_that_lead_through_many_others_are_refused_in_time() {
        // Each link leads through 600 folders that do not exist, and back, to the next link.
        let (down, up) = ("x/".repeat(600), "../".repeat(600));
        let names: Vec<_> = (0..=LINKS_MAX).map(|number| format!("c{number}")).collect();
        let targets: Vec<_> = names[1..].iter().map(|next| format!("{down}{up}{next}")).collect();
        let pairs: Vec<_> = names
            .iter()
            .zip(&targets)
            .map(|(name, target)| (&**name, &**target))
            .collect();
        let entries = links(&pairs);
        let mut links = Links::of(&entries);
        let refused = (0..1_000_000).find_map(|_| links.leaves_by(Path::new("c0")).err());
        assert!(matches!(refused, Some(ImageError::Limit { .. })), "{refused:?}");
    }

    #[test]
    fn an_interpreter_is_where_environments_have_theirs() {
        for yes in ["bin/python", "bin/python3", "bin/python3.13"] {
            assert!(is_interpreter(Path::new(yes)), "{yes}");
        }
        for no in ["python", "lib/python3", "bin/python-config", "bin/x/python", "bin"] {
            assert!(!is_interpreter(Path::new(no)), "{no}");
        }
    }

    #[test]
    fn limits_hold_while_it_walks() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::write(dir.path().join(name), [0; 100]).unwrap();
        }
        let with = |entries, contents_bytes| {
            let limits = Limits {
                entries,
                contents_bytes,
                ..Limits::default()
            };
            survey(dir.path(), &limits)
        };
        assert_eq!(with(3, 300).unwrap().contents_bytes, 300);
        assert!(matches!(with(2, 300), Err(ImageError::Limit { most: 2, .. })));
        assert!(matches!(with(3, 299), Err(ImageError::Limit { found: 300, .. })));
    }
}
