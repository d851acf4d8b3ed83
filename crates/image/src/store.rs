//! A folder of images that a site or a user keeps, on a file system that all nodes see.

use crate::ImageId;
use crate::error::{ImageError, io};
use crate::limits::Limits;
use crate::survey::within;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Behind the name of an image.
const SUFFIX: &str = ".squashfs";
/// Before the name of what is not an image yet.
const INCOMING: &str = ".incoming-";
/// What nobody has written to for so long was left by somebody who died.
const LEFT_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Read at once: parallel file systems are fast with large reads and nothing else.
pub(crate) const CHUNK_BYTES: usize = 4 << 20;

/// A store. Images appear in it whole or not at all, and never change.
#[derive(Debug, Clone)]
pub struct Store(PathBuf);

/// The file of an image in a folder.
pub(crate) fn image_file(folder: &Path, id: &ImageId) -> PathBuf {
    folder.join(format!("{id}{SUFFIX}"))
}

/// Which image a file is by its name.
pub(crate) fn id_of(file: &Path) -> Option<ImageId> {
    file.file_name()?.to_str()?.strip_suffix(SUFFIX)?.parse().ok()
}

impl Store {
    /// In this folder, which need not be there yet.
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Names and sizes of the images in it. A store that is not there has none.
    pub fn list(&self) -> Result<Vec<(ImageId, u64)>, ImageError> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(io("list", &self.0))?,
        };
        let mut images = Vec::new();
        for entry in entries {
            let entry = entry.map_err(io("list", &self.0))?;
            if let (Some(id), Ok(found)) = (id_of(&entry.path()), entry.metadata()) {
                images.push((id, found.len()));
            }
        }
        images.sort_unstable();
        Ok(images)
    }

    /// An image's file, opened, and its size; None if it is not there.
    pub(crate) fn open(&self, id: &ImageId) -> Result<Option<(PathBuf, File, u64)>, ImageError> {
        let path = image_file(&self.0, id);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(io("open", &path))?,
        };
        let found = file.metadata().map_err(io("look at", &path))?;
        match found.is_file() {
            true => Ok(Some((path, file, found.len()))),
            false => Err(ImageError::Damaged {
                path,
                why: "it is no file".into(),
            }),
        }
    }

    /// Reads an image again, all of it, and compares it with its name.
    pub fn verify(&self, id: &ImageId) -> Result<(), ImageError> {
        let Some((path, file, _)) = self.open(id)? else {
            let looked = vec![self.0.clone()];
            return Err(ImageError::Unknown { id: *id, looked });
        };
        in_sequence(&file);
        expect(id, hash(file, &path, |_| Ok(()))?.0, &path)
    }

    /// A place for an image whose name is not known yet.
    pub(crate) fn incoming(&self) -> Result<Incoming, ImageError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&self.0);
        made.map_err(io("make the store", &self.0))?;
        self.sweep();
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let host = nix::unistd::gethostname().unwrap_or_default();
        let name = format!("{INCOMING}{}-{process}-{count}", host.display());
        Ok(Incoming {
            folder: self.0.clone(),
            path: self.0.join(name),
        })
    }

    /// Removes what packers have left that died. What cannot be removed is somebody else's.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.0) else {
            return;
        };
        for entry in entries.flatten() {
            let is_incoming = entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(INCOMING));
            let changed = entry.metadata().and_then(|found| found.modified());
            let is_left = changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > LEFT_AFTER));
            if is_incoming && is_left {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// An image in the making. Dropped before it is published, it is removed.
pub(crate) struct Incoming {
    folder: PathBuf,
    path: PathBuf,
}

impl Incoming {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Name and size of what is there now.
    pub(crate) fn hash(&self, limits: &Limits) -> Result<(ImageId, u64), ImageError> {
        let file = File::open(&self.path).map_err(io("open", &self.path))?;
        let bytes = file.metadata().map_err(io("look at", &self.path))?.len();
        within("bytes of the image", bytes, limits.image_bytes)?;
        in_sequence(&file);
        hash(file, &self.path, |_| Ok(()))
    }

    /// Makes it an image of the store: whole, durable, and not to be written again.
    pub(crate) fn publish(self, id: ImageId) -> Result<PathBuf, ImageError> {
        let path = image_file(&self.folder, &id);
        let made_safe = || {
            let file = File::open(&self.path)?;
            let mode = file.metadata()?.permissions().mode();
            file.set_permissions(fs::Permissions::from_mode(mode & 0o444))?;
            file.sync_all()?;
            fs::rename(&self.path, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        made_safe().map_err(io("publish", &path))?;
        Ok(path)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // Without effect once it is published.
        let _ = fs::remove_file(&self.path);
    }
}

/// It is going to be read to its end. A hint.
pub(crate) fn in_sequence(file: &File) {
    let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL);
}

/// Reads an image to its end in large pieces, each of which `each` gets. Name and length.
pub(crate) fn hash(
    mut content: impl Read,
    path: &Path,
    mut each: impl FnMut(&[u8]) -> Result<(), ImageError>,
) -> Result<(ImageId, u64), ImageError> {
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    loop {
        match content.read(&mut chunk) {
            Ok(0) => return Ok((ImageId::of(&hasher), bytes)),
            Ok(read) => {
                hasher.update(&chunk[..read]);
                bytes += read as u64;
                each(&chunk[..read])?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(io("read", path)(error)),
        }
    }
}

pub(crate) fn expect(id: &ImageId, found: ImageId, path: &Path) -> Result<(), ImageError> {
    match found == *id {
        true => Ok(()),
        false => Err(ImageError::Damaged {
            path: path.to_owned(),
            why: format!("its bytes are those of {found}"),
        }),
    }
}
