//! The images of a node.
//!
//! ```text
//! images/HASH.squashfs   whole and right when it appeared there (rename)
//! incoming/HASH          being fetched, by whoever has work/HASH
//! stamps/HASH            which file was found right, since which boot
//! traces/HASH            what a first run has opened, in order
//! mounts/HASH            where it is mounted
//! work/HASH              lock: fetching, mounting, unmounting, removing; held for one of these
//! use/HASH               lock: shared by all who use the mount; its time is that of the last use
//! lock                   lock: making room
//! ```
//!
//! Several processes use a cache at once, and each may die at any step. Locks are the kernel's and go with their holder;
//! whoever takes `work` next finds what was left and makes it good. They are taken in the order work, lock, use; of a second image only
//! by trying. A mount without a holder of `use` is left over: [`Cache::open`] removes such.

use crate::error::{ImageError, io};
use crate::limits::Limits;
use crate::lock::Lock;
use crate::mount::{self, State, Way};
use crate::mounted::Mounted;
use crate::neighbours::{Arrivals, Neighbours};
use crate::store::{id_of, image_file};
use crate::survey::{Links, What, contents, is_interpreter, survey};
use crate::{ImageId, Manifest, superblock};
use nix::unistd::{AccessFlags, access, geteuid};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

const FOLDERS: [&str; 7] = ["images", "incoming", "stamps", "traces", "mounts", "work", "use"];

/// What a node's cache may hold, and where its images come from.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// Bytes of all images in it. Default: 32 GiB.
    pub bytes: u64,
    /// Of each image.
    pub limits: Limits,
    /// Stores, asked in this order. Default: none.
    pub stores: Vec<PathBuf>,
    /// How images are mounted.
    pub way: Way,
    /// Other nodes, asked before the stores. Default: none.
    pub neighbours: Option<Arc<dyn Neighbours>>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            bytes: 32 << 30,
            limits: Limits::default(),
            stores: Vec::new(),
            way: Way::Any,
            neighbours: None,
        }
    }
}

/// An image in a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub id: ImageId,
    /// Its size.
    pub bytes: u64,
    /// When somebody used it last.
    pub used: SystemTime,
    /// Whether it is mounted.
    pub mounted: bool,
}

/// The images of a node, on a disk of it. Cheap to clone; any number of threads and processes may use one.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
    pub(crate) options: Arc<CacheOptions>,
    pub(crate) arrivals: Arc<Arrivals>,
}

impl Cache {
    /// In this folder, which is made if it is missing and refused if others could write to it. Removes what processes have
    /// left that died.
    ///
    /// # Errors
    /// If it cannot be made, is not ours, or is not safe.
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
        // Mounts are looked for by this path.
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

    /// The same images, those that are not mounted yet to be mounted in this way.
    pub fn with_way(&self, way: Way) -> Self {
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

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.root
    }

    pub(crate) fn of(&self, folder: &str, id: &ImageId) -> PathBuf {
        self.root.join(folder).join(id.to_string())
    }

    pub(crate) fn image(&self, id: &ImageId) -> PathBuf {
        image_file(&self.root.join("images"), id)
    }

    /// Its images, those used last first.
    pub fn list(&self) -> Result<Vec<Listed>, ImageError> {
        let mounted = mount::mount_points().map_err(io("read the mounts of", &self.root))?;
        let folder = self.root.join("images");
        let mut images = Vec::new();
        for entry in fs::read_dir(&folder).map_err(io("list", &folder))? {
            let entry = entry.map_err(io("list", &folder))?;
            // It may be removed just now.
            let (Some(id), Ok(found)) = (id_of(&entry.path()), entry.metadata()) else {
                continue;
            };
            let used = fs::metadata(self.of("use", &id)).or(Ok(found.clone()));
            images.push(Listed {
                id,
                bytes: found.len(),
                used: used
                    .and_then(|found: fs::Metadata| found.modified())
                    .unwrap_or(SystemTime::UNIX_EPOCH),
                mounted: mounted.contains(&self.of("mounts", &id)),
            });
        }
        images.sort_unstable_by(|a, b| b.used.cmp(&a.used).then(a.id.cmp(&b.id)));
        Ok(images)
    }

    /// Sees that this image is here and right: fetched from the first store that has it, unless that was done before.
    ///
    /// # Errors
    /// If no store has it, or there is no room; [`ImageError::Damaged`] if what the store has is not what the name stands for.
    pub fn fetch(&self, id: &ImageId) -> Result<(), ImageError> {
        let _work = self.work(id)?;
        self.provide(id)?;
        self.note_use(id)
    }

    /// Mounts this image, fetched first if it has to be; whoever mounts it next shares that. It is unmounted when the last of them
    /// drops it, or is found dead.
    ///
    /// # Errors
    /// As of [`Cache::fetch`]; if the image holds what none may, no way of mounting works here, or the interpreter
    /// outside that it needs is not there.
    pub fn mount(&self, id: &ImageId) -> Result<Mounted, ImageError> {
        let _work = self.work(id)?;
        let at = self.of("mounts", id);
        let state = mount::state(&at).map_err(io("look for the mount", &at))?;
        if state == State::Dead {
            mount::unmount(&at, state).map_err(io("unmount", &at))?;
        }
        if state != State::Mounted {
            self.provide(id)?;
            superblock::check(&self.image(id), &self.options.limits)?;
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&at)
                .map_err(io("make", &at))?;
            let mounted = mount::mount(id, &self.image(id), &at, self.options.way);
            mounted.map_err(|why| ImageError::CannotMount { id: *id, why })?;
        }
        let looked = self.look_at(id, &at);
        let shared = looked.and_then(|manifest| {
            let lock = self.of("use", id);
            let shared = Lock::shared(&lock).map_err(io("lock", &lock))?;
            shared.note().map_err(io("note the use of", &lock))?;
            Ok((manifest, shared))
        });
        match shared {
            Ok((manifest, shared)) => Ok(Mounted::new(
                self.clone(),
                *id,
                at,
                manifest,
                shared,
                state != State::Mounted,
            )),
            Err(error) => {
                // Unless others use it.
                if state != State::Mounted {
                    let _ = mount::unmount(&at, State::Mounted);
                }
                Err(error)
            }
        }
    }

    /// What a mounted image says of itself, when it may be used here.
    fn look_at(&self, id: &ImageId, at: &Path) -> Result<Manifest, ImageError> {
        let manifest = Manifest::read(at)?;
        if !self.is_checked(id) {
            check_contents(at, &manifest, &self.options.limits)?;
            self.note_checked(id);
        }
        if let Some(path) = manifest.interpreter() {
            let usable = access(&path, AccessFlags::X_OK).map_err(io::Error::from);
            usable.map_err(|source| ImageError::Interpreter {
                id: *id,
                path,
                source,
            })?;
        }
        Ok(manifest)
    }

    pub(crate) fn work(&self, id: &ImageId) -> Result<Work, ImageError> {
        let path = self.of("work", id);
        let lock = Lock::exclusive(&path).map_err(io("lock", &path))?;
        Ok(self.at_work(id, lock))
    }

    /// None if somebody else works on it.
    pub(crate) fn try_work(&self, id: &ImageId) -> Result<Option<Work>, ImageError> {
        let path = self.of("work", id);
        let lock = Lock::try_exclusive(&path).map_err(io("lock", &path))?;
        Ok(lock.map(|lock| self.at_work(id, lock)))
    }

    fn at_work(&self, id: &ImageId, lock: Lock) -> Work {
        Work {
            file: self.of("work", id),
            image: self.image(id),
            _lock: lock,
        }
    }

    fn note_use(&self, id: &ImageId) -> Result<(), ImageError> {
        let path = self.of("use", id);
        let noted = Lock::shared(&path).and_then(|lock| lock.note());
        noted.map_err(io("note the use of", &path))
    }

    /// Unmounts an image unless somebody uses it. To be called with `work` held.
    pub(crate) fn unmount_unused(&self, id: &ImageId) -> io::Result<()> {
        let at = self.of("mounts", id);
        let state = mount::state(&at)?;
        if state == State::Not {
            return Ok(());
        }
        match Lock::try_exclusive(&self.of("use", id))? {
            Some(_nobody) => mount::unmount(&at, state),
            None => Ok(()),
        }
    }

    /// Removes what is left of processes that died: mounts that nobody uses, files that nobody fetches.
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
                // What cannot be removed now is tried again by the next.
                let _ = match is_mount {
                    true => self.unmount_unused(&id),
                    false => fs::remove_file(folder.join(&name)),
                };
            }
        }
        Ok(())
    }
}

/// The right to fetch, mount, unmount and remove an image. Of an image that is not here nothing is left afterwards: whoever asks for
/// names that nobody has fills no folder.
pub(crate) struct Work {
    file: PathBuf,
    image: PathBuf,
    _lock: Lock,
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.image.symlink_metadata().is_err() {
            // While it is held: who waits for it sees that it is gone, and makes another.
            let _ = fs::remove_file(&self.file);
        }
    }
}

/// What somebody else's tool has made may hold more than ours puts in.
fn check_contents(at: &Path, manifest: &Manifest, limits: &Limits) -> Result<(), ImageError> {
    let limits = Limits {
        entries: limits.entries.saturating_add(1),
        ..*limits
    };
    let survey = survey(at, &limits)?;
    let links = Links::of(&survey.entries);
    let interpreter = manifest.interpreter();
    let leads: std::collections::HashMap<&Path, &Path> = survey
        .entries
        .iter()
        .filter_map(|entry| match &entry.what {
            What::Link { target } => Some((entry.path.as_path(), target.as_path())),
            _ => None,
        })
        .collect();
    for entry in &survey.entries {
        match &entry.what {
            What::File { mode, .. } if mode & 0o6000 != 0 => {
                return Err(contents(
                    &entry.path,
                    "it runs with the rights of another user (set-user-id)",
                ));
            }
            What::Link { target } => {
                let by = links.leaves_by(&entry.path);
                let is_allowed = by
                    .is_none_or(|by| is_interpreter(by) && leads.get(by).copied() == interpreter.as_deref());
                if !is_allowed {
                    let target = target.display();
                    return Err(contents(
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
