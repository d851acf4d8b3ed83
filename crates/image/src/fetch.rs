//! How an image gets into the cache, and how it is known to be right.

use crate::ImageId;
use crate::cache::Cache;
use crate::error::{ImageError, io};
use crate::incoming::Incoming;
use crate::neighbours::Arrived;
use crate::store::{Store, expect, hash, in_sequence};
use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Which file it was that was read and found right: nobody has written to it since, or its times were others; what was not yet on the disk
/// when the machine went down is read again, because the boot is another. Written without fsync for the same reason.
fn stamp(image: &Path) -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let found = fs::symlink_metadata(image).ok().filter(fs::Metadata::is_file)?;
    let changed = format!("{}.{:09}", found.ctime(), found.ctime_nsec());
    Some(format!(
        "{} {} {} {changed}",
        boot.trim(),
        found.ino(),
        found.len()
    ))
}

/// Behind a stamp: what is in the image was looked at, too.
const CHECKED: &str = " checked";

impl Cache {
    /// Sees that an image is here and right. To be called with `work` held, and not while it is mounted.
    pub(crate) fn provide(&self, id: &ImageId) -> Result<(), ImageError> {
        let image = self.image(id);
        let mut damage = None;
        if image.symlink_metadata().is_ok() {
            if self.stamped(id).is_some() {
                return Ok(());
            }
            match self.read_again(id) {
                Ok(()) => return Ok(()),
                Err(error @ ImageError::Damaged { .. }) => damage = Some(error),
                Err(other) => return Err(other),
            }
            fs::remove_file(&image).map_err(io("remove the damaged", &image))?;
        }
        let begun = Instant::now();
        let mut incoming = Incoming::announced(self, id);
        let arrived = |from: &Path, bytes| {
            if let Some(neighbours) = &self.options.neighbours {
                let took = begun.elapsed();
                neighbours.arrived(id, &Arrived { from, bytes, took });
            }
        };
        if let Some(neighbours) = &self.options.neighbours {
            let at = Cell::new(0);
            for offer in neighbours.of(id, &at) {
                let from = PathBuf::from(offer.from);
                match incoming.add(&from, offer.content, offer.bytes) {
                    Ok(()) => {
                        incoming.publish()?;
                        arrived(&from, offer.bytes);
                        return Ok(());
                    }
                    Err(error) if error.is_of(&from) => at.set(incoming.written()),
                    Err(error) => return Err(error),
                }
            }
        }
        for store in &self.options.stores {
            if let Some((path, file, bytes)) = Store::at(store).open(id)? {
                in_sequence(&file);
                // All of it: what others have sent may be what is wrong.
                incoming.forget();
                incoming.add(&path, file, bytes)?;
                incoming.publish()?;
                arrived(&path, bytes);
                return Ok(());
            }
        }
        let looked = self.options.stores.clone();
        Err(damage.unwrap_or(ImageError::Unknown { id: *id, looked }))
    }

    /// Reads the image, and notes that it is right.
    fn read_again(&self, id: &ImageId) -> Result<(), ImageError> {
        let image = self.image(id);
        let before = stamp(&image);
        let file = File::open(&image).map_err(io("open", &image))?;
        in_sequence(&file);
        expect(id, hash(file, &image, |_| Ok(()))?.0, &image)?;
        if before == stamp(&image) {
            self.note_right(id);
        }
        Ok(())
    }

    /// Reads an image of the cache again, all of it, whatever was found before. A damaged one is removed, unless it is in use.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if its bytes are not those that the name stands for; [`ImageError::Unknown`] if it is not here.
    pub fn verify(&self, id: &ImageId) -> Result<(), ImageError> {
        let _work = self.work(id)?;
        if self.image(id).symlink_metadata().is_err() {
            return Err(ImageError::Unknown {
                id: *id,
                looked: Vec::new(),
            });
        }
        let outcome = self.read_again(id);
        if let Err(ImageError::Damaged { .. }) = &outcome {
            // Whoever has it mounted keeps what it has; the next fetches it again.
            let _ = fs::remove_file(self.of("stamps", id));
            let _ = self.remove_held(id);
        }
        outcome
    }

    /// The rest of a stamp that is of the file that is there now.
    fn stamped(&self, id: &ImageId) -> Option<String> {
        let noted = fs::read_to_string(self.of("stamps", id)).ok()?;
        Some(noted.strip_prefix(&stamp(&self.image(id))?)?.to_owned())
    }

    fn note(&self, id: &ImageId, more: &str) {
        // Without it the image is read again the next time, and that is all.
        if let Some(stamp) = stamp(&self.image(id)) {
            let _ = fs::write(self.of("stamps", id), stamp + more);
        }
    }

    pub(crate) fn note_right(&self, id: &ImageId) {
        self.note(id, "");
    }

    pub(crate) fn is_checked(&self, id: &ImageId) -> bool {
        self.stamped(id).is_some_and(|rest| rest == CHECKED)
    }

    pub(crate) fn note_checked(&self, id: &ImageId) {
        if self.stamped(id).is_some() {
            self.note(id, CHECKED);
        }
    }
}
