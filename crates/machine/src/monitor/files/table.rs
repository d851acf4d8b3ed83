//! Table of the files that a machine has looked up, and of its open files.

use fuser::{Errno, FileType};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// The root's number in FUSE.
const ROOT: u64 = 1;
/// Largest number of files in the table; the machine's kernel forgets files before it needs this many.
const NODES_MAX: usize = 1 << 20;
/// Largest number of folders that a machine may have open.
const FOLDERS_MAX: usize = 1 << 16;
/// Longest name, by Linux's limit.
const NAME_BYTES_MAX: usize = 255;
/// Greatest depth of nested folders.
const DEPTH_MAX: usize = 2048;

/// Entry of a folder.
pub struct FolderEntry {
    pub node: u64,
    pub kind: FileType,
    pub name: OsString,
}

/// A file with its name.
struct FileNode {
    /// Folder and name; `None` if the file has no name any more.
    at: Option<(u64, OsString)>,
    /// Lookups by the machine's kernel, minus the lookups that it has forgotten.
    lookups: u64,
}

/// The files that a machine has looked up, and its open files.
pub struct FileTable {
    nodes: HashMap<u64, FileNode>,
    names: HashMap<(u64, OsString), u64>,
    files: HashMap<u64, Arc<File>>,
    files_max: usize,
    folders: HashMap<u64, Arc<[FolderEntry]>>,
    /// The last number that was assigned.
    last: u64,
}

impl FileTable {
    /// Table of a machine that may have this many files open.
    pub fn new(files_max: usize) -> Self {
        Self {
            nodes: HashMap::new(),
            names: HashMap::new(),
            files: HashMap::new(),
            files_max,
            folders: HashMap::new(),
            last: ROOT,
        }
    }

    /// Path of a file.
    pub fn path(&self, node: u64) -> Result<PathBuf, Errno> {
        let (mut names, mut at) = (Vec::new(), node);
        while at != ROOT {
            let known = self.nodes.get(&at).and_then(|node| node.at.as_ref());
            let (parent, name) = known.ok_or(Errno::ESTALE)?;
            names.push(name);
            if names.len() > DEPTH_MAX {
                return Err(Errno::ENAMETOOLONG);
            }
            at = *parent;
        }
        let root = PathBuf::from("/");
        Ok(names.into_iter().rev().fold(root, |path, name| path.join(name)))
    }

    /// Path of this name in a folder.
    pub fn beneath(&self, parent: u64, name: &OsStr) -> Result<PathBuf, Errno> {
        let bytes = name.as_encoded_bytes();
        // The name was sent by the machine, and may be no valid name.
        let is_name =
            !bytes.is_empty() && !matches!(bytes, b"." | b"..") && !bytes.contains(&b'/') && !bytes.contains(&0);
        match is_name && bytes.len() <= NAME_BYTES_MAX {
            true => Ok(self.path(parent)?.join(name)),
            false => Err(Errno::EINVAL),
        }
    }

    /// Number of an existing file, for an answer to the machine's kernel.
    pub fn look_up(&mut self, parent: u64, name: &OsStr) -> Result<u64, Errno> {
        let key = (parent, name.to_owned());
        if let Some(number) = self.names.get(&key)
            && let Some(node) = self.nodes.get_mut(number)
        {
            node.lookups += 1;
            return Ok(*number);
        }
        if self.nodes.len() >= NODES_MAX {
            return Err(Errno::ENOMEM);
        }
        let number = self.next();
        let at = Some(key.clone());
        self.nodes.insert(number, FileNode { at, lookups: 1 });
        self.names.insert(key, number);
        Ok(number)
    }

    /// Notes that the machine's kernel forgets this many lookups of a file.
    pub fn forget(&mut self, number: u64, times: u64) {
        let Some(node) = self.nodes.get_mut(&number) else {
            return;
        };
        node.lookups = node.lookups.saturating_sub(times);
        if node.lookups == 0
            && let Some(node) = self.nodes.remove(&number)
            && let Some(key) = node.at
        {
            self.names.remove(&key);
        }
    }

    /// Removes this name from its file.
    pub fn remove(&mut self, parent: u64, name: &OsStr) {
        if let Some(number) = self.names.remove(&(parent, name.to_owned())) {
            self.put(number, None);
        }
    }

    /// Gives a file a new name. Another file of that name loses the name, or gets the old name if `is_exchanged`.
    pub fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), is_exchanged: bool) {
        let [from, to] = [from, to].map(|(parent, name)| (parent, name.to_owned()));
        let (moved, other) = (self.names.remove(&from), self.names.remove(&to));
        if let Some(moved) = moved {
            self.put(moved, Some(to));
        }
        if let Some(other) = other {
            self.put(other, is_exchanged.then_some(from));
        }
    }

    fn put(&mut self, number: u64, at: Option<(u64, OsString)>) {
        if let Some(key) = &at {
            self.names.insert(key.clone(), number);
        }
        if let Some(node) = self.nodes.get_mut(&number) {
            node.at = at;
        }
    }

    /// Stores an opened file; returns its handle.
    pub fn keep_file(&mut self, file: File) -> Result<u64, Errno> {
        let handle = self.next();
        keep(&mut self.files, self.files_max, (handle, Arc::new(file)))
    }

    /// Stores the entries of an opened folder; returns its handle.
    pub fn keep_folder(&mut self, entries: Vec<FolderEntry>) -> Result<u64, Errno> {
        let handle = self.next();
        keep(&mut self.folders, FOLDERS_MAX, (handle, entries.into()))
    }

    /// The open file of a handle.
    pub fn file(&self, handle: u64) -> Result<Arc<File>, Errno> {
        self.files.get(&handle).cloned().ok_or(Errno::EBADF)
    }

    /// Entries of a folder at the time when it was opened.
    pub fn folder(&self, handle: u64) -> Result<Arc<[FolderEntry]>, Errno> {
        self.folders.get(&handle).cloned().ok_or(Errno::EBADF)
    }

    /// All open files.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.files.values().map(Arc::as_ref)
    }

    /// Closes a handle.
    pub fn close(&mut self, handle: u64) {
        self.files.remove(&handle);
        self.folders.remove(&handle);
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// Stores an object under a handle. Fails with ENFILE at the limit, which is for the machine, not for one process.
fn keep<T>(open: &mut HashMap<u64, T>, most: usize, (handle, what): (u64, T)) -> Result<u64, Errno> {
    if open.len() >= most {
        return Err(Errno::ENFILE);
    }
    open.insert(handle, what);
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn name(text: &str) -> &OsStr {
        OsStr::new(text)
    }

    #[test]
    fn files_are_where_their_names_are_and_are_forgotten() {
        let mut table = FileTable::new(1);
        assert_eq!(table.path(ROOT), Ok("/".into()));
        let usr = table.look_up(ROOT, name("usr")).expect("room");
        let lib = table.look_up(usr, name("lib")).expect("room");
        assert_eq!(table.look_up(usr, name("lib")), Ok(lib), "the same file");
        assert_eq!(table.path(lib).as_deref(), Ok(Path::new("/usr/lib")));
        table.forget(lib, 1);
        assert!(table.path(lib).is_ok(), "told twice");
        table.forget(lib, 1);
        assert_eq!(table.path(lib), Err(Errno::ESTALE));
        assert_ne!(table.look_up(usr, name("lib")), Ok(lib), "numbers are not used again");
        table.forget(usr, 7);
        assert_eq!(table.path(usr), Err(Errno::ESTALE));
        table.forget(99, 1);
    }

    #[test]
    fn renaming_a_directory_moves_its_entries() {
        let mut table = FileTable::new(1);
        let a = table.look_up(ROOT, name("a")).expect("room");
        let inner = table.look_up(a, name("inner")).expect("room");
        let b = table.look_up(ROOT, name("b")).expect("room");
        table.rename((ROOT, name("a")), (ROOT, name("c")), false);
        assert_eq!(table.path(inner).as_deref(), Ok(Path::new("/c/inner")));
        table.rename((ROOT, name("c")), (ROOT, name("b")), true);
        assert_eq!(table.path(inner).as_deref(), Ok(Path::new("/b/inner")));
        assert_eq!(table.path(b).as_deref(), Ok(Path::new("/c")));
        table.rename((ROOT, name("b")), (ROOT, name("c")), false);
        assert_eq!(table.path(b), Err(Errno::ESTALE), "something else has its name");
        table.remove(a, name("inner"));
        assert_eq!(table.path(inner), Err(Errno::ESTALE));
    }

    #[test]
    fn names_that_are_paths_are_none() {
        let table = FileTable::new(1);
        let long = "x".repeat(256);
        for bad in ["", ".", "..", "a/b", "/", "a\0b", &long] {
            assert_eq!(table.beneath(ROOT, name(bad)), Err(Errno::EINVAL), "{bad:?}");
        }
        assert_eq!(table.beneath(ROOT, name("...")).as_deref(), Ok(Path::new("/...")));
    }

    #[test]
    fn handles_are_of_what_is_open() {
        let mut table = FileTable::new(1);
        let folder = table.keep_folder(Vec::new()).expect("room");
        let open = || tempfile::tempfile().expect("a file");
        let file = table.keep_file(open()).expect("room");
        assert!(table.folder(folder).is_ok() && table.file(file).is_ok());
        assert!(table.folder(file).is_err() && table.file(folder).is_err());
        assert_eq!(
            table.keep_file(open()),
            Err(Errno::ENFILE),
            "the machine may have one open"
        );
        table.close(folder);
        table.close(file);
        assert!(table.folder(folder).is_err() && table.file(file).is_err());
        assert!(table.keep_file(open()).is_ok(), "there is room again");
    }
}
