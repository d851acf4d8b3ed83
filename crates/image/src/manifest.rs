//! Metadata in an image.

use crate::error::{ImageError, io};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// Name of the manifest's file, at the root of the image.
pub const MANIFEST_FILE: &str = ".hotlease-environment.json";
/// Longest manifest that is read, bytes.
const BYTES_MAX: u64 = 64 * 1024;
/// Format of manifests that are written now.
const FORMAT: u32 = 1;

/// Kind of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TreeKind {
    /// A virtual environment: its interpreter is outside of the tree.
    Venv,
    /// A conda prefix: its interpreter is in the tree.
    Conda,
    /// Anything else.
    Directory,
}

impl TreeKind {
    /// Finds the kind by the files that mark it.
    pub(crate) fn of(root: &Path) -> Self {
        if root.join("pyvenv.cfg").is_file() {
            Self::Venv
        } else if root.join("conda-meta").is_dir() {
            Self::Conda
        } else {
            Self::Directory
        }
    }
}

/// A path as JSON: text, or bytes if it is not valid text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum PathText {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<&Path> for PathText {
    fn from(path: &Path) -> Self {
        match path.to_str() {
            Some(text) => Self::Text(text.into()),
            None => Self::Bytes(path.as_os_str().as_bytes().into()),
        }
    }
}

impl PathText {
    fn path(&self) -> PathBuf {
        match self {
            Self::Text(text) => text.into(),
            Self::Bytes(bytes) => OsString::from_vec(bytes.clone()).into(),
        }
    }
}

/// Metadata of an image: a file at its root, which the image's hash covers like all other files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: u32,
    kind: TreeKind,
    prefix: PathText,
    #[serde(default)]
    interpreter: Option<PathText>,
}

impl Manifest {
    pub(crate) fn new(kind: TreeKind, prefix: &Path, interpreter: Option<&Path>) -> Self {
        Self {
            format: FORMAT,
            kind,
            prefix: prefix.into(),
            interpreter: interpreter.map(PathText::from),
        }
    }

    /// Kind of the packed tree.
    pub fn kind(&self) -> TreeKind {
        self.kind
    }

    /// Path of the tree when it was packed. The tree's scripts expect the tree at this path.
    pub fn prefix(&self) -> PathBuf {
        self.prefix.path()
    }

    /// Path of the Python interpreter that a virtual environment needs. It must be on the node.
    pub fn interpreter(&self) -> Option<PathBuf> {
        self.interpreter.as_ref().map(PathText::path)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        // Serialising cannot fail: there are no maps and no floats.
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Reads the manifest of a mounted image.
    pub(crate) fn read(root: &Path) -> Result<Self, ImageError> {
        let path = root.join(MANIFEST_FILE);
        let wrong = |why: String| ImageError::Contents {
            path: MANIFEST_FILE.into(),
            why,
        };
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => {}
            _ => {
                return Err(wrong(
                    "it is missing, so `hotlease env pack` has not made this image".into(),
                ));
            }
        }
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(io("open", &path))?;
        file.take(BYTES_MAX)
            .read_to_end(&mut bytes)
            .map_err(io("read", &path))?;
        let manifest: Self =
            serde_json::from_slice(&bytes).map_err(|error| wrong(format!("it is not understood: {error}")))?;
        if manifest.format != FORMAT {
            let format = manifest.format;
            return Err(wrong(format!(
                "it has format {format}, and this hotlease knows {FORMAT}; install the same hotlease everywhere"
            )));
        }
        for path in [Some(manifest.prefix()), manifest.interpreter()].into_iter().flatten() {
            let climbs = path.components().any(|part| part == Component::ParentDir);
            if !path.is_absolute() || climbs || path.as_os_str().as_bytes().contains(&0) {
                return Err(wrong(
                    "it names a path that is not absolute, or has `..` or a NUL byte in it".into(),
                ));
            }
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_any_bytes_survive() {
        let odd = PathBuf::from(OsString::from_vec(b"/a\xff\n/b".to_vec()));
        let manifest = Manifest::new(TreeKind::Venv, &odd, Some(Path::new("/usr/bin/python3")));
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(MANIFEST_FILE), manifest.bytes()).unwrap();
        let read = Manifest::read(dir.path()).unwrap();
        assert_eq!(read, manifest);
        assert_eq!(read.prefix(), odd);
    }

    #[test]
    fn a_malformed_or_missing_manifest_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Manifest::read(dir.path()).is_err(), "it is missing");
        let file = dir.path().join(MANIFEST_FILE);
        for wrong in [
            "",
            "{}",
            r#"{"format":2,"kind":"venv","prefix":"/a"}"#,
            r#"{"format":1,"kind":"venv","prefix":"a"}"#,
            r#"{"format":1,"kind":"venv","prefix":"/a","interpreter":"/a\u0000b"}"#,
            r#"{"format":1,"kind":"venv","prefix":"/a","interpreter":"/usr/../a/bin/python3"}"#,
        ] {
            fs::write(&file, wrong).unwrap();
            assert!(Manifest::read(dir.path()).is_err(), "{wrong}");
        }
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
        assert!(Manifest::read(dir.path()).is_err(), "a link was followed");
    }
}
