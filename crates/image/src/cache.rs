//! Cache of a node's images.
//!
//! ```text
//! images/HASH.squashfs   image; complete and correct when it is renamed to here
//! incoming/HASH          image that the holder of work/HASH is fetching
//! stamps/HASH            identity of the file that was found correct, and of the boot
//! traces/HASH            names of files that a first run has opened, in order
//! mounts/HASH            mount point
//! work/HASH              lock: held while the image is fetched, mounted, unmounted or removed
//! use/HASH               lock: shared by all users of the mount; the file's time is the time of the last use
//! lock                   lock: held while room is made
//! ```
//!
//! Several processes use a cache at once, and each may die at any step. The kernel releases the locks of a process that
//! ends; the next holder of `work` finds what that process left, and repairs it. Locks are taken in the order work,
//! lock, use. Locks of a second image are only tried, without waiting. A mount without a holder of `use` is left over
//! from a dead process: [`Cache::open`] removes it.

mod eviction;
mod fetch;
mod superblock;
mod transfer;

use crate::error::{ImageError, io};
use crate::limits::Limits;
use crate::lock::Lock;
use crate::mount::{self, MountMethod, MountState};
use crate::mounted_image::MountedImage;
use crate::neighbours::{Arrivals, Neighbours};
use crate::store::{id_of, image_file};
use crate::survey::{EntryKind, Links, contents_error, is_interpreter, survey};
use crate::{ImageId, Manifest};
use nix::unistd::geteuid;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

const FOLDERS: [&str; 7] = ["images", "incoming", "stamps", "traces", "mounts", "work", "use"];

/// Limits of a node's cache, and the sources of its images.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// Limit of bytes of all images in the cache. Default: 32 GiB.
    pub bytes: u64,
    /// Limits of each image.
    pub limits: Limits,
    /// Stores, which are asked in this order. Default: none.
    pub stores: Vec<PathBuf>,
    /// Way in which images are mounted. Default: [`MountMethod::Any`].
    pub way: MountMethod,
    /// Other nodes, which are asked before the stores. Default: none.
    pub neighbours: Option<Arc<dyn Neighbours>>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            bytes: 32 << 30,
            limits: Limits::default(),
            stores: Vec::new(),
            way: MountMethod::Any,
            neighbours: None,
        }
    }
}

/// An image in a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedImage {
    /// Name of the image.
    pub id: ImageId,
    /// Size of its file, bytes.
    pub bytes: u64,
    /// Time of its last use.
    pub used: SystemTime,
    /// Whether it is mounted.
    pub mounted: bool,
}

/// Cache of a node's images on a local disk. Cheap to clone; many threads and processes may use one cache at once.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
    pub(crate) options: Arc<CacheOptions>,
    pub(crate) arrivals: Arc<Arrivals>,
}

impl Cache {
    /// Opens the cache in this folder. Makes the folder if it is missing; refuses it if other users could write to it.
    /// Removes what dead processes have left.
    ///
    /// # Errors
    /// Fails if the folder cannot be made, belongs to another user, or is not safe.
    pub fn open(root: &Path, options: CacheOptions) -> Result<Self, ImageError> {
        let make = |path: &Path| {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.map_err(io("make the cache", path))
        };
        make(root)?;
        let found = root.symlink_metadata().map_err(io("look at", root))?;
        let why = match () {
            () if !found.is_dir() => Some("it is not a folder of its own (a link or a file)"),
            () if found.uid() != geteuid().as_raw() => Some("it belongs to another user"),
            () if found.mode() & 0o022 != 0 => Some("others can write to it; its mode must be 0700 or 0755"),
            () => None,
        };
        if let Some(why) = why {
            let path = root.to_owned();
            return Err(ImageError::Unsafe { path, why });
        }
        // The table of mounts is searched for this path.
        let root = fs::canonicalize(root).map_err(io("find", root))?;
        for folder in FOLDERS {
            make(&root.join(folder))?;
        }
        let cache = Self {
            root,
            options: Arc::new(options),
            arrivals: Arc::default(),
        };
        cache.sweep()?;
        Ok(cache)
    }

    /// Returns this cache with another way of mounting, for images that are not mounted yet.
    pub fn with_method(&self, way: MountMethod) -> Self {
        let options = CacheOptions {
            way,
            ..CacheOptions::clone(&self.options)
        };
        Self {
            root: self.root.clone(),
            options: Arc::new(options),
            arrivals: Arc::clone(&self.arrivals),
        }
    }

    /// Folder of the cache.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Path of an image's file in one of the folders.
    pub(crate) fn place(&self, folder: &str, id: &ImageId) -> PathBuf {
        self.root.join(folder).join(id.to_string())
    }

    pub(crate) fn image(&self, id: &ImageId) -> PathBuf {
        image_file(&self.root.join("images"), id)
    }

    /// Images in the cache, the most recently used first.
    pub fn list(&self) -> Result<Vec<CachedImage>, ImageError> {
        let mounted = mount::mount_points().map_err(io("read the mounts of", &self.root))?;
        let folder = self.root.join("images");
        let mut images = Vec::new();
        for entry in fs::read_dir(&folder).map_err(io("list", &folder))? {
            let entry = entry.map_err(io("list", &folder))?;
            // The file may have been removed meanwhile.
            let (Some(id), Ok(found)) = (id_of(&entry.path()), entry.metadata()) else {
                continue;
            };
            let used = fs::metadata(self.place("use", &id)).or(Ok(found.clone()));
            images.push(CachedImage {
                id,
                bytes: found.len(),
                used: used
                    .and_then(|found: fs::Metadata| found.modified())
                    .unwrap_or(SystemTime::UNIX_EPOCH),
                mounted: mounted.contains(&self.place("mounts", &id)),
            });
        }
        images.sort_unstable_by(|a, b| b.used.cmp(&a.used).then(a.id.cmp(&b.id)));
        Ok(images)
    }

    /// Ensures that this image is in the cache and correct; fetches it if necessary, from neighbours or from the first
    /// store that contains it.
    ///
    /// # Errors Fails if no source has the image, or if there is no room. Fails with [`ImageError::Damaged`] if the
    /// store's bytes do not match the name.
    pub fn fetch(&self, id: &ImageId) -> Result<(), ImageError> {
        let _work = self.work(id)?;
        self.ensure(id)?;
        self.note_use(id)
    }

    /// Mounts this image, and fetches it first if necessary. Further calls share the mount. The image is unmounted when
    /// its last user drops it, or is found dead.
    ///
    /// # Errors Fails as [`Cache::fetch`] does. Also fails if the image contains a file that no image may contain, or no
    /// way of mounting works here. Does not look for the interpreter on this node; see
    /// [`MountedImage::check_interpreter`].
    pub fn mount(&self, id: &ImageId) -> Result<MountedImage, ImageError> {
        let _work = self.work(id)?;
        let at = self.place("mounts", id);
        let state = mount::state(&at).map_err(io("look for the mount", &at))?;
        if state == MountState::Dead {
            mount::unmount(&at, state).map_err(io("unmount", &at))?;
        }
        if state != MountState::Mounted {
            self.ensure(id)?;
            superblock::check(&self.image(id), &self.options.limits)?;
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&at)
                .map_err(io("make", &at))?;
            let mounted = mount::mount(id, &self.image(id), &at, self.options.way);
            mounted.map_err(|why| ImageError::CannotMount { id: *id, why })?;
        }
        let looked = self.read_checked_manifest(id, &at);
        let shared = looked.and_then(|manifest| {
            let lock = self.place("use", id);
            let shared = Lock::shared(&lock).map_err(io("lock", &lock))?;
            shared.note().map_err(io("note the use of", &lock))?;
            Ok((manifest, shared))
        });
        match shared {
            Ok((manifest, shared)) => Ok(MountedImage::new(
                self.clone(),
                *id,
                at,
                manifest,
                shared,
                state != MountState::Mounted,
            )),
            Err(error) => {
                // The image stays mounted if it has other users.
                if state != MountState::Mounted {
                    let _ = mount::unmount(&at, MountState::Mounted);
                }
                Err(error)
            }
        }
    }

    /// Reads the manifest of a mounted image, and checks that the image may be used here.
    fn read_checked_manifest(&self, id: &ImageId, at: &Path) -> Result<Manifest, ImageError> {
        let manifest = Manifest::read(at)?;
        if !self.is_checked(id) {
            check_contents(at, &manifest, &self.options.limits)?;
            self.note_checked(id);
        }
        Ok(manifest)
    }

    pub(crate) fn work(&self, id: &ImageId) -> Result<WorkLock, ImageError> {
        let path = self.place("work", id);
        let lock = Lock::exclusive(&path).map_err(io("lock", &path))?;
        Ok(self.at_work(id, lock))
    }

    /// Tries to take the lock `work` of an image. Returns `None` if another process or thread holds it.
    pub(crate) fn try_work(&self, id: &ImageId) -> Result<Option<WorkLock>, ImageError> {
        let path = self.place("work", id);
        let lock = Lock::try_exclusive(&path).map_err(io("lock", &path))?;
        Ok(lock.map(|lock| self.at_work(id, lock)))
    }

    fn at_work(&self, id: &ImageId, lock: Lock) -> WorkLock {
        WorkLock {
            file: self.place("work", id),
            image: self.image(id),
            _lock: lock,
        }
    }

    fn note_use(&self, id: &ImageId) -> Result<(), ImageError> {
        let path = self.place("use", id);
        let noted = Lock::shared(&path).and_then(|lock| lock.note());
        noted.map_err(io("note the use of", &path))
    }

    /// Unmounts an image unless it is in use. The caller must hold `work`.
    pub(crate) fn unmount_unused(&self, id: &ImageId) -> io::Result<()> {
        let at = self.place("mounts", id);
        let state = mount::state(&at)?;
        if state == MountState::Unmounted {
            return Ok(());
        }
        match Lock::try_exclusive(&self.place("use", id))? {
            Some(_lock) => mount::unmount(&at, state),
            None => Ok(()),
        }
    }

    /// Removes what dead processes have left: mounts without users, and incomplete files that are not being fetched.
    fn sweep(&self) -> Result<(), ImageError> {
        for (folder, is_mount) in [("mounts", true), ("incoming", false)] {
            let folder = self.root.join(folder);
            for entry in fs::read_dir(&folder).map_err(io("list", &folder))? {
                let name = entry.map_err(io("list", &folder))?.file_name();
                let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else {
                    continue;
                };
                let Some(_work) = self.try_work(&id)? else {
                    continue;
                };
                // A failed removal is tried again when the cache is opened next.
                let _ = match is_mount {
                    true => self.unmount_unused(&id),
                    false => fs::remove_file(folder.join(&name)),
                };
            }
        }
        Ok(())
    }
}

/// Right to fetch, mount, unmount and remove an image. If the image is not in the cache when this value is dropped, the
/// lock's file is removed, so that requests for unknown images leave no files.
pub(crate) struct WorkLock {
    file: PathBuf,
    image: PathBuf,
    _lock: Lock,
}

impl Drop for WorkLock {
    fn drop(&mut self) {
        if self.image.symlink_metadata().is_err() {
            // The file is removed while the lock is held. The next waiter sees that the file is gone, and makes a new
            // one.
            let _ = fs::remove_file(&self.file);
        }
    }
}

/// Checks the contents of a mounted image, which may have been made by another tool than `pack`.
fn check_contents(at: &Path, manifest: &Manifest, limits: &Limits) -> Result<(), ImageError> {
    let limits = Limits {
        entries: limits.entries.saturating_add(1),
        ..*limits
    };
    let survey = survey(at, &limits)?;
    let mut links = Links::of(&survey.entries);
    let interpreter = manifest.interpreter();
    for entry in &survey.entries {
        match &entry.what {
            EntryKind::File { mode, .. } if mode & 0o6000 != 0 => {
                return Err(contents_error(
                    &entry.path,
                    "it runs with the rights of another user (set-user-id)",
                ));
            }
            EntryKind::Link { target } => {
                let by = links.leaves_by(&entry.path)?;
                let is_allowed = by.is_none_or(|by| is_interpreter(by) && links.target(by) == interpreter.as_deref());
                if !is_allowed {
                    let target = target.display();
                    return Err(contents_error(
                        &entry.path,
                        format!("it is a link that leaves it (to {target})"),
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(())
}
