//! Errors of images.

use crate::ImageId;
use std::io;
use std::path::{Path, PathBuf};

/// Error of packing, fetching or mounting an image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A program that is needed is not installed.
    #[error("`{program}` is needed and not found here; install the package {package} ({source})")]
    Tool {
        /// Name of the program.
        program: &'static str,
        /// Debian package that contains it.
        package: &'static str,
        /// Error of starting it.
        source: io::Error,
    },
    /// A program failed.
    #[error("`{program}` failed: {said}")]
    ToolFailed {
        /// Name of the program.
        program: &'static str,
        /// Last output of the program, or its exit status.
        said: String,
    },
    /// The tree or image contains something that no image may contain.
    #[error("{} cannot be in an environment: {why}", path.display())]
    Contents {
        /// Path below the root of the tree.
        path: PathBuf,
        /// Reason for the refusal.
        why: String,
    },
    /// A limit of images is exceeded.
    #[error("{what}: {found}; at most {most} are allowed here")]
    Limit {
        /// Quantity that is limited.
        what: &'static str,
        /// Amount that was found when the search stopped.
        found: u64,
        /// The limit.
        most: u64,
    },
    /// The bytes do not match the image's name.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// Path of the file, or description of the sender.
        path: PathBuf,
        /// How the damage was noticed.
        why: String,
    },
    /// No source has the image.
    #[error(
        "environment {id} is neither in the cache of this node nor in {}; `hotlease env pack DIR --to STORE` puts it there, --store or HOTLEASE_ENV_STORE says where to look",
        places(looked)
    )]
    Unknown {
        /// Name of the image.
        id: ImageId,
        /// Stores that were asked.
        looked: Vec<PathBuf>,
    },
    /// The cache is full of images that cannot be removed now.
    #[error("environment {id} of {needed} bytes has no room in the cache {}, which may hold {most} bytes, of which {used} are in use", path.display())]
    NoRoom {
        /// Name of the image.
        id: ImageId,
        /// Size of the image, bytes.
        needed: u64,
        /// Bytes that cannot be removed now.
        used: u64,
        /// Limit of the cache, bytes.
        most: u64,
        /// Folder of the cache.
        path: PathBuf,
    },
    /// No way of mounting works on this node.
    #[error("environment {id} cannot be mounted here: {why}")]
    CannotMount {
        /// Name of the image.
        id: ImageId,
        /// Ways that were tried, with their errors.
        why: String,
    },
    /// The Python interpreter that the environment needs is not on this node.
    #[error("environment {id} needs the Python interpreter {}, which this node does not have ({source}); install it there, or pack an environment that brings its own (conda)", path.display())]
    Interpreter {
        /// Name of the image.
        id: ImageId,
        /// Path of the interpreter.
        path: PathBuf,
        /// Error of accessing it.
        source: io::Error,
    },
    /// Other users could change the folder.
    #[error("the folder {} is not safe: {why}", path.display())]
    Unsafe {
        /// Path of the folder.
        path: PathBuf,
        /// Reason for the refusal.
        why: &'static str,
    },
    /// A system call failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// Operation that failed.
        what: &'static str,
        /// Path on which the operation failed.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl ImageError {
    /// Whether the error is a fault of the source `from`, so that another source may help.
    pub(crate) fn is_of(&self, from: &Path) -> bool {
        match self {
            Self::Damaged { path, .. } | Self::Io { path, .. } => path == from,
            Self::Limit { .. } => true,
            _ => false,
        }
    }
}

fn places(looked: &[PathBuf]) -> String {
    match looked {
        [] => "any store (none is named)".into(),
        some => {
            let names: Vec<_> = some.iter().map(|path| path.display().to_string()).collect();
            format!("the store {}", names.join(", "))
        }
    }
}

/// Wraps a system error; for `map_err`.
pub(crate) fn io<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> ImageError + 'a {
    move |source| ImageError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}
