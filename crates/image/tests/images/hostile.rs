//! Tests of images that were made without `pack`.

use crate::scene::{TestImages, can_pack, is_root, noise};
use hotlease_image::{Cache, CacheOptions, ImageError, ImageId, Limits, MANIFEST_FILE};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

const MANIFEST: &str = r#"{"format":1,"kind":"directory","prefix":"/opt/x"}"#;

/// Returns the error of mounting this image, or `None` if nothing can be mounted here. Checks that nothing stays
/// mounted.
fn refusal(scene: &TestImages, limits: Limits, id: &ImageId) -> Option<ImageError> {
    let options = CacheOptions {
        limits,
        stores: vec![scene.path("store")],
        ..CacheOptions::default()
    };
    let cache = Cache::open(&scene.path("cache"), options).expect("a cache");
    let error = cache.mount(id).expect_err("a hostile image was mounted");
    assert!(
        cache.list().unwrap().iter().all(|image| !image.mounted),
        "it stays mounted after: {error}"
    );
    match error {
        ImageError::CannotMount { why, .. } if why.contains("not found") || why.contains("/dev/fuse") => {
            eprintln!("skipped: {why}");
            None
        }
        error => Some(error),
    }
}

fn foreign(make: impl Fn(&Path), more: &[&str]) -> Option<ImageError> {
    let scene = TestImages::new();
    let tree = scene.path("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join(MANIFEST_FILE), MANIFEST).unwrap();
    make(&tree);
    let id = scene.foreign(&tree, more);
    refusal(&scene, Limits::default(), &id)
}

fn says(error: Option<ImageError>, word: &str) {
    if let Some(error) = error {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn links_devices_and_borrowed_rights_are_refused() {
    if !can_pack() {
        return;
    }
    says(
        foreign(|tree| symlink("/etc/shadow", tree.join("x")).unwrap(), &[]),
        "leaves it",
    );
    says(
        foreign(|tree| symlink("../../etc", tree.join("x")).unwrap(), &[]),
        "leaves it",
    );
    // Only the interpreter that the manifest names is allowed, and only at an interpreter's path.
    let python = |tree: &Path| {
        fs::create_dir(tree.join("bin")).unwrap();
        symlink("/bin/sh", tree.join("bin/python3")).unwrap();
    };
    says(foreign(python, &[]), "leaves it");
    let setid = |tree: &Path| {
        fs::write(tree.join("su"), "").unwrap();
        fs::set_permissions(tree.join("su"), fs::Permissions::from_mode(0o4755)).unwrap();
    };
    says(foreign(setid, &[]), "set-user-id");
    says(foreign(|_| (), &["-p", "null c 666 0 0 1 3"]), "a device");
    says(foreign(|_| (), &["-p", "disk b 666 0 0 8 0"]), "a device");
    says(
        foreign(|tree| fs::remove_file(tree.join(MANIFEST_FILE)).unwrap(), &[]),
        "has not made this image",
    );
}

#[test]
fn a_small_image_of_much_is_refused() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let tree = scene.path("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join(MANIFEST_FILE), MANIFEST).unwrap();
    // A gigabyte of zeros packs to some kilobytes.
    let file = fs::File::create(tree.join("bomb")).unwrap();
    file.set_len(1 << 30).unwrap();
    for count in 0..50 {
        fs::write(tree.join(count.to_string()), "").unwrap();
    }
    let id = scene.foreign(&tree, &[]);
    let image = fs::metadata(scene.path("store").join(format!("{id}.squashfs")))
        .unwrap()
        .len();
    assert!(image < 1 << 20, "it is no bomb: {image}");
    let limits = Limits {
        contents_bytes: 1 << 29,
        ..Limits::default()
    };
    if let Some(error) = refusal(&scene, limits, &id) {
        assert!(matches!(error, ImageError::Limit { most: 536_870_912, .. }), "{error}");
    }
    let limits = Limits {
        entries: 20,
        ..Limits::default()
    };
    if let Some(error) = refusal(&scene, limits, &id) {
        assert!(matches!(error, ImageError::Limit { most: 22, .. }), "{error}");
    }
    let limits = Limits {
        image_bytes: 1000,
        ..Limits::default()
    };
    let cache = scene.path("other");
    let options = CacheOptions {
        limits,
        stores: vec![scene.path("store")],
        ..CacheOptions::default()
    };
    let refused = Cache::open(&cache, options).unwrap().fetch(&id);
    assert!(matches!(refused, Err(ImageError::Limit { most: 1000, .. })));
}

#[test]
fn bytes_that_are_no_image_are_refused_before_they_are_mounted() {
    let scene = TestImages::new();
    let mut squash = noise(3, 8192);
    squash[..4].copy_from_slice(b"hsqs");
    for bytes in [noise(1, 8192), squash, b"hsqs".to_vec(), vec![0; 96]] {
        let id = scene.publish(&bytes);
        match refusal(&scene, Limits::default(), &id) {
            Some(ImageError::Damaged { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_image_with_garbage_inside_harms_no_process() {
    if !can_pack() || !is_root() {
        eprintln!("skipped: it needs root, whose mounts are the kernel's");
        return;
    }
    let scene = TestImages::new();
    let packed = scene.image(5);
    let whole = fs::read(&packed.path).unwrap();
    for seed in 0..12_u32 {
        let mut bytes = whole.clone();
        let from = 96 + (seed as usize * 7919) % (bytes.len() - 4096);
        // Half of the seeds damage the tables at the end.
        let from = if seed % 2 == 0 { from } else { bytes.len() - 4096 };
        bytes[from..from + 64].copy_from_slice(&noise(seed, 64));
        let id = scene.publish(&bytes);
        let cache = scene.cache();
        // The image is refused, or mounted and unmounted.
        if let Ok(mounted) = cache.mount(&id) {
            let _ = fs::read(mounted.path().join("lib/site/data"));
        }
        assert!(
            cache.list().unwrap().iter().all(|image| !image.mounted),
            "seed {seed}: it stays mounted"
        );
    }
}
