//! An image that is mounted, for as long as somebody needs it.

use crate::ImageId;
use crate::cache::Cache;
use crate::error::{ImageError, io};
use crate::lock::Lock;
use crate::manifest::{Manifest, TreeKind};
use crate::mount;
use crate::trace::{Prefetch, Recorder};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// A mounted image. Dropped, it is unmounted, unless others use it too.
pub struct Mounted {
    cache: Cache,
    id: ImageId,
    at: PathBuf,
    manifest: Manifest,
    /// None only while it is dropped.
    shared: Option<Lock>,
    /// What has files of the image open; ended before it is unmounted.
    prefetch: Option<Prefetch>,
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mounted({} at {})", self.id, self.at.display())
    }
}

impl Mounted {
    pub(crate) fn new(
        cache: Cache,
        id: ImageId,
        at: PathBuf,
        manifest: Manifest,
        shared: Lock,
        is_first: bool,
    ) -> Self {
        let prefetch = is_first.then(|| Prefetch::start(&cache.image(&id), &cache.of("traces", &id), &at));
        Self {
            cache,
            id,
            at,
            manifest,
            shared: Some(shared),
            prefetch,
        }
    }

    /// Which image.
    pub fn id(&self) -> ImageId {
        self.id
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// What it says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Processes that this one starts from now on keep the image mounted, also when this one is killed.
    pub fn let_children_keep_it(&self) -> Result<(), ImageError> {
        match &self.shared {
            Some(lock) => lock.inherit().map_err(io("share the use of", &self.at)),
            None => Ok(()),
        }
    }

    /// Writes down which files are opened from now on and in which order, here and in sandboxes that see the image where it was made, for
    /// whoever mounts it next: until the result is dropped, for a minute at most. None where that is known already, or where only root could.
    pub fn record(&self) -> Option<Recorder> {
        let trace = self.cache.of("traces", &self.id);
        if trace.exists() {
            return None;
        }
        Recorder::start([self.at.clone(), self.manifest.prefix()], trace)
    }

    /// Whether other namespaces of mounts, which were made before it was mounted, see it: those that were made as a slave of
    /// this process's, where the machine shares mounts. Containers mostly do not.
    pub fn is_seen_elsewhere(&self) -> Result<bool, ImageError> {
        mount::is_shared(&self.at).map_err(io("look for the mount", &self.at))
    }

    /// What a process needs in its environment to run programs of the image from here: `path` is its PATH so far.
    pub fn environment(&self, path: Option<OsString>) -> Vec<(&'static str, OsString)> {
        self.environment_at(&self.at, path)
    }

    /// The same, where processes see the image at another place.
    pub fn environment_at(&self, at: &Path, path: Option<OsString>) -> Vec<(&'static str, OsString)> {
        let mut search = OsString::from(at.join("bin"));
        if let Some(path) = path.filter(|path| !path.is_empty()) {
            search.push(":");
            search.push(path);
        }
        let mut variables = vec![("PATH", search)];
        match self.manifest.kind() {
            TreeKind::Venv => variables.push(("VIRTUAL_ENV", at.into())),
            TreeKind::Conda => variables.push(("CONDA_PREFIX", at.into())),
            TreeKind::Directory => {}
        }
        variables
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.prefetch.take());
        let work = self.cache.work(&self.id);
        drop(self.shared.take());
        // What cannot be unmounted now is by whoever opens the cache next.
        if work.is_ok() {
            let _ = self.cache.unmount_unused(&self.id);
        }
    }
}
