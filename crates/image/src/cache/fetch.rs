//! Fetching of images into the cache, and checking that they are correct.

use super::transfer::Transfer;
use crate::ImageId;
use crate::cache::Cache;
use crate::error::{ImageError, io};
use crate::neighbours::ArrivalInfo;
use crate::store::{ImageStore, advise_sequential, check_id, hash};
use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Returns a stamp, which identifies the file that was read and found correct. A later write changes the file's times.
/// After a reboot the stamp differs, so the file is read again, because some of its bytes may not have reached the
/// disk. So stamps need no fsync either.
fn stamp(image: &Path) -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let found = fs::symlink_metadata(image).ok().filter(fs::Metadata::is_file)?;
    let changed = format!("{}.{:09}", found.ctime(), found.ctime_nsec());
    Some(format!("{} {} {} {changed}", boot.trim(), found.ino(), found.len()))
}

/// Suffix of a stamp: the contents of the image were checked, too.
const CHECKED: &str = " checked";

impl Cache {
    /// Ensures that an image is in the cache and correct. The caller must hold `work`, and the image must not be
    /// mounted.
    pub(crate) fn ensure(&self, id: &ImageId) -> Result<(), ImageError> {
        let image = self.image(id);
        let mut damage = None;
        if image.symlink_metadata().is_ok() {
            if self.stamp_rest(id).is_some() {
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
        let mut incoming = Transfer::announced(self, id);
        let arrived = |from: &Path, bytes| {
            if let Some(neighbours) = &self.options.neighbours {
                let took = begun.elapsed();
                neighbours.arrived(id, &ArrivalInfo { from, bytes, took });
            }
        };
        if let Some(neighbours) = &self.options.neighbours {
            let at = Cell::new(0);
            for offer in neighbours.offers(id, &at) {
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
            if let Some((path, file, bytes)) = ImageStore::at(store).open(id)? {
                advise_sequential(&file);
                // Starts anew, because the neighbours' bytes may be wrong.
                incoming.restart();
                incoming.add(&path, file, bytes)?;
                incoming.publish()?;
                arrived(&path, bytes);
                return Ok(());
            }
        }
        let looked = self.options.stores.clone();
        Err(damage.unwrap_or(ImageError::Unknown { id: *id, looked }))
    }

    /// Reads the whole image, and writes its stamp if it is correct.
    fn read_again(&self, id: &ImageId) -> Result<(), ImageError> {
        let image = self.image(id);
        let before = stamp(&image);
        let file = File::open(&image).map_err(io("open", &image))?;
        advise_sequential(&file);
        check_id(id, hash(file, &image, |_| Ok(()))?.0, &image)?;
        if before == stamp(&image) {
            self.note_correct(id);
        }
        Ok(())
    }

    /// Reads the whole image again, even if it has a valid stamp. Removes a damaged image, unless it is in use.
    ///
    /// # Errors
    /// [`ImageError::Damaged`] if the bytes do not match the name; [`ImageError::Unknown`] if the image is not in the
    /// cache.
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
            // Users of the mount keep the damaged image; the next fetch fetches the image again.
            let _ = fs::remove_file(self.place("stamps", id));
            let _ = self.remove_held(id);
        }
        outcome
    }

    /// Text after the stamp of the present file. Returns `None` if the stamp is missing or belongs to another file.
    fn stamp_rest(&self, id: &ImageId) -> Option<String> {
        let noted = fs::read_to_string(self.place("stamps", id)).ok()?;
        Some(noted.strip_prefix(&stamp(&self.image(id))?)?.to_owned())
    }

    fn note(&self, id: &ImageId, more: &str) {
        // A failure is harmless: without a stamp the next use reads the whole image again.
        if let Some(stamp) = stamp(&self.image(id)) {
            let _ = fs::write(self.place("stamps", id), stamp + more);
        }
    }

    pub(crate) fn note_correct(&self, id: &ImageId) {
        self.note(id, "");
    }

    pub(crate) fn is_checked(&self, id: &ImageId) -> bool {
        self.stamp_rest(id).is_some_and(|rest| rest == CHECKED)
    }

    pub(crate) fn note_checked(&self, id: &ImageId) {
        if self.stamp_rest(id).is_some() {
            self.note(id, CHECKED);
        }
    }
}
