//! What can go wrong with an image.

use crate::ImageId;
use std::io;
use std::path::{Path, PathBuf};

/// Why there is no image, or no mount of one.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A program that this needs is not installed.
    #[error("`{program}` is needed and not found here; install the package {package} ({source})")]
    Tool {
        /// Which.
        program: &'static str,
        /// What it comes with, as Debian calls it.
        package: &'static str,
        /// Why it could not be started.
        source: io::Error,
    },
    /// Such a program failed.
    #[error("`{program}` failed: {said}")]
    ToolFailed {
        /// Which.
        program: &'static str,
        /// The last that it said, or how it ended.
        said: String,
    },
    /// Something that no image may hold.
    #[error("{} cannot be in an environment: {why}", path.display())]
    Contents {
        /// What, below the root of the tree.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// More than an image may have.
    #[error("{what}: {found}; at most {most} are allowed here")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How much there is, at least.
        found: u64,
        /// How much there may be.
        most: u64,
    },
    /// The bytes are not those that the name stands for.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// How that shows.
        why: String,
    },
    /// Nobody here has it.
    #[error(
        "environment {id} is neither in the cache of this node nor in {}; `hotlease env pack DIR --to STORE` puts it there, --store or HOTLEASE_ENV_STORE says where to look",
        places(looked)
    )]
    Unknown {
        /// Which.
        id: ImageId,
        /// The stores that were asked.
        looked: Vec<PathBuf>,
    },
    /// The cache is full of what is in use.
    #[error("environment {id} of {needed} bytes has no room in the cache {}, which may hold {most} bytes, of which {used} are in use", path.display())]
    NoRoom {
        /// Which.
        id: ImageId,
        /// Its size.
        needed: u64,
        /// What cannot be removed now.
        used: u64,
        /// The cache's bound.
        most: u64,
        /// The cache.
        path: PathBuf,
    },
    /// No way of mounting works here.
    #[error("environment {id} cannot be mounted here: {why}")]
    CannotMount {
        /// Which.
        id: ImageId,
        /// What was tried, and why it failed.
        why: String,
    },
    /// The Python that the environment was made with is not on this node.
    #[error("environment {id} needs the Python interpreter {}, which this node does not have ({source}); install it there, or pack an environment that brings its own (conda)", path.display())]
    Interpreter {
        /// Which environment.
        id: ImageId,
        /// Where the interpreter would be.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// A folder that others could change.
    #[error("the folder {} is not safe: {why}", path.display())]
    Unsafe {
        /// Which.
        path: PathBuf,
        /// Why.
        why: &'static str,
    },
    /// The system refused something.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl ImageError {
    /// Whether it is the fault of where the image comes from, so that another place may help.
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

/// For `map_err`.
pub(crate) fn io<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> ImageError + 'a {
    move |source| ImageError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}
