//! An image on its way into the cache. It comes from one source, or from several: each neighbour continues where the
//! previous one broke off, which readers on this node do not notice. A store's file is read from its beginning, because
//! the bytes of earlier sources may be wrong.
//!
//! No bytes are trusted before all of them have arrived and match the hash. If they do not match, it is unknown which
//! source was wrong, and the image is fetched anew.

use crate::ImageId;
use crate::cache::Cache;
use crate::error::{ImageError, io};
use crate::neighbours::Announcement;
use crate::store::{CHUNK_BYTES, check_id, image_file};
use crate::survey::check_limit;
use nix::fcntl::posix_fallocate;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Image that is being fetched. If the value is dropped before the image is published, the image is removed.
pub(crate) struct Transfer<'a> {
    cache: &'a Cache,
    id: &'a ImageId,
    announcement: Announcement<'a>,
    path: PathBuf,
    file: Option<TransferFile>,
}

struct TransferFile {
    to: Arc<File>,
    /// Length of the whole image.
    bytes: u64,
    written: u64,
    hasher: Box<blake3::Hasher>,
}

impl<'a> Transfer<'a> {
    /// Announces the image, so that other nodes can read it while it arrives. No bytes have arrived yet.
    pub fn announced(cache: &'a Cache, id: &'a ImageId) -> Self {
        Self {
            cache,
            id,
            announcement: cache.arrivals.announce(id),
            path: cache.place("incoming", id),
            file: None,
        }
    }

    /// Number of bytes that have arrived. The next source continues after these bytes.
    pub fn written(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.written)
    }

    /// Discards the bytes that have arrived; the next source starts anew.
    pub fn restart(&mut self) {
        if self.file.take().is_some() {
            // Readers still have the file open.
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Writes the part of the remaining bytes that a source sends. `bytes` is the length of the whole image as the
    /// source states it. After an error of the source, the next source continues after the bytes that have arrived,
    /// unless they are known to be wrong.
    pub fn add(&mut self, from: &Path, content: impl Read, bytes: u64) -> Result<(), ImageError> {
        check_limit("bytes of the image", bytes, self.cache.options.limits.image_bytes)?;
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.begin(bytes)?,
        };
        let outcome = match file.bytes == bytes {
            true => self.take(&mut file, from, content),
            false => Err(damaged(
                from,
                "its length differs from the one that another source states",
            )),
        };
        let is_right = outcome.is_ok();
        // After a broken transfer the next source may continue.
        let goes_on = file.bytes == bytes && file.written < bytes;
        self.file = Some(file);
        if !is_right && !goes_on {
            self.restart();
        }
        outcome
    }

    fn begin(&mut self, bytes: u64) -> Result<TransferFile, ImageError> {
        let path = &self.path;
        let made = self.cache.make_room(self.id, bytes, || {
            let to = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(path)
                .map_err(io("make", path))?;
            // Allocates all bytes now, so that their place on the disk is certain, and the cache's limit counts them
            // before they arrive.
            let size = i64::try_from(bytes).unwrap_or(i64::MAX);
            posix_fallocate(&to, 0, size.max(1))
                .map_err(|errno| io("find room on the disk for", path)(errno.into()))?;
            Ok(to)
        });
        let to = match made {
            Ok(to) => Arc::new(to),
            Err(error) => {
                // The file may not exist.
                let _ = fs::remove_file(path);
                return Err(error);
            }
        };
        self.announcement.begin(Arc::clone(&to), bytes);
        Ok(TransferFile {
            to,
            bytes,
            written: 0,
            hasher: Box::default(),
        })
    }

    fn take(&self, file: &mut TransferFile, from: &Path, mut content: impl Read) -> Result<(), ImageError> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let read = match content.read(&mut chunk) {
                Ok(0) if file.written < file.bytes => {
                    return Err(damaged(from, "it ends before the length that it states"));
                }
                Ok(0) => return check_id(self.id, ImageId::of(&file.hasher), from),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(io("read", from)(error)),
            };
            if read as u64 > file.bytes - file.written {
                // Marks the file as complete, so that no source continues it.
                file.written = file.bytes;
                return Err(damaged(from, "it grows while it is read"));
            }
            file.hasher.update(&chunk[..read]);
            (&*file.to).write_all(&chunk[..read]).map_err(io("write", &self.path))?;
            file.written += read as u64;
            self.announcement.add_written(read as u64);
        }
    }

    /// Publishes the image, which is complete and correct, under its name in the cache.
    pub fn publish(mut self) -> Result<(), ImageError> {
        let Some(TransferFile { to, .. }) = &self.file else {
            return Ok(());
        };
        // Set regardless of the umask: under root, users without rights read the image. No other user can enter the
        // folder.
        let readable = fs::Permissions::from_mode(0o644);
        to.set_permissions(readable)
            .map_err(io("set the mode of", &self.path))?;
        let image = image_file(&self.cache.path().join("images"), self.id);
        fs::rename(&self.path, &image).map_err(io("publish", &image))?;
        self.file = None;
        self.cache.note_correct(self.id);
        self.announcement.set_complete();
        Ok(())
    }
}

fn damaged(from: &Path, why: &str) -> ImageError {
    ImageError::Damaged {
        path: from.to_owned(),
        why: why.into(),
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.restart();
    }
}
