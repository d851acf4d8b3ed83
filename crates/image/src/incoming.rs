//! An image on its way into the cache: from one source or, where that breaks off, from several, each of which goes on where the one
//! before has ended. Whoever reads it here meanwhile does not notice. What a store has is read from its beginning, though: what others
//! have sent may be what is wrong.
//!
//! Nothing of it is believed before all of it has come and has the hash that it is named by. Where it has not, nobody can say which
//! source was wrong, and it begins anew.

use crate::ImageId;
use crate::cache::Cache;
use crate::error::{ImageError, io};
use crate::neighbours::Announced;
use crate::store::{CHUNK_BYTES, expect, image_file};
use crate::survey::within;
use nix::fcntl::posix_fallocate;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// See the module. What is not published is removed.
pub(crate) struct Incoming<'a> {
    cache: &'a Cache,
    id: &'a ImageId,
    announced: Announced<'a>,
    path: PathBuf,
    begun: Option<Begun>,
}

struct Begun {
    to: Arc<File>,
    /// How long it is to be.
    bytes: u64,
    written: u64,
    hasher: Box<blake3::Hasher>,
}

impl<'a> Incoming<'a> {
    /// Nothing yet; others may ask for it from now on.
    pub fn announced(cache: &'a Cache, id: &'a ImageId) -> Self {
        Self {
            cache,
            id,
            announced: cache.arrivals.announce(id),
            path: cache.of("incoming", id),
            begun: None,
        }
    }

    /// How much of it has come, for the next source to go on behind.
    pub fn written(&self) -> u64 {
        self.begun.as_ref().map_or(0, |begun| begun.written)
    }

    /// It begins anew, with what comes next.
    pub fn forget(&mut self) {
        if self.begun.take().is_some() {
            // Whoever reads it has the file.
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Takes what a source sends of the rest, to the end; it says that the whole is so long. An error of the source's leaves what came
    /// before it for the next one, unless that is known to be wrong.
    pub fn add(&mut self, from: &Path, content: impl Read, bytes: u64) -> Result<(), ImageError> {
        within("bytes of the image", bytes, self.cache.options.limits.image_bytes)?;
        let mut begun = match self.begun.take() {
            Some(begun) => begun,
            None => self.begin(bytes)?,
        };
        let outcome = match begun.bytes == bytes {
            true => self.take(&mut begun, from, content),
            false => Err(damaged(from, "it is not as long as another source says")),
        };
        let is_right = outcome.is_ok();
        // What broke off may go on.
        let goes_on = begun.bytes == bytes && begun.written < bytes;
        self.begun = Some(begun);
        if !is_right && !goes_on {
            self.forget();
        }
        outcome
    }

    fn begin(&mut self, bytes: u64) -> Result<Begun, ImageError> {
        let path = &self.path;
        let made = self.cache.make_room(self.id, bytes, || {
            let to = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(path)
                .map_err(io("make", path))?;
            // All of it is counted, and known to have its place on the disk, before it is there.
            let size = i64::try_from(bytes).unwrap_or(i64::MAX);
            posix_fallocate(&to, 0, size.max(1))
                .map_err(|errno| io("find room on the disk for", path)(errno.into()))?;
            Ok(to)
        });
        let to = match made {
            Ok(to) => Arc::new(to),
            Err(error) => {
                // It may never have been made.
                let _ = fs::remove_file(path);
                return Err(error);
            }
        };
        self.announced.begin(Arc::clone(&to), bytes);
        Ok(Begun {
            to,
            bytes,
            written: 0,
            hasher: Box::default(),
        })
    }

    fn take(&self, begun: &mut Begun, from: &Path, mut content: impl Read) -> Result<(), ImageError> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let read = match content.read(&mut chunk) {
                Ok(0) if begun.written < begun.bytes => return Err(damaged(from, "it ends before its end")),
                Ok(0) => return expect(self.id, ImageId::of(&begun.hasher), from),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(io("read", from)(error)),
            };
            if read as u64 > begun.bytes - begun.written {
                // Not to be gone on with.
                begun.written = begun.bytes;
                return Err(damaged(from, "it grows while it is read"));
            }
            begun.hasher.update(&chunk[..read]);
            (&*begun.to)
                .write_all(&chunk[..read])
                .map_err(io("write", &self.path))?;
            begun.written += read as u64;
            self.announced.written(read as u64);
        }
    }

    /// It is whole and right: it is where others find it.
    pub fn publish(mut self) -> Result<(), ImageError> {
        let Some(Begun { to, .. }) = &self.begun else {
            return Ok(());
        };
        // Whatever the umask: root has it read by users that own nothing. Nobody else comes into the folder.
        let readable = fs::Permissions::from_mode(0o644);
        to.set_permissions(readable)
            .map_err(io("set the mode of", &self.path))?;
        let image = image_file(&self.cache.path().join("images"), self.id);
        fs::rename(&self.path, &image).map_err(io("publish", &image))?;
        self.begun = None;
        self.cache.note_right(self.id);
        self.announced.whole();
        Ok(())
    }
}

fn damaged(from: &Path, why: &str) -> ImageError {
    ImageError::Damaged {
        path: from.to_owned(),
        why: why.into(),
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        self.forget();
    }
}
