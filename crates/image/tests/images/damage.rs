//! Tests of bytes that do not match the image's name.

use crate::scene::{TestImages, can_pack, mounted, names};
use hotlease_image::ImageError;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};

#[test]
fn damage_at_any_byte_is_noticed_and_repaired() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let packed = scene.image(1);
    let cache = scene.cache();
    cache.fetch(&packed.id).expect("it is fetched");
    let file = scene.cached(&packed.id);
    let whole = fs::read(&file).unwrap();
    let length = whole.len() as u64;
    // All bytes of the superblock, one in each page of the rest, and the last byte.
    let places = (0..96).chain((96..length).step_by(4096 - 1)).chain([length - 1]);
    for place in places {
        let writer = fs::File::options().write(true).open(&file).unwrap();
        writer.write_all_at(&[whole[place as usize] ^ 1], place).unwrap();
        cache.fetch(&packed.id).expect("it is fetched again");
        assert_eq!(fs::read(&file).unwrap(), whole, "byte {place} was not noticed");
    }
    for length in [0, 1, 95, 96, length / 2, length - 1] {
        fs::write(&file, &whole[..length as usize]).unwrap();
        cache.fetch(&packed.id).expect("it is fetched again");
        assert_eq!(fs::read(&file).unwrap(), whole, "cut to {length} it was not noticed");
    }
    let mut longer = whole.clone();
    longer.push(0);
    fs::write(&file, longer).unwrap();
    cache.fetch(&packed.id).expect("it is fetched again");
    assert_eq!(fs::read(&file).unwrap(), whole);
}

#[test]
fn a_damaged_store_is_named_and_nothing_of_it_is_kept() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let packed = scene.image(2);
    let whole = fs::read(&packed.path).unwrap();
    let mut wrong = whole.clone();
    wrong[5000] ^= 1;
    fs::remove_file(&packed.path).unwrap();
    let cache = scene.cache();
    for bytes in [&wrong[..], &whole[..whole.len() - 1], b""] {
        fs::write(&packed.path, bytes).unwrap();
        let error = cache.mount(&packed.id).expect_err("it was mounted");
        assert!(
            matches!(&error, ImageError::Damaged { path, .. } if *path == packed.path),
            "{error}"
        );
        assert!(scene.store().verify(&packed.id).is_err());
        for folder in ["images", "incoming", "stamps", "work", "use"] {
            assert_eq!(
                names(&scene.path("cache").join(folder)),
                Vec::<String>::new(),
                "{folder}"
            );
        }
    }
    fs::write(&packed.path, &whole).unwrap();
    scene.store().verify(&packed.id).expect("it is right again");
    cache.fetch(&packed.id).expect("it is fetched");
    // If no store has the image, the error reports the damage.
    fs::remove_file(&packed.path).unwrap();
    fs::write(scene.cached(&packed.id), &wrong).unwrap();
    assert!(matches!(cache.fetch(&packed.id), Err(ImageError::Damaged { .. })));
    assert!(matches!(cache.fetch(&packed.id), Err(ImageError::Unknown { .. })));
}

#[test]
fn pipes_and_links_in_a_store_are_neither_waited_for_nor_followed() {
    let scene = TestImages::new();
    let cache = scene.cache();
    let secret = scene.path("secret");
    fs::write(&secret, "of another user").unwrap();
    let place = |what: &str| {
        let id = scene.publish(what.as_bytes());
        let path = scene.path("store").join(format!("{id}.squashfs"));
        fs::remove_file(&path).unwrap();
        (id, path)
    };
    let (pipe, path) = place("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let (link, path) = place("link");
    symlink(&secret, path).unwrap();
    let (folder, path) = place("folder");
    fs::create_dir(path).unwrap();
    for (id, what) in [
        (pipe, "it is no file"),
        (link, "it is a link"),
        (folder, "it is no file"),
    ] {
        let error = cache.fetch(&id).expect_err("it is no image");
        assert!(
            matches!(&error, ImageError::Damaged { why, .. } if why == what),
            "{what}: {error}"
        );
    }
}

#[test]
fn verifying_reads_all_again_and_removes_what_is_wrong() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let packed = scene.image(3);
    let cache = scene.cache();
    cache.fetch(&packed.id).unwrap();
    cache.verify(&packed.id).expect("it is right");
    let file = scene.cached(&packed.id);
    let mut bytes = fs::read(&file).unwrap();
    bytes[200_000] ^= 0x80;
    fs::write(&file, &bytes).unwrap();
    assert!(matches!(cache.verify(&packed.id), Err(ImageError::Damaged { .. })));
    assert!(!file.exists(), "it was kept");
    cache.fetch(&packed.id).expect("it is fetched again");
    cache.verify(&packed.id).expect("it is right again");
}

#[test]
fn an_image_in_use_survives_damage_found_beside_it() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let packed = scene.image(4);
    let cache = scene.cache();
    let Some(used) = mounted(&cache, &packed.id) else {
        return;
    };
    let file = scene.cached(&packed.id);
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .write_all_at(&bytes[last..], last as u64)
        .unwrap();
    assert!(matches!(cache.verify(&packed.id), Err(ImageError::Damaged { .. })));
    assert!(
        file.exists() && used.path().join("bin/hello").exists(),
        "it was taken away from who uses it"
    );
    drop(used);
    let again = mounted(&cache, &packed.id).expect("it is mounted again");
    assert!(again.path().join("bin/hello").exists());
    cache.verify(&packed.id).expect("it was fetched again");
}
