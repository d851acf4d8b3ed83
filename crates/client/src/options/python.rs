//! Leases whose workers are Python interpreters.

use crate::Error;
use hotlease_wire::grpc::PythonRuntime;
use hotlease_wire::python::encode_path;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The Python of a lease's workers. If an interpreter does not match the versions, its worker does not start: the
/// lease is refused with both versions named, and nothing was run.
///
/// Put no secrets into the environment and the import path: every process of the tenant on the workers' host can
/// read them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Python {
    /// The interpreter, an absolute path on the workers' host; the package must be installed there, too. With an
    /// image: the path in the image, such as `bin/python`.
    pub interpreter: PathBuf,
    /// An image that `hotlease env pack` has made, by its hash: the agent fetches and mounts it, and workers run
    /// from it. Then the workers' host needs nothing beyond what the image states. Default: none.
    pub image: Option<String>,
    /// Environment beyond what workers inherit in any case (`PATH`, `HOME`, `LANG` and a few more of the agent's).
    pub environment: BTreeMap<String, String>,
    /// Import path of the program. It precedes the interpreter's import path, but follows the import path of an image.
    pub path: Vec<PathBuf>,
    /// Working directory of functions; `/` if the workers' host has no such folder.
    pub directory: PathBuf,
    /// The client's version of Python, like `3.11.7`: the first two numbers must match the workers'.
    pub version: String,
    /// The client's version of this package.
    pub hotlease: String,
    /// The client's version of cloudpickle; empty if it is not checked.
    pub cloudpickle: String,
}

impl Python {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let fail = |what: String| Err(Error::Options { what });
        if self.interpreter.is_absolute() == self.image.is_some() {
            return fail(
                "python.interpreter must be an absolute path; with python.image, a path relative to the image".into(),
            );
        }
        Ok(())
    }

    pub(crate) fn request(&self) -> PythonRuntime {
        PythonRuntime {
            interpreter: encode_path(self.interpreter.as_os_str()),
            environment: self.environment.clone().into_iter().collect(),
            path: self.path.iter().map(|folder| encode_path(folder.as_os_str())).collect(),
            directory: encode_path(self.directory.as_os_str()),
            python: self.version.clone(),
            hotlease: self.hotlease.clone(),
            cloudpickle: self.cloudpickle.clone(),
            image: self.image.clone().unwrap_or_default(),
        }
    }
}
