//! Limit of the cache, and removal of images to stay within it.

use crate::ImageId;
use crate::cache::{Cache, CachedImage};
use crate::error::{ImageError, io};
use crate::lock::Lock;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Limit of the wait for other processes and threads that fetch, mount or remove images; these images may be removable
/// afterwards.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// Result of an attempt to remove an image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removal {
    Done,
    /// Another process or thread works on the image, and will finish soon.
    Busy,
    /// The image is in use.
    Used,
}

impl Cache {
    /// Removes images, the longest unused first, until all together have at most `keep` bytes. Mounted images stay.
    /// Returns the removed images.
    pub fn gc(&self, keep: u64) -> Result<Vec<CachedImage>, ImageError> {
        let _one = self.one_at_a_time()?;
        let mut removed = Vec::new();
        let images = self.list()?;
        let mut bytes: u64 = images.iter().map(|image| image.bytes).sum();
        for image in images.into_iter().rev() {
            if bytes <= keep {
                break;
            }
            if self.remove(&image.id)? == Removal::Done {
                bytes -= image.bytes;
                removed.push(image);
            }
        }
        Ok(removed)
    }

    fn one_at_a_time(&self) -> Result<Lock, ImageError> {
        let path = self.path().join("lock");
        Lock::exclusive(&path).map_err(io("lock", &path))
    }

    /// Makes room for an image of `needed` bytes, and reserves it by `reserve` before another process can take it.
    pub(crate) fn make_room<R>(
        &self,
        id: &ImageId,
        needed: u64,
        reserve: impl FnOnce() -> Result<R, ImageError>,
    ) -> Result<R, ImageError> {
        let began = Instant::now();
        loop {
            let one = self.one_at_a_time()?;
            match self.shrink(id, needed) {
                Ok(()) => return reserve(),
                Err((_, Removal::Busy)) if began.elapsed() < PATIENCE => {}
                Err((error, _)) => return Err(error),
            }
            // Other processes can continue only if this lock is released. Their locks are not waited for, because they
            // may be waiting for room themselves.
            drop(one);
            thread::sleep(PAUSE);
        }
    }

    /// Removes the longest unused images until `needed` more bytes fit. The error also says whether waiting may help.
    fn shrink(&self, id: &ImageId, needed: u64) -> Result<(), (ImageError, Removal)> {
        let most = self.options.bytes;
        let mut worst = Removal::Used;
        let failed = |error| (error, Removal::Used);
        let mut sizes = self.incoming(id).map_err(failed)?;
        let images = self.list().map_err(failed)?;
        // An image that arrives between the two listings is in both, and counts once.
        sizes.extend(images.iter().map(|image| (image.id, image.bytes)));
        let mut used = sizes.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        // Nothing is removed for an image that could never fit.
        let mut oldest = images.iter().rev().filter(|_| needed <= most);
        while used.saturating_add(needed) > most {
            let Some(image) = oldest.next() else {
                let error = ImageError::NoRoom {
                    id: *id,
                    needed,
                    used,
                    most,
                    path: self.path().to_owned(),
                };
                return Err((error, worst));
            };
            match self.remove(&image.id).map_err(failed)? {
                Removal::Done => used -= image.bytes,
                Removal::Busy => worst = Removal::Busy,
                Removal::Used => {}
            }
        }
        Ok(())
    }

    /// Images other than `but` that are being fetched, with their sizes.
    fn incoming(&self, but: &ImageId) -> Result<HashMap<ImageId, u64>, ImageError> {
        let folder = self.path().join("incoming");
        let mut sizes = HashMap::new();
        for entry in fs::read_dir(&folder).map_err(io("list", &folder))? {
            let entry = entry.map_err(io("list", &folder))?;
            let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(id) = id.filter(|id| id != but) {
                // If the file has gone meanwhile, the image has arrived or was abandoned.
                sizes.insert(id, entry.metadata().map_or(0, |found| found.len()));
            }
        }
        Ok(sizes)
    }

    /// Removes an image, unless it is in use, or another process or thread works on it.
    fn remove(&self, id: &ImageId) -> Result<Removal, ImageError> {
        let Some(_work) = self.try_work(id)? else {
            return Ok(Removal::Busy);
        };
        let removed = self.remove_held(id).map_err(io("remove", &self.image(id)))?;
        Ok(if removed { Removal::Done } else { Removal::Used })
    }

    /// Removes an image that is not in use; the caller holds `work`. Returns whether it was removed.
    pub(crate) fn remove_held(&self, id: &ImageId) -> io::Result<bool> {
        let used = self.place("use", id);
        let Some(_lock) = Lock::try_exclusive(&used)? else {
            return Ok(false);
        };
        let at = self.place("mounts", id);
        let state = crate::mount::state(&at)?;
        // Even if no process holds the lock, a process may have files of the mount open. Then unmounting fails, and the
        // image is in use.
        if state != crate::mount::MountState::Unmounted && crate::mount::unmount(&at, state).is_err() {
            return Ok(false);
        }
        fs::remove_file(self.image(id))?;
        for folder in ["stamps", "traces", "use"] {
            let _ = fs::remove_file(self.place(folder, id));
        }
        let _ = fs::remove_dir(at);
        Ok(true)
    }
}
