//! Tests of the file server without a kernel that asks.

use super::answers::read_at;
use super::*;
use fuser::TimeOrNow;
use std::fs;
use std::os::unix::fs::symlink;
use std::time::UNIX_EPOCH;

const ROOT: INodeNo = INodeNo(1);
const MANY: usize = 100;

/// Number of this path, looked up name by name as a kernel does.
fn node(files: &FileServer, path: &Path) -> INodeNo {
    let names = path.iter().skip(1);
    names.fold(ROOT, |at, name| files.found(at, name).expect("it is there").1.ino)
}

#[test]
fn files_are_read_and_written_by_permitted_users() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("data"), b"some bytes").expect("written");
    let own = [folder.path().to_owned()];
    let files = FileServer::new(&own, &own, MANY);
    let parent = node(&files, folder.path());
    let (lasts, found) = files.found(parent, OsStr::new("data")).expect("it is there");
    assert_eq!(
        (lasts, found.size, found.kind),
        (Duration::ZERO, 10, FileType::RegularFile)
    );
    let path = files.path(found.ino).expect("it has one");
    let handle = files.open_at(&path, libc::O_RDWR, None).expect("it may be written");
    let file = files.file(handle).expect("it is open");
    let mut data = [0; 20];
    assert_eq!(read_at(&file, &mut data, 5).expect("read"), 5);
    assert_eq!(&data[..5], b"bytes");
    let to = AttributeChanges {
        mode: Some(0o100_600),
        user: None,
        group: None,
        size: Some(4),
        read: None,
        written: Some(TimeOrNow::SpecificTime(UNIX_EPOCH + Duration::from_secs(7))),
    };
    let (_, changed) = files.apply_changes(found.ino, None, &to).expect("its owner's");
    assert_eq!(
        (changed.size, changed.perm, changed.mtime),
        (4, 0o600, UNIX_EPOCH + Duration::from_secs(7))
    );
    let last = files.describe(found.ino, Some(handle)).expect("open");
    fs::remove_file(&path).expect("removed outside");
    assert_eq!(files.describe(found.ino, None).err(), Some(Errno::ENOENT));
    assert_eq!(
        files.describe(found.ino, Some(handle)).expect("still open").1.size,
        last.1.size
    );
}

#[test]
fn unchanging_entries_are_cached_long_and_links_are_not_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    symlink("/etc/passwd", folder.path().join("link")).expect("made");
    let files = FileServer::new(&[], &[folder.path().to_owned()], MANY);
    let parent = node(&files, folder.path());
    let (lasts, found) = files.found(parent, OsStr::new("link")).expect("it is there");
    assert_eq!((lasts, found.kind), (CACHE_TIME, FileType::Symlink));
    let path = files.path(found.ino).expect("it has one");
    let opened = files.open_at(&path, libc::O_RDONLY, None);
    assert_eq!(
        opened.err(),
        Some(Errno::ELOOP),
        "the machine's kernel follows it, in there"
    );
    let listed = files.open_folder(parent).expect("a folder");
    let entries = files.table().folder(listed.0).expect("it is open");
    let names: Vec<_> = entries.iter().map(|entry| entry.name.as_os_str()).collect();
    assert_eq!(names, [".", "..", "link"]);
}

#[test]
fn no_file_of_the_monitor_s_own_folders_is_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let shown = folder.path().join("shown");
    fs::create_dir(&shown).expect("made");
    fs::write(shown.join("file"), b"bytes").expect("written");
    fs::write(folder.path().join("beside"), b"bytes").expect("written");
    let links = [("processes", "/proc"), ("devices", "/dev"), ("beside", "..")];
    for (name, target) in links {
        symlink(target, shown.join(name)).expect("made");
    }
    let files = FileServer::new(&[], std::slice::from_ref(&shown), MANY);
    let missing = |parent, name: &str| {
        let found = files.found(parent, OsStr::new(name)).err();
        assert_eq!(found, Some(Errno::ENOENT), "{name}");
        let refused = files.beneath(parent, OsStr::new(name)).err();
        assert_eq!(refused, Some(Errno::ENOENT), "{name}, to be made");
    };
    let listed = |node| {
        let handle = files.open_folder(node).expect("a folder");
        let entries = files.table().folder(handle.0).expect("it is open");
        let names = entries.iter().map(|entry| entry.name.to_string_lossy().into_owned());
        names.collect::<Vec<_>>()
    };
    for (own, names) in [("/proc", ["self", "1"]), ("/dev", ["kvm", "null"])] {
        let own = node(&files, Path::new(own));
        names.iter().for_each(|name| missing(own, name));
        assert_eq!(listed(own), [".", ".."]);
    }
    // In a folder that is shown only in part, only the shown part is served.
    let own = node(&files, folder.path());
    missing(own, "beside");
    assert_eq!(listed(own), [".", "..", "shown"]);
    assert!(listed(node(&files, &shown)).contains(&"file".to_owned()));
    // A machine claims that a link is a folder.
    for ((link, _), name) in links.into_iter().zip(["self", "null", "beside"]) {
        let link = node(&files, &shown.join(link));
        assert_eq!(files.found(link, OsStr::new(name)).err(), Some(Errno::ENOTDIR));
        let path = files.path(link).expect("it is served").join(name);
        let opened = files.open_at(&path, libc::O_RDONLY, None);
        assert_eq!(opened.err(), Some(Errno::ENOTDIR), "{}", path.display());
        assert_eq!(files.open_folder(link).err(), Some(Errno::ENOTDIR));
    }
}

#[test]
fn files_open_for_writing_are_not_shared_by_machines() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = ["a", "b"].map(|name| folder.path().join(name));
    let files = FileServer::new(&[], &[folder.path().to_owned()], MANY);
    let open = |path: &Path, flags| {
        fs::write(path, b"bytes").expect("written");
        files.open_at(path, flags, None).expect("its owner's")
    };
    open(&paths[0], libc::O_RDONLY);
    assert_eq!(files.check_shareable(), Ok(()));
    let handles = paths.each_ref().map(|path| open(path, libc::O_RDWR));
    let why = files.check_shareable().expect_err("two are written");
    assert!(
        why.contains("2 files open for writing") && why.contains(&format!("({}, ...)", paths[0].display())),
        "{why}"
    );
    files.table().close(handles[0].0);
    let why = files.check_shareable().expect_err("one is written");
    assert!(
        why.ends_with(&format!("1 file open for writing ({})", paths[1].display())),
        "{why}"
    );
    files.table().close(handles[1].0);
    assert_eq!(files.check_shareable(), Ok(()));
}
