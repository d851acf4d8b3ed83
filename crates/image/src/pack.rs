//! Packing of a tree into an image.
//!
//! mksquashfs never reads the tree itself. It reads a stream (tar) that is made here: all entries are in a fixed order,
//! owned by root, with the same time, and with modes that only say whether a file is executable. So the image depends
//! only on the contents of the tree, and exactly the checked contents are packed.

mod bytecode;

use crate::error::{ImageError, io};
use crate::limits::Limits;
use crate::manifest::{MANIFEST_FILE, Manifest, TreeKind};
use crate::store::ImageStore;
use crate::survey::{Entry, EntryKind, Links, contents_error, is_interpreter, survey};
use crate::{ImageId, tool};
use bytecode::HEADER_BYTES;
use nix::fcntl::OFlag;
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

/// Time of all entries in an image: 2 January 1980. Zip files cannot contain times before 1980.
const TIME: u32 = 315_619_200;
/// Block size, bytes. It is small enough that few bytes are unpacked for a page of a large library, and large enough to
/// compress well.
const BLOCK_BYTES: &str = "65536";
/// Mode bits set-user-id and set-group-id.
const SETID: u32 = 0o6000;

/// A packed image, and the changes that packing made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackResult {
    /// Name of the image.
    pub id: ImageId,
    /// Path of its file.
    pub path: PathBuf,
    /// Size of the image, bytes.
    pub image_bytes: u64,
    /// Size of all files in it, bytes.
    pub contents_bytes: u64,
    /// Number of files, folders and links in it.
    pub entries: u64,
    /// Metadata of the image.
    pub manifest: Manifest,
    /// Number of files that lost set-user-id or set-group-id.
    pub setid_stripped: u64,
    /// Number of absolute links into the tree, which are relative in the image.
    pub links_changed: u64,
    /// Number of files that only their owner could read. In the image every user can read them.
    pub opened: u64,
    /// Number of Python modules without valid bytecode. Each process that imports one of these modules compiles it.
    pub uncompiled: u64,
}

/// Packs the tree at `tree` into an image in `store`. Needs mksquashfs. If it fails, nothing is left in the store.
///
/// # Errors Fails if something in the tree cannot be in an image, changes meanwhile, or exceeds `limits`. Fails with
/// [`ImageError::Tool`] if mksquashfs is not installed.
pub fn pack(tree: &Path, store: &ImageStore, limits: &Limits) -> Result<PackResult, ImageError> {
    let root = fs::canonicalize(tree).map_err(io("find", tree))?;
    if !root.is_dir() {
        return Err(io("pack", tree)(io::ErrorKind::NotADirectory.into()));
    }
    if fs::canonicalize(store.path()).is_ok_and(|store| store.starts_with(&root)) {
        return Err(ImageError::Unsafe {
            path: store.path().to_owned(),
            why: "it is in the tree that is packed; name another store",
        });
    }
    let mut survey = survey(&root, limits)?;
    survey.entries.retain(|entry| entry.path != Path::new(MANIFEST_FILE));
    let kind = TreeKind::of(&root);
    // The path at which the tree's scripts expect the tree, if it can be determined.
    let prefix = match std::path::absolute(tree) {
        Ok(path) if path.components().all(|part| part != Component::ParentDir) => path,
        _ => root.clone(),
    };
    let changed = make_links_relative(&mut survey.entries, &root, &prefix);
    let interpreter = check_links(&mut survey.entries, &root, kind)?;
    let manifest = Manifest::new(kind, &prefix, interpreter.as_deref());
    let count = |is: fn(u32) -> bool| {
        let modes = survey.entries.iter().filter_map(|entry| match entry.what {
            EntryKind::File { mode, .. } => Some(mode),
            _ => None,
        });
        modes.filter(|mode| is(*mode)).count() as u64
    };

    let incoming = store.incoming()?;
    let uncompiled = squash(&root, &survey.entries, &manifest, incoming.path())?;
    let (id, image_bytes) = incoming.hash(limits)?;
    Ok(PackResult {
        id,
        path: incoming.publish(id)?,
        image_bytes,
        contents_bytes: survey.contents_bytes,
        entries: survey.entries.len() as u64,
        manifest,
        setid_stripped: count(|mode| mode & SETID != 0),
        links_changed: changed,
        opened: count(|mode| mode & 0o004 == 0),
        uncompiled,
    })
}

/// Makes absolute links into the tree relative, so that they work wherever the image is mounted; returns their
/// number.
fn make_links_relative(entries: &mut [Entry], root: &Path, prefix: &Path) -> u64 {
    let mut changed = 0;
    for entry in entries {
        let EntryKind::Link { target } = &mut entry.what else {
            continue;
        };
        let Ok(within) = target.strip_prefix(root).or_else(|_| target.strip_prefix(prefix)) else {
            continue;
        };
        let folder = entry.path.parent().unwrap_or(Path::new(""));
        let mut relative: PathBuf = folder.components().map(|_| "..").collect();
        relative.push(within);
        if relative.as_os_str().is_empty() {
            relative.push(".");
        }
        *target = relative;
        changed += 1;
    }
    changed
}

/// Refuses links that lead out of the tree, except links to the interpreter of a virtual environment. Returns the
/// interpreter's path.
fn check_links(entries: &mut [Entry], root: &Path, kind: TreeKind) -> Result<Option<PathBuf>, ImageError> {
    let mut interpreter: Option<PathBuf> = None;
    for entry in entries.iter_mut() {
        let EntryKind::Link { target } = &mut entry.what else {
            continue;
        };
        if kind != TreeKind::Venv || !is_interpreter(&entry.path) {
            continue;
        }
        let joined = root.join("bin").join(&*target);
        let folder = joined.parent().and_then(|folder| fs::canonicalize(folder).ok());
        let (Some(folder), Some(name)) = (folder, joined.file_name()) else {
            continue;
        };
        let outside = folder.join(name);
        if outside.starts_with(root) {
            continue;
        }
        if interpreter.as_ref().is_some_and(|known| *known != outside) {
            return Err(contents_error(
                &entry.path,
                "it leads to a second Python; make the environment again",
            ));
        }
        if !outside.is_file() {
            let outside = outside.display();
            return Err(contents_error(
                &entry.path,
                format!("its Python {outside} is gone; make the environment again"),
            ));
        }
        // Absolute, because the link is in another folder when it is mounted.
        target.clone_from(&outside);
        interpreter = Some(outside);
    }
    let mut links = Links::of(entries);
    for entry in entries.iter() {
        let EntryKind::Link { target } = &entry.what else {
            continue;
        };
        let Some(by) = links.leaves_by(&entry.path)? else {
            continue;
        };
        let target = target.display();
        let is_to_interpreter = is_interpreter(by) && links.target(by) == interpreter.as_deref();
        if !is_to_interpreter {
            let why = format!("it is a link that leaves the tree (to {target}); put a copy in its place");
            return Err(contents_error(&entry.path, why));
        }
    }
    Ok(interpreter)
}

/// Runs mksquashfs on the stream; returns the number of modules without valid bytecode.
fn squash(root: &Path, entries: &[Entry], manifest: &Manifest, image: &Path) -> Result<u64, ImageError> {
    let time = TIME.to_string();
    let mut command = Command::new("mksquashfs");
    command
        .arg("-")
        .arg(image)
        .args([
            "-tar",
            "-noappend",
            "-quiet",
            "-no-progress",
            "-no-xattrs",
            "-exit-on-error",
        ])
        .args(["-comp", "zstd", "-Xcompression-level", "6", "-b", BLOCK_BYTES])
        .args([
            "-all-root",
            "-root-mode",
            "0755",
            "-all-time",
            &time,
            "-mkfs-time",
            &time,
        ])
        // mksquashfs would also take these times from this variable, and it fails if they are given twice.
        .env_remove("SOURCE_DATE_EPOCH")
        .stdin(Stdio::piped());
    let mut running = tool::start(&mut command, "mksquashfs", "squashfs-tools")?;
    let Some(stdin) = running.stdin() else {
        return Err(io("write to", image)(io::ErrorKind::BrokenPipe.into()));
    };
    let streamed = stream(root, entries, manifest, stdin);
    match streamed {
        // mksquashfs ended before it had read all input; its own message says why.
        Err(ImageError::Io { what: STREAM, .. }) => running.finish().and(streamed),
        Err(other) => {
            running.kill();
            Err(other)
        }
        Ok(uncompiled) => running.finish().map(|()| uncompiled),
    }
}

/// Operation in the error if the stream itself cannot be written.
const STREAM: &str = "write to mksquashfs";

fn stream(root: &Path, entries: &[Entry], manifest: &Manifest, to: impl Write) -> Result<u64, ImageError> {
    let broken = io(STREAM, root);
    let mut tar = tar::Builder::new(BufWriter::with_capacity(1 << 20, to));
    let mut good = HashSet::new();
    let said = manifest.bytes();
    let mut header = header(tar::EntryType::Regular, 0o444, said.len() as u64);
    tar.append_data(&mut header, MANIFEST_FILE, said.as_slice())
        .map_err(&broken)?;
    for entry in entries {
        append(&mut tar, root, entry, &mut good)?;
    }
    let mut to = tar.into_inner().map_err(&broken)?;
    to.flush().map_err(&broken)?;
    Ok(bytecode::count_uncompiled(entries, &good))
}

fn header(kind: tar::EntryType, mode: u32, bytes: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(bytes);
    header.set_mtime(u64::from(TIME));
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn append<W: Write>(
    tar: &mut tar::Builder<W>,
    root: &Path,
    entry: &Entry,
    good: &mut HashSet<PathBuf>,
) -> Result<(), ImageError> {
    let broken = io(STREAM, root);
    match &entry.what {
        EntryKind::Folder { .. } => {
            let mut header = header(tar::EntryType::Directory, 0o755, 0);
            tar.append_data(&mut header, &entry.path, io::empty()).map_err(broken)
        }
        EntryKind::Link { target } => {
            let mut header = header(tar::EntryType::Symlink, 0o777, 0);
            tar.append_link(&mut header, &entry.path, target).map_err(broken)
        }
        EntryKind::File { mode, bytes } => {
            let at = root.join(&entry.path);
            // Opens the file itself, never another file through a link.
            let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
            let opened = OpenOptions::new().read(true).custom_flags(flags).open(&at);
            let mut file = opened.map_err(io("open", &at))?;
            let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
            let mut header = header(tar::EntryType::Regular, mode, *bytes);
            let begin = first_bytes(&mut file, &at, root, &entry.path, *bytes, good)?;
            let reader = ExactReader {
                left: *bytes,
                from: begin.as_slice().chain(file),
                failure: None,
            };
            append_exact(tar, &mut header, &entry.path, reader, &at)
        }
    }
}

/// First bytes of a file as they are stored in the image, where the header of bytecode contains another time.
fn first_bytes(
    file: &mut File,
    at: &Path,
    root: &Path,
    path: &Path,
    bytes: u64,
    good: &mut HashSet<PathBuf>,
) -> Result<Vec<u8>, ImageError> {
    let Some(source) = bytecode::source_of(path).filter(|_| bytes >= HEADER_BYTES as u64) else {
        return Ok(Vec::new());
    };
    let mut header = [0; HEADER_BYTES];
    file.read_exact(&mut header).map_err(io("read", at))?;
    if bytecode::renew(&mut header, &root.join(&source), TIME) {
        good.insert(source);
    }
    Ok(header.into())
}

/// Reader of exactly the announced number of bytes; fails with an error of its own if the file has changed.
struct ExactReader<R> {
    left: u64,
    from: R,
    failure: Option<io::Error>,
}

impl<R: Read> Read for &mut ExactReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let wanted = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let read = match self.from.read(&mut into[..wanted]) {
            Ok(0) => Err(io::Error::other("it changed while it was packed")),
            other => other,
        };
        match read {
            Ok(read) => {
                self.left -= read as u64;
                Ok(read)
            }
            Err(error) => {
                self.failure = Some(error);
                Err(io::ErrorKind::Other.into())
            }
        }
    }
}

fn append_exact<W: Write, R: Read>(
    tar: &mut tar::Builder<W>,
    header: &mut tar::Header,
    path: &Path,
    mut reader: ExactReader<R>,
    at: &Path,
) -> Result<(), ImageError> {
    let appended = tar.append_data(header, path, &mut reader);
    match reader.failure {
        Some(failure) => Err(io("read", at)(failure)),
        None => appended.map_err(io(STREAM, at)),
    }
}
