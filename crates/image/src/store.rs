//! Folder of images that a site or a user keeps on a file system that all nodes see.

use crate::ImageId;
use crate::error::{ImageError, io};
use crate::limits::Limits;
use crate::survey::check_limit;
use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Suffix of an image's file name.
const SUFFIX: &str = ".squashfs";
/// Prefix of the file name of an incomplete image.
const INCOMING: &str = ".incoming-";
/// An incomplete image to which nothing was written for this long is removed: its packer must have died.
const STALE_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Bytes that are read at once. Parallel file systems are fast only with large reads.
pub(crate) const CHUNK_BYTES: usize = 4 << 20;

/// Store of images. Images appear in it whole or not at all, and never change.
#[derive(Debug, Clone)]
pub struct ImageStore(PathBuf);

/// Path of an image's file in a folder.
pub(crate) fn image_file(folder: &Path, id: &ImageId) -> PathBuf {
    folder.join(format!("{id}{SUFFIX}"))
}

/// Name of the image in a file name.
pub(crate) fn id_of(file: &Path) -> Option<ImageId> {
    file.file_name()?.to_str()?.strip_suffix(SUFFIX)?.parse().ok()
}

impl ImageStore {
    /// Store in this folder, which need not exist yet.
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Folder of the store.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Names and sizes of the images in the store. Returns an empty list if the store does not exist.
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

    /// Opens an image's file. Returns its path, the file and its size, or `None` if the store does not contain the
    /// image.
    pub(crate) fn open(&self, id: &ImageId) -> Result<Option<(PathBuf, File, u64)>, ImageError> {
        let path = image_file(&self.0, id);
        // Any user may have made the file. A named pipe or a file with a lease (fcntl) would make the open wait.
        // Through a link, root would read a file for a user that has no right to read it.
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        let file = match File::options().read(true).custom_flags(flags.bits()).open(&path) {
            Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => {
                return Err(ImageError::Damaged {
                    path,
                    why: "it is a link".into(),
                });
            }
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

    /// Reads the whole image again, and compares its hash with its name.
    pub fn verify(&self, id: &ImageId) -> Result<(), ImageError> {
        let Some((path, file, _)) = self.open(id)? else {
            let looked = vec![self.0.clone()];
            return Err(ImageError::Unknown { id: *id, looked });
        };
        advise_sequential(&file);
        check_id(id, hash(file, &path, |_| Ok(()))?.0, &path)
    }

    /// Makes a file for an image whose name is not known yet.
    pub(crate) fn incoming(&self) -> Result<PackedFile, ImageError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&self.0);
        made.map_err(io("make the store", &self.0))?;
        self.sweep();
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let host = nix::unistd::gethostname().unwrap_or_default();
        let name = format!("{INCOMING}{}-{process}-{count}", host.display());
        Ok(PackedFile {
            folder: self.0.clone(),
            path: self.0.join(name),
        })
    }

    /// Removes files that dead packers have left. Files that cannot be removed belong to other users.
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
            let is_left = changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > STALE_AFTER));
            if is_incoming && is_left {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Image that is being packed. If the value is dropped before the image is published, the image is removed.
pub(crate) struct PackedFile {
    folder: PathBuf,
    path: PathBuf,
}

impl PackedFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Hashes the file. Returns the image's name and size.
    pub(crate) fn hash(&self, limits: &Limits) -> Result<(ImageId, u64), ImageError> {
        let file = File::open(&self.path).map_err(io("open", &self.path))?;
        let bytes = file.metadata().map_err(io("look at", &self.path))?.len();
        check_limit("bytes of the image", bytes, limits.image_bytes)?;
        advise_sequential(&file);
        hash(file, &self.path, |_| Ok(()))
    }

    /// Publishes the image in the store, complete, durable and read-only.
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

impl Drop for PackedFile {
    fn drop(&mut self) {
        // Has no effect once the image is published.
        let _ = fs::remove_file(&self.path);
    }
}

/// Hints to the kernel that the file will be read to its end.
pub(crate) fn advise_sequential(file: &File) {
    let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL);
}

/// Reads an image to its end in large pieces, and passes each piece to `each`. Returns the image's name and length.
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

pub(crate) fn check_id(id: &ImageId, found: ImageId, path: &Path) -> Result<(), ImageError> {
    match found == *id {
        true => Ok(()),
        false => Err(ImageError::Damaged {
            path: path.to_owned(),
            why: format!("its bytes are those of {found}"),
        }),
    }
}
