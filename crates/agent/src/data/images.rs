//! Environments that leases name: fetched into the node's cache, and mounted while any worker runs from them.
//!
//! ```text
//! lease --get--> table --none yet--> thread: fetch, check, mount --> Image --held by--> Program --> workers, spares
//!                  |                                                   |
//!                  '---- mounted, or under way: shared by all          '--last one gone--> thread: unmount
//! ```
//!
//! The file system determines how long a fetch takes. A lease waits for less time than its manager waits for the agent.
//! After that the lease is refused in a way that makes patient clients ask again, while the fetch goes on. No thread of
//! the runtime is blocked here: fetches have threads of their own, which do not delay the end of the process. When a
//! cache is opened, it removes half-fetched files, and mounts of an agent that was killed.

use crate::error::AgentError;
use hotlease_image::{
    Cache, CacheOptions, ImageError, ImageId, ImageReader, Manifest, MountMethod, MountedImage, Neighbours,
    OpenRecorder,
};
use hotlease_sandbox::{Launcher, check_named_python, is_named_python};
use hotlease_wire::Rejection;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{AccessFlags, access};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// Time for which a lease waits for an environment: a manager waits 3 s for an agent's answer.
const FETCH_WAIT: Duration = Duration::from_secs(2);
/// Largest number of environments that are fetched or mounted at a time: each has a thread that reads from the stores.
const COMING_MAX: usize = 8;

/// Stores of the environments that leases may name, and the node's cache of them.
#[derive(Debug, Clone)]
pub struct Environments {
    /// Folders of images on a file system that all nodes see, searched in this order (default: none, and leases cannot
    /// name environments).
    pub stores: Vec<PathBuf>,
    /// Folder of the node's cache: owned by the agent alone, on a local disk. Needed with `stores`; made if it is
    /// missing.
    pub cache: PathBuf,
    /// Largest number of bytes in the cache; the image that was unused for longest is removed first (default: 32 GiB).
    pub cache_bytes: u64,
    /// How to mount images for tenants other than the agent's own user (default: `Fuse`). With any other method, the
    /// kernel of a root agent reads an image that a stranger has packed.
    pub mount: MountMethod,
}

impl Default for Environments {
    fn default() -> Self {
        Self {
            stores: Vec::new(),
            cache: PathBuf::new(),
            cache_bytes: 32 << 30,
            mount: MountMethod::Fuse,
        }
    }
}

/// Result of mounting an environment; `None` while it is under way.
type MountOutcome = Option<Result<Arc<Image>, Rejection>>;

enum ImageEntry {
    /// Being fetched and mounted for this tenant. If the channel closes without an outcome, the thread has failed.
    Mounting(watch::Receiver<MountOutcome>, String),
    /// Mounted, as long as a holder exists.
    Mounted(Weak<Image>),
}

/// Party that asks for an environment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageRequester<'a> {
    /// Its tenant.
    pub tenant: &'a str,
    /// Whether its tenant is the agent's own user.
    pub is_own: bool,
}

/// The node's environments: its cache, and the mounted images.
pub(crate) struct Images {
    /// Cache of images; `None` if no store is configured.
    cache: Option<Cache>,
    /// How to mount images for tenants other than the agent's own user.
    of_others: MountMethod,
    launcher: Launcher,
    wait: Duration,
    table: Mutex<HashMap<ImageId, ImageEntry>>,
    mounted: watch::Sender<usize>,
}

impl Images {
    /// Opens the cache, and removes what an earlier agent left there.
    pub async fn open(
        config: &Environments,
        launcher: Launcher,
        others: Option<Arc<dyn Neighbours>>,
    ) -> Result<Self, AgentError> {
        let cache = match config.stores.is_empty() {
            true => None,
            false => {
                let (root, options) = (config.cache.clone(), options(config, others));
                let opened = tokio::task::spawn_blocking(move || Cache::open(&root, options)).await;
                let opened = opened.map_err(|error| error.to_string());
                let opened = opened.and_then(|opened| opened.map_err(|error| error.to_string()));
                Some(opened.map_err(|why| AgentError::Config {
                    what: format!("the cache of environments: {why}"),
                })?)
            }
        };
        Ok(Self {
            cache,
            of_others: config.mount,
            launcher,
            wait: FETCH_WAIT,
            table: Mutex::default(),
            mounted: watch::Sender::new(0),
        })
    }

    fn table(&self) -> MutexGuard<'_, HashMap<ImageId, ImageEntry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the environment of this name, mounted. Waits for it, but only for a limited time.
    pub async fn get(self: &Arc<Self>, name: &str, asker: ImageRequester<'_>) -> Result<Arc<Image>, Rejection> {
        let id: ImageId = name
            .parse()
            .map_err(|error: hotlease_image::ImageIdError| Rejection::BadRequest {
                what: error.to_string(),
            })?;
        let mut coming = match self.find(id, asker)? {
            FoundImage::Mounted(image) => return Ok(image),
            FoundImage::Mounting(coming) => coming,
        };
        match timeout(self.wait, coming.wait_for(Option::is_some)).await {
            Ok(Ok(outcome)) => outcome.clone().unwrap_or_else(|| Err(not_now(&id))),
            Ok(Err(_)) => Err(Rejection::Unavailable {
                what: format!("fetching environment {id} failed inside the agent"),
            }),
            Err(_) => Err(not_now(&id)),
        }
    }

    fn find(self: &Arc<Self>, id: ImageId, asker: ImageRequester<'_>) -> Result<FoundImage, Rejection> {
        let Some(cache) = &self.cache else {
            return Err(Rejection::NoEnvironment {
                environment: id.to_string(),
                why: format!(
                    "{id} is not looked for, because this node has no store of environments; its operator names one with \
                     `hotlease agent --environments DIR`"
                ),
            });
        };
        let mut table = self.table();
        table.retain(|_, entry| match entry {
            ImageEntry::Mounting(coming, _) => coming.has_changed().is_ok(),
            ImageEntry::Mounted(image) => image.strong_count() > 0,
        });
        match table.get(&id) {
            Some(ImageEntry::Mounting(coming, _)) => return Ok(FoundImage::Mounting(coming.clone())),
            Some(ImageEntry::Mounted(image)) => {
                if let Some(image) = image.upgrade() {
                    return Ok(FoundImage::Mounted(image));
                }
            }
            None => {}
        }
        check_place(&table, asker)?;
        let way = if asker.is_own { MountMethod::Any } else { self.of_others };
        let (told, coming) = watch::channel(None);
        let (images, cache) = (Arc::clone(self), cache.with_method(way));
        let started = std::thread::Builder::new()
            .name("environment".into())
            .spawn(move || images.fetch_and_mount(&cache, id, way, &told));
        started.map_err(|error| Rejection::Unavailable {
            what: format!("a thread to fetch environment {id}: {error}"),
        })?;
        table.insert(id, ImageEntry::Mounting(coming.clone(), asker.tenant.to_owned()));
        Ok(FoundImage::Mounting(coming))
    }

    /// Fetches and mounts an environment, however long that takes.
    fn fetch_and_mount(
        self: Arc<Self>,
        cache: &Cache,
        id: ImageId,
        way: MountMethod,
        told: &watch::Sender<MountOutcome>,
    ) {
        let mounted = cache.mount(&id);
        let outcome = match mounted {
            Ok(mounted) => Ok(Arc::new(self.image(mounted))),
            Err(error) => {
                tracing::debug!(environment = %id, %error, "an environment cannot be used");
                Err(refusal(&id, &error, way))
            }
        };
        let mut table = self.table();
        match &outcome {
            Ok(image) => drop(table.insert(id, ImageEntry::Mounted(Arc::downgrade(image)))),
            Err(_) => drop(table.remove(&id)),
        }
        drop(table);
        told.send_replace(Some(outcome));
    }

    fn image(&self, mounted: MountedImage) -> Image {
        // If the probe fails, the mount is considered unseen.
        let is_seen = mounted.probe_shared().unwrap_or(false);
        if !is_seen {
            self.launcher.renew_mounts();
        }
        tracing::debug!(?mounted, "environment mounted");
        Image {
            id: mounted.id(),
            at: mounted.path().to_owned(),
            manifest: mounted.manifest().clone(),
            unmounting: Some(MountRelease {
                // Only the first lease of an image on a node is recorded. Later leases read ahead the files that the
                // first lease opened.
                recorder: mounted.record(),
                mounted: Some(mounted),
                unseen_by: (!is_seen).then(|| self.launcher.clone()),
                _count: MountCount::new(&self.mounted),
            }),
        }
    }

    /// Opens an image that is in the cache or is being fetched; returns `None` if it is neither. Blocks.
    pub fn read(&self, id: &ImageId) -> Result<Option<ImageReader>, ImageError> {
        match &self.cache {
            Some(cache) => cache.read(id),
            None => Ok(None),
        }
    }

    /// Waits until no image is mounted.
    pub async fn all_unmounted(&self) {
        // Cannot fail: self has the sender.
        let _ = self.mounted.subscribe().wait_for(|mounted| *mounted == 0).await;
    }
}

/// Refuses a fetch if no place is free, or if the tenant has at least as many places as are free. So a few tenants that
/// collude cannot take all places.
fn check_place(table: &HashMap<ImageId, ImageEntry>, asker: ImageRequester<'_>) -> Result<(), Rejection> {
    let tenants = table.values().filter_map(|entry| match entry {
        ImageEntry::Mounting(_, tenant) => Some(tenant.as_str()),
        ImageEntry::Mounted(_) => None,
    });
    let free = COMING_MAX.saturating_sub(tenants.clone().count());
    let own = tenants.filter(|tenant| *tenant == asker.tenant).count();
    let (what, limit) = match free {
        0 => ("environments that this node fetches at a time", COMING_MAX),
        _ if !asker.is_own && own >= free => ("environments that this node fetches for one tenant now", own),
        _ => return Ok(()),
    };
    Err(Rejection::TooMany {
        what: what.into(),
        limit: limit as u64,
    })
}

enum FoundImage {
    Mounted(Arc<Image>),
    Mounting(watch::Receiver<MountOutcome>),
}

fn options(config: &Environments, others: Option<Arc<dyn Neighbours>>) -> CacheOptions {
    CacheOptions {
        neighbours: others,
        bytes: config.cache_bytes,
        stores: config.stores.clone(),
        ..CacheOptions::default()
    }
}

/// The refusal for an environment that is still being fetched: asking again helps.
fn not_now(id: &ImageId) -> Rejection {
    Rejection::Unavailable {
        what: format!(
            "environment {id} is still being fetched to this node; ask again, or with more patience \
             (`LeaseOptions::patience`, Python: ExecutorOptions(patience=)): it goes on"
        ),
    }
}

/// The refusal with advice for the tenant, or for the node's operator.
fn refusal(id: &ImageId, error: &ImageError, way: MountMethod) -> Rejection {
    let why = match error {
        ImageError::Unknown { looked, .. } => {
            let stores: Vec<_> = looked.iter().map(|store| store.display().to_string()).collect();
            format!(
                "{id} is not in this node's stores ({}); `hotlease env pack DIR --to STORE` puts it into one, and \
                 `hotlease agent --environments DIR` names more",
                stores.join(", ")
            )
        }
        ImageError::NoRoom { .. } => {
            format!("{error}; its operator gives it more with `hotlease agent --environment-cache-bytes`")
        }
        ImageError::Damaged { .. } => {
            format!("{error}; pack it again, or remove that file (`hotlease env verify` finds such)")
        }
        ImageError::CannotMount { .. } if way == MountMethod::Fuse => format!(
            "{error}; its operator installs squashfuse, or lets the kernel mount images of all tenants with \
             `hotlease agent --environment-mount any`"
        ),
        other => other.to_string(),
    };
    Rejection::NoEnvironment {
        environment: id.to_string(),
        why,
    }
}

/// An environment that is mounted. When it is dropped, it is unmounted a moment later, on another thread.
pub(crate) struct Image {
    id: ImageId,
    at: PathBuf,
    manifest: Manifest,
    unmounting: Option<MountRelease>,
}

impl Image {
    /// Path on the host.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Manifest of the image.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Refuses an image that lacks this program, or whose interpreter on the host does not pass `interpreter`. Reads
    /// files of the image, and of the host as far as `interpreter` says, so it must not run on a thread of the runtime.
    pub fn check(&self, program: &Path, interpreter: InterpreterCheck) -> Result<(), Rejection> {
        let refusal = |why| Rejection::NoEnvironment {
            environment: self.id.to_string(),
            why,
        };
        let named = self.manifest.interpreter();
        let has = image_file(&self.at, program).map_err(|error| refusal(format!("looking into it failed: {error}")))?;
        // A link that leaves an image leads to its interpreter: this was checked when the image was mounted.
        if !(has == ImageFile::Inside || has == ImageFile::Outside && named.is_some()) {
            return Err(refusal(format!(
                "{} has no {}; pack a virtual environment or a conda prefix, in which hotlease is installed",
                self.id,
                program.display()
            )));
        }
        let Some(named) = named else { return Ok(()) };
        match interpreter {
            InterpreterCheck::None => Ok(()),
            InterpreterCheck::Exists if is_python(&named) => Ok(()),
            InterpreterCheck::Exists => Err(refusal(no_python(&self.id, &named))),
            InterpreterCheck::Trusted => check_named_python(&named).map_err(|error| {
                refusal(format!(
                    "{} names {} as its interpreter, and a sandbox shows only the folders of Pythons that only root \
                     and this agent's user can change: {error}; show the folder with `hotlease agent --sandbox-show`, or \
                     make the environment with another Python",
                    self.id,
                    named.display()
                ))
            }),
        }
    }

    /// Environment variables that the image's programs need if they see the image at the path `at`.
    pub fn environment(&self, at: &Path, path: Option<OsString>) -> Vec<(&'static str, OsString)> {
        let mounted = self.unmounting.as_ref().and_then(|own| own.mounted.as_ref());
        mounted
            .map(|mounted| mounted.environment_at(at, path))
            .unwrap_or_default()
    }
}

/// The refusal for an interpreter that does not exist, or that is no Python. The text is the same in both cases,
/// because the author of an image could otherwise find out which files the host has.
fn no_python(id: &ImageId, interpreter: &Path) -> String {
    format!(
        "{id} names {} as its interpreter, and no Python is there; make the environment with one that all nodes have at \
         this path",
        interpreter.display()
    )
}

/// Whether the path is a Python of the host. The author of an image names the path.
fn is_python(path: &Path) -> bool {
    is_named_python(path) && path.is_file() && access(path, AccessFlags::X_OK).is_ok()
}

/// Check of the interpreter of the host that an image names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterpreterCheck {
    /// Files of the host are not looked at.
    None,
    /// The interpreter must exist.
    Exists,
    /// The sandbox shows the folders around the interpreter, so these must be a Python's
    /// ([`check_named_python`]).
    Trusted,
}

/// Place of a file that is looked up in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImageFile {
    Inside,
    /// A link leads out of the image.
    Outside,
    Missing,
}

/// Looks for the file at `path` in the image that is mounted at `image`, without following a link out of it.
fn image_file(image: &Path, path: &Path) -> io::Result<ImageFile> {
    let folder = open(
        image,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    match openat2(&folder, path, how) {
        Ok(file) if fstat(&file)?.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits() => Ok(ImageFile::Inside),
        Err(Errno::EXDEV) => Ok(ImageFile::Outside),
        Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(ImageFile::Missing),
        Err(error) => Err(error.into()),
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Some(unmounting) = self.unmounting.take() {
            // If no thread can be started, `unmounting` is dropped here, with the closure.
            let _ = std::thread::Builder::new()
                .name("unmount".into())
                .spawn(move || drop(unmounting));
        }
    }
}

/// Steps of unmounting.
struct MountRelease {
    /// Must end before the mount.
    recorder: Option<OpenRecorder>,
    mounted: Option<MountedImage>,
    /// Launcher whose nurseries must look at the mounts again, if the mount does not propagate to them.
    unseen_by: Option<Launcher>,
    /// Must stay the last field, so that the count falls only after the unmount.
    _count: MountCount,
}

impl Drop for MountRelease {
    fn drop(&mut self) {
        // The recorder has files open, and a mount with open files cannot be unmounted.
        drop(self.recorder.take());
        if let Some(mounted) = self.mounted.take() {
            tracing::debug!(?mounted, "environment unmounted");
        }
        // Nurseries that still have the mount would keep the image's file in use.
        if let Some(launcher) = &self.unseen_by {
            launcher.renew_mounts();
        }
    }
}

/// Counts one mount for as long as it exists.
struct MountCount(watch::Sender<usize>);

impl MountCount {
    fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for MountCount {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests;
