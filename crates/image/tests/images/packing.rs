//! Tests of packing: what it stores unchanged, what it changes, and what it refuses.

use crate::scene::{TestImages, can_pack, mounted};
use hotlease_image::{ImageError, ImageStore, Limits, TreeKind, pack};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

#[test]
fn equal_trees_make_equal_images_at_any_time_by_any_user() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let tree = scene.tree("tree", 1);
    let first = scene.pack(&tree).expect("it is packed");
    // Other times, another order of entries, another mode of a file, another mode of a folder.
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = fs::File::options()
        .write(true)
        .open(tree.join("lib/site/a.py"))
        .unwrap();
    file.set_modified(long_ago).unwrap();
    fs::rename(tree.join("lib/site/data"), tree.join("x")).unwrap();
    fs::rename(tree.join("x"), tree.join("lib/site/data")).unwrap();
    fs::set_permissions(tree.join("lib/site/a.py"), fs::Permissions::from_mode(0o664)).unwrap();
    fs::set_permissions(tree.join("lib"), fs::Permissions::from_mode(0o700)).unwrap();
    let second = scene.pack(&tree).expect("it is packed");
    assert_eq!(first.id, second.id);
    fs::write(tree.join("lib/site/a.py"), "seed = 2\n").unwrap();
    assert_ne!(scene.pack(&tree).expect("it is packed").id, first.id);
    assert_eq!(
        scene.store().list().unwrap().len(),
        2,
        "the first was replaced by the second"
    );
}

#[test]
fn names_links_empty_files_and_rights_come_back() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let tree = scene.tree("tree", 2);
    let odd = [
        b"a b".as_slice(),
        b"new\nline",
        b"-rf",
        b"\xff\xfe",
        b"quote\"'\\",
        b"*?[",
        "gr\u{fc}\u{df}e".as_bytes(),
        b".hidden",
        b"tail ",
    ];
    for name in odd {
        fs::write(tree.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let long = tree.join("d".repeat(250)).join("e".repeat(250));
    fs::create_dir_all(&long).unwrap();
    fs::write(long.join("f".repeat(250)), "deep").unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    fs::create_dir(tree.join("nothing")).unwrap();
    symlink("../lib/./site/a.py", tree.join("bin/relative")).unwrap();
    symlink(tree.join("lib/site"), tree.join("bin/absolute")).unwrap();
    symlink("no such thing", tree.join("dangling")).unwrap();
    symlink("x".repeat(1000), tree.join("long link")).unwrap();
    fs::set_permissions(tree.join("empty"), fs::Permissions::from_mode(0o600)).unwrap();
    let packed = scene.pack(&tree).expect("it is packed");
    assert_eq!((packed.links_changed, packed.opened, packed.setid_stripped), (1, 1, 0));
    assert_eq!((packed.uncompiled, packed.manifest.kind()), (1, TreeKind::Directory));
    assert_eq!(packed.manifest.prefix(), tree);

    let Some(mounted) = mounted(&scene.cache(), &packed.id) else {
        return;
    };
    let at = mounted.path();
    for name in odd {
        assert_eq!(fs::read(at.join(OsStr::from_bytes(name))).unwrap(), name, "{name:?}");
    }
    let long = long.strip_prefix(&tree).unwrap();
    assert_eq!(fs::read(at.join(long).join("f".repeat(250))).unwrap(), b"deep");
    assert_eq!(fs::read(at.join("empty")).unwrap(), b"");
    assert_eq!(fs::read_dir(at.join("nothing")).unwrap().count(), 0);
    assert_eq!(fs::read(at.join("bin/relative")).unwrap(), b"seed = 2\n");
    assert_eq!(fs::read(at.join("bin/absolute/a.py")).unwrap(), b"seed = 2\n");
    assert_eq!(fs::read_link(at.join("dangling")).unwrap(), Path::new("no such thing"));
    assert_eq!(fs::read_link(at.join("long link")).unwrap().as_os_str().len(), 1000);
    assert_eq!(
        fs::read(at.join("lib/site/data")).unwrap(),
        fs::read(tree.join("lib/site/data")).unwrap()
    );
    let mode = |name: &str| fs::metadata(at.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("bin/hello"), mode("empty"), mode("lib")), (0o755, 0o644, 0o755));
    let ran = Command::new(at.join("bin/hello")).output().expect("it runs");
    assert_eq!(ran.stdout, b"hello\n");
    assert!(fs::write(at.join("empty"), "x").is_err(), "an image was written to");
}

#[test]
fn bytecode_is_still_good_and_its_absence_is_told() {
    if !can_pack() || Command::new("python3").arg("-V").output().is_err() {
        eprintln!("skipped: it needs python3");
        return;
    }
    let scene = TestImages::new();
    let tree = scene.path("tree");
    fs::create_dir_all(&tree).unwrap();
    for name in ["good", "stale", "never"] {
        fs::write(tree.join(format!("{name}.py")), "x = 1\n").unwrap();
    }
    let compiled = Command::new("python3")
        .args(["-m", "py_compile", "good.py", "stale.py"])
        .current_dir(&tree)
        .status();
    assert!(compiled.unwrap().success());
    let stale = fs::File::options().write(true).open(tree.join("stale.py")).unwrap();
    stale
        .set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000))
        .unwrap();
    let packed = scene.pack(&tree).expect("it is packed");
    assert_eq!(packed.uncompiled, 2);
    let Some(mounted) = mounted(&scene.cache(), &packed.id) else {
        return;
    };
    let verbose = Command::new("python3")
        .args(["-v", "-c", "import good, stale"])
        .env("PYTHONPATH", mounted.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&verbose.stderr).into_owned();
    let used = |name: &str| {
        said.lines()
            .any(|line| line.contains("matches") && line.contains(&format!("{name}.py")))
    };
    assert!(used("good"), "it was compiled again:\n{said}");
    assert!(!used("stale"), "stale bytecode was made to look right");
}

#[test]
fn files_that_no_image_may_hold_are_refused_by_name() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let refused = |name: &str, make: &dyn Fn(&Path), word: &str| {
        let tree = scene.tree(name, 3);
        make(&tree.join("lib/bad"));
        let error = scene.pack(&tree).expect_err(name).to_string();
        assert!(error.contains("lib/bad") && error.contains(word), "{name}: {error}");
    };
    refused("out", &|at| symlink("../../outside", at).unwrap(), "leaves the tree");
    refused("absolute", &|at| symlink("/etc/passwd", at).unwrap(), "leaves the tree");
    refused("sly", &|at| symlink("../lib64/../../x", at).unwrap(), "leaves the tree");
    refused(
        "pipe",
        &|at| nix::unistd::mkfifo(at, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        "a named pipe",
    );
    refused(
        "socket",
        &|at| drop(std::os::unix::net::UnixListener::bind(at).unwrap()),
        "a socket",
    );
    if crate::scene::is_root() {
        let null = nix::sys::stat::makedev(1, 3);
        let device = |at: &Path| {
            let kind = nix::sys::stat::SFlag::S_IFCHR;
            nix::sys::stat::mknod(at, kind, nix::sys::stat::Mode::S_IRWXU, null).unwrap();
        };
        refused("device", &device, "a device");
    }
    // All these trees were refused before a store was made.
    assert!(!scene.path("store").exists());
}

#[test]
fn rights_of_others_are_stripped_and_counted() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let tree = scene.tree("tree", 4);
    fs::set_permissions(tree.join("bin/hello"), fs::Permissions::from_mode(0o6755)).unwrap();
    let packed = scene.pack(&tree).expect("it is packed");
    assert_eq!(packed.setid_stripped, 1);
    if let Some(mounted) = mounted(&scene.cache(), &packed.id) {
        let mode = fs::metadata(mounted.path().join("bin/hello"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o755);
    }
}

#[test]
fn an_environment_knows_the_python_that_it_needs() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let tree = scene.tree("venv", 5);
    let python = scene.path("python3.11");
    fs::write(&python, "#!/bin/sh\nexit 0\n").unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(tree.join("pyvenv.cfg"), "home = /usr/bin\n").unwrap();
    symlink(&python, tree.join("bin/python3")).unwrap();
    symlink("python3", tree.join("bin/python")).unwrap();
    let packed = scene.pack(&tree).expect("it is packed");
    assert_eq!(packed.manifest.kind(), TreeKind::Venv);
    let real = fs::canonicalize(&python).unwrap();
    assert_eq!(packed.manifest.interpreter(), Some(real.clone()));
    let cache = scene.cache();
    drop(mounted(&cache, &packed.id));
    fs::remove_file(&python).unwrap();
    if let Some(mounted) = mounted(&cache, &packed.id) {
        match mounted.check_interpreter() {
            Err(ImageError::Interpreter { path, .. }) => assert_eq!(path, real),
            other => panic!("{other:?}"),
        }
    }
    let error = scene.pack(&tree).expect_err("its Python is gone").to_string();
    assert!(error.contains("is gone"), "{error}");
}

#[test]
fn limits_and_places_are_kept() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let tree = scene.tree("tree", 6);
    let with = |limits: Limits| pack(&tree, &scene.store(), &limits);
    let most = Limits::default();
    for limits in [
        Limits {
            image_bytes: 100_000,
            ..most
        },
        Limits {
            contents_bytes: 100_000,
            ..most
        },
        Limits { entries: 3, ..most },
    ] {
        assert!(matches!(with(limits), Err(ImageError::Limit { .. })), "{limits:?}");
    }
    let inside = ImageStore::at(&tree.join("store"));
    fs::create_dir(inside.path()).unwrap();
    assert!(matches!(pack(&tree, &inside, &most), Err(ImageError::Unsafe { .. })));
    let mut file = fs::File::create(scene.path("file")).unwrap();
    file.write_all(b"x").unwrap();
    assert!(scene.pack(&scene.path("file")).is_err(), "a file was packed");
    assert!(scene.pack(&scene.path("nothing")).is_err());
    assert_eq!(crate::scene::names(&scene.path("store")), Vec::<String>::new());
}
