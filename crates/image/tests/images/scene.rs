//! Trees, stores and caches to test with.

use hotlease_image::{Cache, CacheOptions, ImageError, ImageId, Limits, Packed, Store, Way, pack};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A folder of its own with a tree, a store, and a cache.
pub struct Scene {
    pub dir: TempDir,
}

/// Whether images can be packed here; else it says what is skipped.
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

impl Scene {
    pub fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a folder"),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A small tree by this name, whose contents depend on `seed`.
    pub fn tree(&self, name: &str, seed: u32) -> PathBuf {
        let tree = self.path(name);
        fs::create_dir_all(tree.join("lib/site")).expect("a folder");
        fs::create_dir_all(tree.join("bin")).expect("a folder");
        fs::write(tree.join("lib/site/a.py"), format!("seed = {seed}\n")).expect("a file");
        // What does not pack: images get the size that is wished.
        fs::write(tree.join("lib/site/data"), noise(seed, 300_000)).expect("a file");
        fs::write(tree.join("bin/hello"), "#!/bin/sh\necho hello\n").expect("a file");
        fs::set_permissions(tree.join("bin/hello"), fs::Permissions::from_mode(0o755)).expect("its mode");
        symlink("lib", tree.join("lib64")).expect("a link");
        tree
    }

    pub fn store(&self) -> Store {
        Store::at(&self.path("store"))
    }

    pub fn pack(&self, tree: &Path) -> Result<Packed, ImageError> {
        pack(tree, &self.store(), &Limits::default())
    }

    /// An image of a small tree.
    pub fn image(&self, seed: u32) -> Packed {
        let tree = self.tree(&format!("tree-{seed}"), seed);
        self.pack(&tree).expect("it is packed")
    }

    pub fn cache(&self) -> Cache {
        self.cache_with(32 << 30, Way::Any)
    }

    pub fn cache_with(&self, bytes: u64, way: Way) -> Cache {
        let options = CacheOptions {
            bytes,
            way,
            stores: vec![self.path("store")],
            ..CacheOptions::default()
        };
        Cache::open(&self.path("cache"), options).expect("a cache")
    }

    /// Where the cache has this image.
    pub fn cached(&self, id: &ImageId) -> PathBuf {
        self.path("cache").join(format!("images/{id}.squashfs"))
    }

    /// Makes an image with mksquashfs alone, as somebody else would, and puts it into the store under its name.
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

    /// These bytes, in the store.
    pub fn publish(&self, bytes: &[u8]) -> ImageId {
        let id: ImageId = blake3::hash(bytes).to_hex().parse().expect("a name");
        fs::create_dir_all(self.path("store")).expect("a store");
        fs::write(self.path("store").join(format!("{id}.squashfs")), bytes).expect("an image");
        id
    }
}

/// Bytes that are the same for the same seed.
pub fn noise(seed: u32, bytes: usize) -> Vec<u8> {
    let mut reader = blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof();
    let mut noise = vec![0; bytes];
    reader.fill(&mut noise);
    noise
}

/// What is at these places of a cache, by name.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

/// Mounts it, or says why that is skipped. Only what cannot be here is skipped: no other error.
pub fn mounted(cache: &Cache, id: &ImageId) -> Option<hotlease_image::Mounted> {
    match cache.mount(id) {
        Ok(mounted) => Some(mounted),
        Err(ImageError::CannotMount { why, .. }) => {
            eprintln!("skipped: {why}");
            None
        }
        Err(other) => panic!("{other}"),
    }
}
