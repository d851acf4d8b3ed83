//! Attempts at files of the user, of neighbours, of the system, and of images that many sandboxes share.

use crate::attempt::{AttemptResult, Capability, StopReason, Threat, attempts, denied, with_place};
use crate::residue::{ATTEMPT, FOLDERS};
use crate::syscall::{judge_senseless_call, kernel};
use crate::variables::{path, text};
use nix::errno::Errno;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

pub(super) const THEME: Threat = Threat {
    threat: "read or change files that were not given: of the user, of neighbours, of the system, of shared images",
    attempts: attempts! {
        "file-read", "read the neighbour's private file", file_read, by_secret();
        "file-write", "overwrite the neighbour's file", file_write, by_effect();
        "file-remove", "remove the file that the neighbour holds a lock on", file_remove, by_effect();
        "file-symlink", "read the neighbour's file through a symbolic link of its own", file_symlink, by_secret();
        "file-hardlink", "link the neighbour's file to a name of its own", file_hardlink, by_effect();
        "file-dotdot", "climb from its own folder to the neighbour's by ..", file_dotdot, by_secret();
        "file-cwd", "climb from where it was started, which may be outside its root folder", file_cwd, by_secret();
        "file-list", "see the neighbour's folder in a listing", file_list;
        "file-by-handle", "open a file by its handle, which passes by all folders (open_by_handle_at)",
            file_by_handle, with_capability(Capability::DacReadSearch);
        "home-list", "list the home folder of the agent's user", home_list, needs("files in it");
        "home-keys", "read keys and settings in the home folder, in which its Python program stands",
            home_keys, needs("such files in it");
        "shadow-read", "read the system's password hashes",
            shadow_read, with_capability(Capability::DacReadSearch), needs("/etc/shadow");
        "system-create", "create a file in a folder of the system",
            system_create, by_effect(), with_capability(Capability::DacOverride);
        "system-write", "open a file of the system for writing", system_write, with_capability(Capability::DacOverride);
        "image-create", "create a file in a shared image", image_create, by_effect();
        "image-write", "overwrite a file in a shared image", image_write, by_effect();
        "image-symlink", "follow a symbolic link in a shared image that leads out of it", image_symlink, by_secret();
        "image-rename", "rename a file in a shared image", image_rename, by_effect();
        "image-mode", "make a file in a shared image writable, then write it", image_mode, by_effect();
        "suid-in-tmp", "make a set-user-id program in its temporary folder",
            suid_in_tmp, needs("a temporary folder without nosuid");
        "file-capability", "give a file of its own capabilities", file_capability, with_capability(Capability::Setfcap);
        "chown", "give a file of its own to another user", chown, with_capability(Capability::Chown);
    },
};

/// Path in the attempt's temporary folder for a file of this attempt. If the file is left there, it is found as
/// residue.
pub(super) fn own_path(suffix: &str) -> Result<PathBuf, StopReason> {
    let token = text("TOKEN")?;
    Ok(std::env::temp_dir().join(format!("hotlease-escape-{token}.{ATTEMPT}{suffix}")))
}

/// Makes a file for this attempt, calls `go` with it, and removes it.
fn with_own_file(suffix: &str, go: impl FnOnce(&Path) -> AttemptResult) -> AttemptResult {
    let file = own_path(suffix)?;
    fs::write(&file, "of the attempt").map_err(with_place("create"))?;
    let outcome = go(&file);
    fs::remove_file(&file)?;
    outcome
}

fn contents(path: impl AsRef<Path>) -> AttemptResult {
    fs::read_to_string(path).map_err(with_place("open"))
}

/// Overwrites an existing file.
fn overwrite(path: impl AsRef<Path>) -> AttemptResult {
    let mut file = OpenOptions::new().write(true).open(path).map_err(with_place("open"))?;
    file.write_all(b"overwritten")?;
    Ok("wrote the file".into())
}

fn file_read() -> AttemptResult {
    contents(path("FILE")?)
}

fn file_write() -> AttemptResult {
    overwrite(path("FILE")?)
}

fn file_remove() -> AttemptResult {
    fs::remove_file(path("LOCK")?)?;
    Ok("removed the file".into())
}

fn file_symlink() -> AttemptResult {
    let link = own_path("-link")?;
    symlink(path("FILE")?, &link).map_err(with_place("symlink"))?;
    let read = contents(&link);
    fs::remove_file(link)?;
    read
}

fn file_hardlink() -> AttemptResult {
    let link = own_path("-link")?;
    fs::hard_link(path("FILE")?, &link).map_err(with_place("link"))?;
    // The link is left, so that the neighbour can notice it; it is removed with the residue.
    Ok("linked the file".into())
}

fn file_dotdot() -> AttemptResult {
    std::env::set_current_dir(std::env::temp_dir()).map_err(with_place("chdir"))?;
    file_cwd()
}

fn file_cwd() -> AttemptResult {
    let mut climbing = PathBuf::new();
    (0..64).for_each(|_| climbing.push(".."));
    let wanted = path("FILE")?;
    contents(climbing.join(wanted.strip_prefix("/").unwrap_or(&wanted)))
}

fn file_list() -> AttemptResult {
    let token = text("NEIGHBOUR_TOKEN")?;
    let mut names = fs::read_dir(std::env::temp_dir())
        .map_err(with_place("open"))?
        .flatten();
    match names.find(|entry| entry.file_name().to_string_lossy().contains(&token)) {
        Some(entry) => Ok(format!("sees {}", entry.path().display())),
        None => denied("not in the listing"),
    }
}

fn file_by_handle() -> AttemptResult {
    // struct file_handle: bytes, type, then up to 128 bytes.
    let mut stopped = StopReason::Denied("no file system here has handles".into());
    for place in [c"/tmp", c"/dev/shm", c"/", c"/usr", c"/proc/self/exe"] {
        let mut handle = [0u32; 34];
        handle[0] = 128;
        let mut mount = 0i32;
        let named = kernel!(
            SYS_name_to_handle_at,
            libc::AT_FDCWD,
            place.as_ptr(),
            handle.as_mut_ptr(),
            &raw mut mount,
            libc::AT_SYMLINK_FOLLOW
        );
        if named.is_err() {
            continue;
        }
        let folder = kernel!(SYS_openat, libc::AT_FDCWD, place.as_ptr(), libc::O_RDONLY)?;
        match kernel!(SYS_open_by_handle_at, folder, handle.as_ptr(), libc::O_PATH) {
            Ok(_) => return Ok(format!("opened {place:?} by its handle")),
            Err(stop) => stopped = stop,
        }
    }
    Err(stopped)
}

fn home_list() -> AttemptResult {
    let home = path("AGENT_HOME")?;
    match fs::read_dir(&home).map_err(with_place("open"))?.flatten().next() {
        Some(entry) => Ok(format!("sees {}", entry.path().display())),
        None => denied("nothing in it"),
    }
}

/// `hotlease sandbox test` mounts the folders that an interpreter needs for an import path that begins with the home
/// folder. This attempt looks for other files of that folder.
fn home_keys() -> AttemptResult {
    let home = path("AGENT_HOME")?;
    let mut stopped = StopReason::Denied("nothing of it is there".into());
    for name in [
        ".ssh",
        ".aws",
        ".config",
        ".netrc",
        ".gitconfig",
        ".bash_history",
        ".bashrc",
        ".profile",
    ] {
        match fs::metadata(home.join(name)) {
            Ok(_) => return Ok(format!("sees {}", home.join(name).display())),
            Err(error) => stopped = with_place("stat")(error),
        }
    }
    Err(stopped)
}

fn shadow_read() -> AttemptResult {
    let shadow = contents("/etc/shadow")?;
    match shadow.is_empty() {
        true => denied("nothing in it"),
        false => Ok(format!("read {} bytes of /etc/shadow", shadow.len())),
    }
}

fn system_create() -> AttemptResult {
    let name = own_path("-system")?;
    let name = name.file_name().unwrap_or_default();
    let mut stopped = StopReason::Denied("none of them is there".into());
    // Leaves out the folders for temporary files, which are at the beginning of the list and which another attempt
    // tries.
    for folder in FOLDERS
        .iter()
        .rev()
        .take_while(|folder| !folder.starts_with("/run/lock"))
    {
        match fs::write(Path::new(folder).join(name), "left") {
            Ok(()) => return Ok(format!("created a file in {folder}")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => stopped = with_place(folder)(error),
        }
    }
    Err(stopped)
}

fn system_write() -> AttemptResult {
    let mut stopped = StopReason::Denied("none of them is there".into());
    // Only opens the files, and writes nothing.
    for file in [
        "/etc/passwd",
        "/etc/ld.so.preload",
        "/etc/ld.so.cache",
        "/etc/hosts",
        "/bin/sh",
        "/usr/bin/env",
    ] {
        match OpenOptions::new().write(true).open(file) {
            Ok(_) => return Ok(format!("may write {file}")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => stopped = with_place(file)(error),
        }
    }
    Err(stopped)
}

fn image_create() -> AttemptResult {
    fs::write(path("IMAGE")?.join("created"), "left")?;
    Ok("created a file".into())
}

fn image_write() -> AttemptResult {
    overwrite(path("IMAGE")?.join("module.py"))
}

fn image_symlink() -> AttemptResult {
    let image = path("IMAGE")?;
    contents(image.join("relative")).or_else(|_| contents(image.join("absolute")))
}

fn image_rename() -> AttemptResult {
    let image = path("IMAGE")?;
    fs::rename(image.join("module.py"), image.join("other.py"))?;
    Ok("renamed a file".into())
}

fn image_mode() -> AttemptResult {
    let file = path("IMAGE")?.join("module.py");
    fs::set_permissions(&file, Permissions::from_mode(0o666)).map_err(with_place("chmod"))?;
    overwrite(file)
}

/// Whether the file system of this path has `ST_NOSUID`.
fn nosuid(path: &Path) -> Result<bool, StopReason> {
    let flags = nix::sys::statvfs::statvfs(path)?.flags();
    Ok(flags.contains(nix::sys::statvfs::FsFlags::ST_NOSUID))
}

fn suid_in_tmp() -> AttemptResult {
    with_own_file("-suid", |file| {
        fs::set_permissions(file, Permissions::from_mode(0o4755)).map_err(with_place("chmod"))?;
        let mode = fs::metadata(file)?.permissions().mode();
        match mode & 0o4000 != 0 && !nosuid(file)? {
            true => Ok("every user who runs it becomes this user".into()),
            false => denied("mounted nosuid"),
        }
    })
}

fn file_capability() -> AttemptResult {
    with_own_file("-caps", |file| {
        let name = std::ffi::CString::new(file.as_os_str().as_bytes()).expect("a path has no null byte");
        // struct vfs_cap_data, version 2: CAP_NET_RAW, effective.
        let value = [0x0200_0001u32, 1 << 13, 0, 0, 0];
        let set = kernel!(
            SYS_setxattr,
            name.as_ptr(),
            c"security.capability".as_ptr(),
            value.as_ptr(),
            20,
            0
        );
        judge_senseless_call("setting a file's capabilities", set, &[Errno::EOPNOTSUPP])
    })
}

fn chown() -> AttemptResult {
    with_own_file("-owner", |file| {
        let other = nix::unistd::Uid::from_raw(nix::unistd::getuid().as_raw() + 1);
        nix::unistd::chown(file, Some(other), None).map_err(with_place("chown"))?;
        Ok(format!("gave a file to user {other}"))
    })
}
