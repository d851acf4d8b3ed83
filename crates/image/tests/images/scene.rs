//! Trees, stores and caches for tests.

use hotlease_image::{Cache, CacheOptions, ImageError, ImageId, ImageStore, Limits, MountMethod, PackResult, pack};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Temporary folder with a tree, a store and a cache.
pub struct TestImages {
    pub dir: TempDir,
}

/// Whether images can be packed here; otherwise prints that the test is skipped.
pub fn can_pack() -> bool {
    let found = Command::new("mksquashfs").arg("-version").output().is_ok();
    if !found {
        eprintln!("skipped: no mksquashfs here (package squashfs-tools)");
    }
    found
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

impl TestImages {
    pub fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a folder"),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a small tree with this name; its contents depend on `seed`.
    pub fn tree(&self, name: &str, seed: u32) -> PathBuf {
        let tree = self.path(name);
        fs::create_dir_all(tree.join("lib/site")).expect("a folder");
        fs::create_dir_all(tree.join("bin")).expect("a folder");
        fs::write(tree.join("lib/site/a.py"), format!("seed = {seed}\n")).expect("a file");
        // Incompressible data, so that images have a known size.
        fs::write(tree.join("lib/site/data"), noise(seed, 300_000)).expect("a file");
        fs::write(tree.join("bin/hello"), "#!/bin/sh\necho hello\n").expect("a file");
        fs::set_permissions(tree.join("bin/hello"), fs::Permissions::from_mode(0o755)).expect("its mode");
        symlink("lib", tree.join("lib64")).expect("a link");
        tree
    }

    pub fn store(&self) -> ImageStore {
        ImageStore::at(&self.path("store"))
    }

    pub fn pack(&self, tree: &Path) -> Result<PackResult, ImageError> {
        pack(tree, &self.store(), &Limits::default())
    }

    /// Packs an image of a small tree.
    pub fn image(&self, seed: u32) -> PackResult {
        let tree = self.tree(&format!("tree-{seed}"), seed);
        self.pack(&tree).expect("it is packed")
    }

    pub fn cache(&self) -> Cache {
        self.cache_with(32 << 30, MountMethod::Any)
    }

    pub fn cache_with(&self, bytes: u64, way: MountMethod) -> Cache {
        let options = CacheOptions {
            bytes,
            way,
            stores: vec![self.path("store")],
            ..CacheOptions::default()
        };
        Cache::open(&self.path("cache"), options).expect("a cache")
    }

    /// Path of the image in the cache.
    pub fn cached(&self, id: &ImageId) -> PathBuf {
        self.path("cache").join(format!("images/{id}.squashfs"))
    }

    /// Makes an image with mksquashfs alone, as another user could, and puts it into the store under its name.
    pub fn foreign(&self, tree: &Path, more: &[&str]) -> ImageId {
        let file = self.path("foreign");
        let made = Command::new("mksquashfs")
            .args([tree, &file])
            .args(["-noappend", "-quiet", "-no-progress"])
            .args(more)
            .output()
            .expect("mksquashfs runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        self.publish(&fs::read(&file).expect("the image"))
    }

    /// Puts these bytes into the store.
    pub fn publish(&self, bytes: &[u8]) -> ImageId {
        let id: ImageId = blake3::hash(bytes).to_hex().parse().expect("a name");
        fs::create_dir_all(self.path("store")).expect("a store");
        fs::write(self.path("store").join(format!("{id}.squashfs")), bytes).expect("an image");
        id
    }
}

/// Pseudo-random bytes that depend on `seed` only.
pub fn noise(seed: u32, bytes: usize) -> Vec<u8> {
    let mut reader = blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof();
    let mut noise = vec![0; bytes];
    reader.fill(&mut noise);
    noise
}

/// Sorted names of the entries of a folder.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Mounts an image. Returns `None`, and prints a message, if mounting is impossible here. All other errors fail the
/// test.
pub fn mounted(cache: &Cache, id: &ImageId) -> Option<hotlease_image::MountedImage> {
    match cache.mount(id) {
        Ok(mounted) => Some(mounted),
        Err(ImageError::CannotMount { why, .. }) => {
            eprintln!("skipped: {why}");
            None
        }
        Err(other) => panic!("{other}"),
    }
}
