use super::*;
use hotlease_image::{ImageStore, Limits, pack};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Instant;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const OWN: ImageRequester<'_> = ImageRequester {
    tenant: "uid:7",
    is_own: true,
};
const OTHER: ImageRequester<'_> = ImageRequester {
    tenant: "ann",
    is_own: false,
};

/// A folder with a store and a cache.
struct Scene {
    folder: TempDir,
}

impl Drop for Scene {
    /// Waits for the threads that unmount what the test has dropped, so that no mount outlives the test's process.
    fn drop(&mut self) {
        let deadline = Instant::now() + LIMIT;
        while mounted_below(self.folder.path()) && !std::thread::panicking() {
            assert!(Instant::now() < deadline, "an environment is still mounted");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Whether a file system is mounted at a path below this folder.
fn mounted_below(folder: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the kernel tells");
    table.contains(&format!(" {}/", folder.display()))
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["store", "cache"] {
            fs::create_dir(folder.path().join(name)).expect("made");
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn images(&self) -> Arc<Images> {
        let config = Environments {
            stores: vec![self.path("store")],
            cache: self.path("cache"),
            mount: MountMethod::Any,
            ..Environments::default()
        };
        Arc::new(opened(&config).await)
    }

    /// Packs a small environment into the store; returns its hash, or `None` if nothing can be packed here.
    fn packed(&self, name: &str) -> Option<String> {
        self.packed_with(name, "host/bin/python3")
    }

    /// Packs a small environment with this file as its interpreter; see [`packed`](Self::packed).
    fn packed_with(&self, name: &str, interpreter: &str) -> Option<String> {
        let (tree, interpreter) = (self.path(name), self.path(interpreter));
        fs::create_dir_all(interpreter.parent().expect("a folder")).expect("made");
        fs::write(&interpreter, "").expect("a file");
        fs::set_permissions(&interpreter, fs::Permissions::from_mode(0o755)).expect("a program");
        fs::create_dir_all(tree.join("bin")).expect("made");
        symlink(interpreter, tree.join("bin/python")).expect("a link");
        fs::write(tree.join("pyvenv.cfg"), name).expect("a file");
        match pack(&tree, &ImageStore::at(&self.path("store")), &Limits::default()) {
            Ok(packed) => Some(packed.id.to_string()),
            Err(ImageError::Tool { .. }) => {
                eprintln!("skipped: no mksquashfs here (package squashfs-tools)");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn stored(&self, hash: &str) -> PathBuf {
        self.path("store").join(format!("{hash}.squashfs"))
    }
}

async fn opened(config: &Environments) -> Images {
    let launcher = Launcher::new(Path::new("/bin/sleep")).expect("a program");
    Images::open(config, launcher, None).await.expect("opened")
}

fn why(refused: Result<Arc<Image>, Rejection>) -> String {
    match refused {
        Err(Rejection::NoEnvironment { why, .. }) => why,
        other => panic!("{:?}", other.map(|image| image.at().to_owned())),
    }
}

/// Mounts an environment. If none can be mounted here, prints why and returns `None`.
async fn got(images: &Arc<Images>, hash: &str) -> Option<Arc<Image>> {
    match images.get(hash, OWN).await {
        Ok(image) => Some(image),
        Err(Rejection::NoEnvironment { why, .. }) if why.contains("cannot be mounted here") => {
            eprintln!("skipped: {why}");
            None
        }
        Err(refusal) => panic!("{refusal}"),
    }
}

#[tokio::test]
async fn an_unavailable_image_is_refused_with_a_remedy() {
    let scene = Scene::new();
    let hash = "00ff".repeat(16);
    let none = Arc::new(opened(&Environments::default()).await);
    assert!(why(none.get(&hash, OWN).await).contains("hotlease agent --environments"));
    let images = scene.images().await;
    let bad = images.get("../../etc/passwd", OWN).await.map(drop);
    assert!(matches!(bad, Err(Rejection::BadRequest { .. })), "{bad:?}");
    let unknown = why(images.get(&hash, OWN).await);
    for part in ["hotlease env pack", "store", hash.as_str()] {
        assert!(unknown.contains(part), "{unknown:?} lacks {part:?}");
    }
    fs::write(scene.stored(&hash), "no image").expect("a file");
    assert!(why(images.get(&hash, OWN).await).contains("is damaged"));
    let Some(packed) = scene.packed("venv") else {
        return;
    };
    let small = Environments {
        stores: vec![scene.path("store")],
        cache: scene.path("small"),
        cache_bytes: 100,
        ..Environments::default()
    };
    let small = Arc::new(opened(&small).await);
    assert!(why(small.get(&packed, OWN).await).contains("--environment-cache-bytes"));
    if let Some(image) = got(&images, &packed).await {
        let check = |program: &str| image.check(Path::new(program), InterpreterCheck::Exists);
        assert!(check("bin/python").is_ok());
        let missing = check("bin/python9");
        assert!(
            matches!(&missing, Err(Rejection::NoEnvironment { why, .. }) if why.contains("bin/python9")),
            "{missing:?}"
        );
    }
    // A refusal is not cached: the next request looks for the environment again.
    fs::remove_file(scene.stored(&hash)).expect("removed");
    assert!(why(images.get(&hash, OWN).await).contains("hotlease env pack"));
}

#[tokio::test]
async fn the_author_of_an_image_chooses_no_folder_of_the_host() {
    let scene = Scene::new();
    let images = scene.images().await;
    for named in ["project/data/notes", "project/bin/notes", "project/data/python3"] {
        let Some(packed) = scene.packed_with(&named.replace('/', "-"), named) else {
            return;
        };
        let Some(image) = got(&images, &packed).await else {
            return;
        };
        for check in [InterpreterCheck::Exists, InterpreterCheck::Trusted] {
            let refused = image.check(Path::new("bin/python"), check);
            assert!(
                matches!(&refused, Err(Rejection::NoEnvironment { why, .. }) if why.contains(named)),
                "{named}: {refused:?}"
            );
        }
    }
}

#[tokio::test]
async fn folders_are_shown_only_around_a_python_with_its_library() {
    let scene = Scene::new();
    let images = scene.images().await;
    let Some(packed) = scene.packed("venv") else { return };
    let Some(image) = got(&images, &packed).await else {
        return;
    };
    let check = |check| image.check(Path::new("bin/python"), check);
    assert_eq!(check(InterpreterCheck::Exists), Ok(()));
    let refused = check(InterpreterCheck::Trusted)
        .expect_err("there is no library")
        .to_string();
    assert!(
        refused.contains("standard library") && refused.contains("--sandbox-show"),
        "{refused}"
    );
    let library = scene.path("host/lib/python3.11");
    fs::create_dir_all(&library).expect("made");
    fs::write(library.join("os.py"), "").expect("a file");
    assert_eq!(check(InterpreterCheck::Trusted), Ok(()));
    // A stranger's link in the place of the interpreter.
    let (python, elsewhere) = (scene.path("host/bin/python3"), scene.path("project/bin/tool"));
    fs::create_dir_all(elsewhere.parent().expect("a folder")).expect("made");
    fs::rename(&python, &elsewhere).expect("moved");
    symlink(&elsewhere, &python).expect("a link");
    assert_eq!(check(InterpreterCheck::Exists), Ok(()));
    assert!(check(InterpreterCheck::Trusted).is_err());
}

#[tokio::test]
async fn a_refusal_does_not_tell_what_is_at_a_path_of_the_host() {
    let scene = Scene::new();
    let images = scene.images().await;
    let Some(packed) = scene.packed("venv") else { return };
    let Some(image) = got(&images, &packed).await else {
        return;
    };
    let python = scene.path("host/bin/python3");
    let checks =
        || [InterpreterCheck::None, InterpreterCheck::Exists].map(|check| image.check(Path::new("bin/python"), check));
    fs::remove_file(&python).expect("removed");
    let missing = checks();
    fs::create_dir(&python).expect("made");
    assert_eq!(checks(), missing);
    assert!(missing[0].is_ok() && missing[1].is_err(), "{missing:?}");
}

#[tokio::test]
async fn leases_share_a_mount_that_goes_with_the_last() {
    let scene = Scene::new();
    let Some(hash) = scene.packed("venv") else { return };
    let images = scene.images().await;
    let (one, two) = tokio::join!(images.get(&hash, OWN), images.get(&hash, OWN));
    let (Ok(one), Ok(two)) = (one, two) else {
        assert!(got(&images, &hash).await.is_none(), "it was mounted a moment later");
        return;
    };
    assert!(Arc::ptr_eq(&one, &two), "each has mounted it");
    drop(one);
    let three = images.get(&hash, OWN).await.expect("it is there");
    assert!(Arc::ptr_eq(&two, &three));
    let file = two.at().join("pyvenv.cfg");
    assert!(file.exists());
    drop((two, three));
    tokio::time::timeout(LIMIT, images.all_unmounted())
        .await
        .expect("it is unmounted");
    assert!(!file.exists());
    // The next request mounts it again, without a fetch.
    fs::remove_file(scene.stored(&hash)).expect("removed");
    assert!(images.get(&hash, OWN).await.is_ok());
    tokio::time::timeout(LIMIT, images.all_unmounted())
        .await
        .expect("it is not locked");
}

/// File system that is mounted at a path, according to the kernel.
fn kind_at(at: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the kernel tells");
    let at = at.display().to_string();
    let line = table.lines().find(|line| line.contains(&at)).expect("it is mounted");
    let (_, kind) = line.split_once(" - ").expect("a kind");
    kind.split(' ').next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_kernel_reads_no_stranger_s_image() {
    let scene = Scene::new();
    let Some(hash) = scene.packed("venv") else { return };
    let config = Environments {
        stores: vec![scene.path("store")],
        cache: scene.path("cache"),
        ..Environments::default()
    };
    let images = Arc::new(opened(&config).await);
    let of_other = match images.get(&hash, OTHER).await {
        Ok(image) => image,
        Err(refusal) => {
            let text = refusal.to_string();
            assert!(text.contains("--environment-mount any"), "{text}");
            return eprintln!("skipped: {text}");
        }
    };
    let kind = kind_at(of_other.at());
    assert!(kind.starts_with("fuse"), "{kind}");
    drop(of_other);
    tokio::time::timeout(LIMIT, images.all_unmounted())
        .await
        .expect("it is not locked");
    if nix::unistd::geteuid().is_root() {
        let own = images.get(&hash, OWN).await.expect("as before");
        assert_eq!(kind_at(own.at()), "squashfs", "root trusts itself");
    }
}

#[tokio::test]
async fn a_lease_does_not_wait_for_a_long_fetch_which_goes_on() {
    let scene = Scene::new();
    let Some(hash) = scene.packed("venv") else { return };
    let images = scene.images().await;
    if got(&images, &hash).await.is_none() {
        return;
    }
    tokio::time::timeout(LIMIT, images.all_unmounted())
        .await
        .expect("it is not locked");
    let mut hasty = Arc::into_inner(images).expect("no other reference is left");
    hasty.wait = Duration::from_millis(20);
    let images = Arc::new(hasty);
    // A process that fetches an image holds this lock. Here the test holds it, in place of another process of the node.
    let file = File::create(scene.path("cache/work").join(&hash)).expect("a file");
    let fetching = Flock::lock(file, FlockArg::LockExclusive).expect("it is not locked");
    for _ in 0..3 {
        let refused = images.get(&hash, OWN).await.map(drop);
        assert!(
            matches!(&refused, Err(Rejection::Unavailable { what }) if what.contains("ask again")),
            "{refused:?}"
        );
        assert_eq!(images.table().len(), 1, "each has begun to fetch it");
    }
    let mut coming = match images.find(hash.parse().expect("a hash"), OWN) {
        Ok(FoundImage::Mounting(coming)) => coming,
        _ => panic!("it is not on its way"),
    };
    drop(fetching);
    let outcome = tokio::time::timeout(LIMIT, coming.wait_for(Option::is_some)).await;
    let outcome = outcome.expect("it arrives").expect("its thread lives").clone();
    let image = outcome.expect("it is decided").expect("it is mounted");
    let again = images.get(&hash, OWN).await.expect("it is there");
    assert!(Arc::ptr_eq(&image, &again));
}

#[tokio::test]
async fn there_is_a_bound_of_fetches_at_a_time() {
    let scene = Scene::new();
    let images = scene.images().await;
    let (_told, coming) = watch::channel(None);
    for digit in 0..COMING_MAX {
        let id = format!("{digit:064x}").parse().expect("a hash");
        let entry = ImageEntry::Mounting(coming.clone(), OTHER.tenant.into());
        images.table().insert(id, entry);
    }
    let more = images.get(&"ab".repeat(32), OWN).await.map(drop);
    assert!(matches!(more, Err(Rejection::TooMany { limit: 8, .. })), "{more:?}");
    // An entry whose thread has failed is removed.
    drop(_told);
    assert!(why(images.get(&"ab".repeat(32), OWN).await).contains("hotlease env pack"));
}

#[test]
fn tenants_that_fetch_all_that_they_may_leave_places_to_others() {
    let (_told, coming) = watch::channel(None);
    let mut table = HashMap::new();
    let mut fetch = |tenant: &str, is_own: bool| {
        let is_let_in = check_place(&table, ImageRequester { tenant, is_own }).is_ok();
        if is_let_in {
            let id = format!("{:064x}", table.len()).parse().expect("a hash");
            table.insert(id, ImageEntry::Mounting(coming.clone(), tenant.into()));
        }
        is_let_in
    };
    for (tenant, most) in [("ann", 4), ("bob", 2), ("eve", 1)] {
        let count = (0..COMING_MAX).take_while(|_| fetch(tenant, false)).count();
        assert_eq!(count, most, "{tenant}");
    }
    assert!(fetch("dan", false), "three tenants together keep out a fourth");
    assert!(!fetch(OWN.tenant, true), "there is a bound for all");
}
