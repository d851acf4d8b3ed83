//! A site's choice of containers: an installed runtime, and an image that it accepts.

use hotlease_nursery::container::{ContainerConfig, Runtime};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Folders with programs that are searched in addition to the folders of `PATH`: an agent may have been started with a
/// short `PATH`.
const FOLDERS: [&str; 6] = [
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/bin",
    "/usr/sbin",
    "/bin",
    "/sbin",
];

/// Container runtime of a site, and the image of its containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Name of a program in `PATH`, or path of a program: `crun`, `ch-run`, `apptainer`, `singularity` or `podman-hpc`
    /// (default: `crun`).
    pub runtime: OsString,
    /// Image: a folder, a file in the runtime's own format, or for `podman-hpc` a name. `None` (the default) stands for
    /// the host's system folders, read-only; only `crun` and `ch-run` can use them.
    pub image: Option<PathBuf>,
}

impl Default for Container {
    fn default() -> Self {
        Self {
            runtime: Runtime::ALL[0].name().into(),
            image: None,
        }
    }
}

impl Container {
    /// Whether code of users who do not trust each other may run in these containers.
    pub fn confines(&self) -> bool {
        Runtime::of(Path::new(&self.runtime)).is_some_and(Runtime::is_confining)
    }

    /// Finds program and image for the nursery. The error says what is missing, and what to do about it.
    pub(crate) fn resolve(&self) -> Result<ContainerConfig, String> {
        let named = Path::new(&self.runtime);
        let Some(runtime) = Runtime::of(named) else {
            let known = Runtime::ALL.map(Runtime::name).join(", ");
            return Err(format!(
                "{} is no container runtime that is known here: name one of {known}, or a path that ends with such a name",
                named.display()
            ));
        };
        let program = find(named).ok_or_else(|| {
            let advice = match runtime.package() {
                Some(package) => format!("install it (Debian: apt-get install {package})"),
                None => "install it".to_owned(),
            };
            format!(
                "the container runtime {} is not there, or no program: {advice}, or name another by --sandbox-container",
                named.display()
            )
        })?;
        let image = match &self.image {
            None if runtime.is_bare() => None,
            None => {
                return Err(format!(
                    "{} makes containers of an image: name one by --sandbox-image",
                    runtime.name()
                ));
            }
            // A name that the runtime resolves.
            Some(image) if runtime == Runtime::PodmanHpc => Some(image.clone()),
            Some(image) => Some(found_image(runtime, image)?),
        };
        Ok(ContainerConfig {
            runtime,
            program: program.into(),
            image: image.map(PathBuf::into_os_string),
        })
    }
}

fn found_image(runtime: Runtime, image: &Path) -> Result<PathBuf, String> {
    let found = image
        .canonicalize()
        .map_err(|error| format!("the image {} cannot be read: {error}", image.display()))?;
    match runtime.is_bare() && !found.is_dir() {
        true => Err(format!(
            "the image {} is no folder, of which {} makes containers here: unpack it into one",
            image.display(),
            runtime.name()
        )),
        false => Ok(found),
    }
}

/// Finds a program by its name or path; returns an absolute path.
pub(crate) fn find(named: &Path) -> Option<PathBuf> {
    let can_run = |path: &PathBuf| {
        let found = path.metadata();
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if named.components().count() > 1 {
        return std::path::absolute(named).ok().filter(can_run);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    folders
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(named))
        .find(can_run)
}

#[cfg(test)]
mod tests;
