//! Tests of a cache's limits, and of the order in which it removes images.

use crate::scene::{TestImages, can_pack, mounted, names, noise};
use hotlease_image::{Cache, CacheOptions, ImageError, ImageId, MountMethod};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Barrier;
use std::time::{Duration, Instant, SystemTime};

/// Publishes bytes that are no images, so that no mksquashfs is needed. A cache fetches any bytes with the right hash.
fn blobs(scene: &TestImages, count: u32, bytes: usize) -> Vec<ImageId> {
    (0..count).map(|seed| scene.publish(&noise(seed, bytes))).collect()
}

/// Sets the time of an image's last use, so that the order does not depend on the clock's resolution.
fn used(scene: &TestImages, id: &ImageId, seconds: u64) {
    let file = fs::File::options()
        .write(true)
        .open(scene.path("cache/use").join(id.to_string()));
    let at = SystemTime::now() - Duration::from_secs(seconds);
    file.unwrap().set_modified(at).unwrap();
}

#[test]
fn the_least_recently_used_image_is_removed_first() {
    let scene = TestImages::new();
    let ids = blobs(&scene, 4, 100_000);
    let cache = scene.cache_with(350_000, MountMethod::Any);
    for (id, age) in ids[..3].iter().zip([30, 20, 10]) {
        cache.fetch(id).unwrap();
        used(&scene, id, age);
    }
    // The oldest image is used again.
    cache.fetch(&ids[0]).unwrap();
    cache.fetch(&ids[3]).unwrap();
    let kept: Vec<ImageId> = cache.list().unwrap().into_iter().map(|image| image.id).collect();
    assert_eq!(kept.len(), 3);
    assert!(!kept.contains(&ids[1]), "another than the oldest went");
    let bytes: u64 = cache.list().unwrap().iter().map(|image| image.bytes).sum();
    assert!(bytes <= 350_000);
    let removed = cache.gc(150_000).unwrap();
    assert_eq!(
        removed.iter().map(|image| image.id).collect::<Vec<_>>(),
        [ids[2], ids[0]]
    );
    assert_eq!(cache.gc(0).unwrap().len(), 1);
    for folder in ["images", "stamps", "use", "work", "incoming"] {
        assert_eq!(
            names(&scene.path("cache").join(folder)),
            Vec::<String>::new(),
            "{folder}"
        );
    }
}

#[test]
fn an_image_without_room_is_refused_and_costs_no_other_image() {
    let scene = TestImages::new();
    let small = scene.publish(&noise(1, 50_000));
    let large = scene.publish(&noise(2, 500_000));
    let cache = scene.cache_with(200_000, MountMethod::Any);
    cache.fetch(&small).unwrap();
    match cache.fetch(&large) {
        Err(ImageError::NoRoom { needed, most, .. }) => assert_eq!((needed, most), (500_000, 200_000)),
        other => panic!("{other:?}"),
    }
    assert_eq!(cache.list().unwrap().len(), 1, "something went for nothing");
}

#[test]
fn names_that_no_store_has_leave_nothing() {
    let scene = TestImages::new();
    let cache = scene.cache();
    for seed in 0..20 {
        let id: ImageId = blake3::hash(&[seed]).to_hex().parse().unwrap();
        let error = cache.mount(&id).expect_err("it was mounted");
        assert!(matches!(&error, ImageError::Unknown { .. }), "{error}");
        assert!(
            error.to_string().contains("/store"),
            "it does not say where it looked: {error}"
        );
    }
    for folder in ["images", "incoming", "stamps", "use", "work", "mounts", "traces"] {
        assert_eq!(
            names(&scene.path("cache").join(folder)),
            Vec::<String>::new(),
            "{folder}"
        );
    }
}

#[test]
fn many_at_once_fetch_an_image_once() {
    let scene = TestImages::new();
    let bytes = noise(7, 30_000_000);
    let id = scene.publish(&bytes);
    let barrier = Barrier::new(8);
    let caches: Vec<Cache> = (0..8).map(|_| scene.cache()).collect();
    std::thread::scope(|scope| {
        for cache in &caches {
            scope.spawn(|| {
                barrier.wait();
                cache.fetch(&id).expect("it is fetched");
            });
        }
    });
    assert_eq!(fs::read(scene.cached(&id)).unwrap(), bytes);
    // The file was not made again: it is the file for which the first thread wrote a stamp.
    let before = fs::metadata(scene.cached(&id)).unwrap();
    fs::remove_file(scene.path("store").join(format!("{id}.squashfs"))).unwrap();
    caches[0].fetch(&id).expect("it is here without the store");
    let after = fs::metadata(scene.cached(&id)).unwrap();
    assert_eq!(
        std::os::unix::fs::MetadataExt::ino(&before),
        std::os::unix::fs::MetadataExt::ino(&after)
    );
}

#[test]
fn many_at_once_stay_within_the_bound() {
    let scene = TestImages::new();
    let ids = blobs(&scene, 12, 1_000_000);
    let bound = 4_500_000;
    let done = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for mine in ids.chunks(3) {
            let (scene, done) = (&scene, &done);
            scope.spawn(move || {
                let cache = scene.cache_with(bound, MountMethod::Any);
                for id in mine {
                    cache.fetch(id).expect("it is fetched");
                }
                done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            });
        }
        let until = Instant::now() + Duration::from_secs(60);
        while done.load(std::sync::atomic::Ordering::Relaxed) < 4 && Instant::now() < until {
            let sizes = |folder: &str| -> u64 {
                let entries = fs::read_dir(scene.path("cache").join(folder));
                let entries = entries.into_iter().flatten().flatten();
                entries
                    .filter_map(|entry| entry.metadata().ok())
                    .map(|found| found.len())
                    .sum()
            };
            // A file that is renamed between the two listings is in neither.
            let incoming = sizes("incoming");
            assert!(sizes("images") <= bound && incoming <= bound);
        }
    });
    let bytes: u64 = scene.cache().list().unwrap().iter().map(|image| image.bytes).sum();
    assert!(bytes <= bound, "{bytes}");
}

#[test]
fn a_mounted_image_is_never_removed() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let packed = scene.image(1);
    let cache = scene.cache_with(packed.image_bytes + 200_000, MountMethod::Any);
    let Some(used) = mounted(&cache, &packed.id) else {
        return;
    };
    used_by_others(&scene, &packed.id);
    let other = scene.publish(&noise(9, 400_000));
    assert!(matches!(cache.fetch(&other), Err(ImageError::NoRoom { .. })));
    assert_eq!(cache.gc(0).unwrap(), []);
    assert!(
        scene.cache().list().unwrap()[0].mounted,
        "another process's sweep unmounted it"
    );
    assert!(used.path().join("bin/hello").exists());
    drop(used);
    assert_eq!(cache.gc(0).unwrap().len(), 1);
    cache.fetch(&other).expect("now there is room");
}

/// Sets the last use long ago, so that the image would be removed first.
fn used_by_others(scene: &TestImages, id: &ImageId) {
    used(scene, id, 3600);
}

#[test]
fn a_cache_that_others_could_write_to_is_refused() {
    let scene = TestImages::new();
    let open = |name: &str| Cache::open(&scene.path(name), CacheOptions::default());
    fs::create_dir(scene.path("shared")).unwrap();
    fs::set_permissions(scene.path("shared"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(open("shared"), Err(ImageError::Unsafe { .. })));
    fs::create_dir(scene.path("real")).unwrap();
    symlink(scene.path("real"), scene.path("link")).unwrap();
    assert!(matches!(open("link"), Err(ImageError::Unsafe { .. })));
    fs::write(scene.path("file"), "").unwrap();
    assert!(open("file").is_err());
}
