//! Tests of processes that are killed while they fetch or use an image.

use crate::scene::{TestImages, can_pack, is_root, noise};
use hotlease_image::{Cache, CacheOptions, ImageId};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ROLE: &str = "HOTLEASE_TEST_IMAGE_ROLE";

/// Body of the process that other tests start: it does what [`ROLE`] says, and is killed.
#[test]
fn another_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words: Vec<&str> = role.split('|').collect();
    let [what, dir, id] = words[..] else {
        panic!("{role}");
    };
    let id: ImageId = id.parse().expect("a name");
    let options = CacheOptions {
        stores: vec![Path::new(dir).join("store")],
        ..CacheOptions::default()
    };
    let cache = Cache::open(&Path::new(dir).join("cache"), options).expect("a cache");
    let ready = |word: &str| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "ready {word}")
            .and_then(|()| out.flush())
            .expect("the test listens");
    };
    match what {
        "fetch" => {
            ready("");
            cache.fetch(&id).expect("it is fetched");
        }
        _ => match cache.mount(&id) {
            Ok(mounted) => {
                ready(&format!("at {}", mounted.path().display()));
                std::thread::sleep(Duration::from_secs(600));
            }
            Err(error) => ready(&error.to_string()),
        },
    }
}

/// Starts the process. Returns it with its output when it is ready.
fn start(what: &str, scene: &TestImages, id: &ImageId) -> (Child, String) {
    let program = std::env::current_exe().expect("this program");
    start_by(&mut Command::new(program), what, scene, id)
}

fn start_by(command: &mut Command, what: &str, scene: &TestImages, id: &ImageId) -> (Child, String) {
    let role = format!("{what}|{}|{id}", scene.dir.path().display());
    let mut child = command
        .args(["--exact", "crashes::another_process", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let out = BufReader::new(child.stdout.take().expect("its output"));
    let said = out.lines().map_while(Result::ok).find(|line| line.contains("ready"));
    let said = said.expect("it is ready");
    (child, said)
}

fn kill(mut child: Child) {
    child.kill().expect("it is killed");
    child.wait().expect("it ends");
}

#[test]
fn a_fetch_that_is_killed_leaves_no_half_image() {
    let scene = TestImages::new();
    let bytes = noise(1, 60_000_000);
    let id = scene.publish(&bytes);
    let mut cut = 0;
    for round in 0..8_u64 {
        let (child, _) = start("fetch", &scene, &id);
        // Each round kills the process at a different point. The checks must hold at every point of the fetch.
        std::thread::sleep(Duration::from_millis(round * 6));
        kill(child);
        let file = scene.cached(&id);
        match fs::read(&file) {
            Ok(found) => assert!(found == bytes, "round {round}: a wrong image was published"),
            Err(_) => cut += 1,
        }
        let cache = scene.cache();
        assert_eq!(
            crate::scene::names(&scene.path("cache/incoming")),
            Vec::<String>::new(),
            "round {round}"
        );
        cache.fetch(&id).expect("the next one fetches it");
        assert_eq!(fs::read(&file).unwrap().len(), bytes.len());
        cache.gc(0).expect("it is removed");
    }
    eprintln!("{cut} of 8 were cut before the end");
}

/// States that a crash may leave at each step, made by hand.
#[test]
fn the_next_one_makes_good_what_each_step_has_left() {
    let scene = TestImages::new();
    let bytes = noise(2, 3_000_000);
    let id = scene.publish(&bytes);
    let cache = |name: &str| scene.path("cache").join(name).join(id.to_string());
    let left: [(&str, &dyn Fn()); 6] = [
        ("an empty place", &|| fs::write(cache("incoming"), b"").unwrap()),
        ("a place without its bytes", &|| {
            fs::write(cache("incoming"), vec![0; bytes.len()]).unwrap()
        }),
        ("half of it", &|| {
            fs::write(cache("incoming"), &bytes[..1_500_000]).unwrap()
        }),
        ("all of it under the other name", &|| {
            fs::write(cache("incoming"), &bytes).unwrap()
        }),
        ("an image without its stamp", &|| {
            fs::write(scene.cached(&id), &bytes).unwrap()
        }),
        ("an image that never reached the disk, with a stamp", &|| {
            fs::write(scene.cached(&id), vec![0; bytes.len()]).unwrap();
            fs::write(cache("stamps"), "another-boot 1 2 3").unwrap();
        }),
    ];
    drop(scene.cache());
    for (what, make) in left {
        make();
        // Opening the cache may have removed the state already.
        scene.cache().fetch(&id).expect(what);
        assert!(fs::read(scene.cached(&id)).unwrap() == bytes, "{what}");
        assert_eq!(
            crate::scene::names(&scene.path("cache/incoming")),
            Vec::<String>::new(),
            "{what}"
        );
        scene.cache().gc(0).expect("it is removed");
    }
}

#[test]
fn a_user_that_is_killed_leaves_no_mount() {
    if !can_pack() {
        return;
    }
    let scene = TestImages::new();
    let packed = scene.image(3);
    let (child, said) = start("mount", &scene, &packed.id);
    if !said.contains("ready at ") {
        eprintln!("skipped: {said}");
        kill(child);
        return;
    }
    let cache = scene.cache();
    assert!(cache.list().unwrap()[0].mounted, "it was unmounted while it was used");
    assert_eq!(cache.gc(0).unwrap(), []);
    kill(child);
    assert!(cache.list().unwrap()[0].mounted, "no process could have unmounted it");
    let next = scene.cache();
    assert!(!next.list().unwrap()[0].mounted, "it was left");
    assert_eq!(next.gc(0).unwrap().len(), 1);
}

/// FUSE does not need root, so the image is mounted as another user.
#[test]
fn anybody_can_mount_through_fuse() {
    if !can_pack() || !is_root() {
        eprintln!("skipped: it needs root, to become another user");
        return;
    }
    let scene = TestImages::new();
    let packed = scene.image(4);
    let no_rights = 65534;
    for name in [scene.dir.path().to_owned(), scene.path("store")] {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(name, open).expect("its mode");
    }
    fs::create_dir(scene.path("cache")).expect("a folder");
    std::os::unix::fs::chown(scene.path("cache"), Some(no_rights), Some(no_rights)).expect("its owner");
    let program = scene.path("program");
    fs::copy(std::env::current_exe().expect("this program"), &program).expect("a copy");
    let mut command = Command::new(&program);
    std::os::unix::process::CommandExt::uid(&mut command, no_rights);
    std::os::unix::process::CommandExt::gid(&mut command, no_rights);
    let (child, said) = start_by(&mut command, "mount", &scene, &packed.id);
    if said.contains("ready at ") {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table
            .lines()
            .find(|line| line.contains(&packed.id.to_string()))
            .expect("it is mounted");
        assert!(line.contains(" - fuse") && line.contains("user_id=65534"), "{line}");
    } else {
        assert!(
            said.contains("cannot be mounted here") && said.contains("only root may"),
            "{said}"
        );
        eprintln!("skipped: {said}");
    }
    kill(child);
    // The folder belongs to another user, so no cache of root removes the mount. It is unmounted by hand.
    let at = scene.path("cache/mounts").join(packed.id.to_string());
    let _ = nix::mount::umount2(&at, nix::mount::MntFlags::MNT_DETACH);
}
