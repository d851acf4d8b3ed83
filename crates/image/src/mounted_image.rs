//! Image that stays mounted as long as it is needed.

use crate::ImageId;
use crate::cache::Cache;
use crate::error::{ImageError, io};
use crate::lock::Lock;
use crate::manifest::{Manifest, TreeKind};
use crate::mount;
use crate::trace::{OpenRecorder, Prefetch};
use nix::unistd::{AccessFlags, access};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// A mounted image. When the value is dropped, the image is unmounted, unless it has other users.
pub struct MountedImage {
    cache: Cache,
    id: ImageId,
    at: PathBuf,
    manifest: Manifest,
    /// `None` only while this value is being dropped.
    shared: Option<Lock>,
    /// Prefetch of the image's files; stopped before the image is unmounted.
    prefetch: Option<Prefetch>,
}

impl fmt::Debug for MountedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mounted({} at {})", self.id, self.at.display())
    }
}

impl MountedImage {
    pub(crate) fn new(
        cache: Cache,
        id: ImageId,
        at: PathBuf,
        manifest: Manifest,
        shared: Lock,
        is_first: bool,
    ) -> Self {
        let prefetch = is_first.then(|| Prefetch::start(&cache.image(&id), &cache.place("traces", &id), &at));
        Self {
            cache,
            id,
            at,
            manifest,
            shared: Some(shared),
            prefetch,
        }
    }

    /// Name of the image.
    pub fn id(&self) -> ImageId {
        self.id
    }

    /// Mount point.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Metadata of the image.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Checks that this node has the interpreter that the image needs.
    ///
    /// # Errors
    /// Fails with [`ImageError::Interpreter`] if the interpreter cannot be executed.
    pub fn check_interpreter(&self) -> Result<(), ImageError> {
        let Some(path) = self.manifest.interpreter() else {
            return Ok(());
        };
        access(&path, AccessFlags::X_OK).map_err(|error| ImageError::Interpreter {
            id: self.id,
            path,
            source: error.into(),
        })
    }

    /// Lets processes that are started from now on keep the image mounted, even after this process is killed.
    pub fn share_with_children(&self) -> Result<(), ImageError> {
        match &self.shared {
            Some(lock) => lock.inherit().map_err(io("share the use of", &self.at)),
            None => Ok(()),
        }
    }

    /// Records which files are opened from now on, and in which order, for the next process that mounts the image.
    /// Covers this namespace, and sandboxes that see the image at its original path. Ends when the result is dropped,
    /// after a minute at most. Returns `None` if a trace exists already, or if the process is not root.
    pub fn record(&self) -> Option<OpenRecorder> {
        let trace = self.cache.place("traces", &self.id);
        if trace.exists() {
            return None;
        }
        OpenRecorder::start([self.at.clone(), self.manifest.prefix()], trace)
    }

    /// Whether mount namespaces that were made before the image was mounted see it. They do if they were made as slaves
    /// of this process's namespace and the node shares mounts; in containers mounts are usually not shared.
    pub fn probe_shared(&self) -> Result<bool, ImageError> {
        mount::probe_shared(&self.at).map_err(io("look for the mount", &self.at))
    }

    /// Environment variables with which processes run programs of the image from its mount point. `path`: their PATH
    /// so far.
    pub fn environment(&self, path: Option<OsString>) -> Vec<(&'static str, OsString)> {
        self.environment_at(&self.at, path)
    }

    /// Environment variables as of [`MountedImage::environment`], for processes that see the image at another path.
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

impl Drop for MountedImage {
    fn drop(&mut self) {
        drop(self.prefetch.take());
        let work = self.cache.work(&self.id);
        drop(self.shared.take());
        // A mount that cannot be unmounted now is removed when the cache is opened next.
        if work.is_ok() {
            let _ = self.cache.unmount_unused(&self.id);
        }
    }
}
