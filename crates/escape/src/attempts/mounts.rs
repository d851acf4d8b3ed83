//! Attempts at mounts, root folders and control groups.

use super::files::own_path;
use super::kernel::judge_argument_errors;
use crate::attempt::{AttemptResult, Capability, StopReason, Threat, attempts, with_place};
use crate::syscall::kernel;
use crate::variables::path;
use std::ffi::{CStr, CString};
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub(super) const THEME: Threat = Threat {
    threat: "change what is mounted, leave its root folder or its control group",
    attempts: attempts! {
        "mount-tmpfs", "mount a file system of its own", mount_tmpfs, with_capability(Capability::SysAdmin);
        "mount-proc", "mount /proc anew, without what was hidden in it",
            mount_proc, with_capability(Capability::SysAdmin);
        "mount-bind", "mount a folder at another place (bind)", mount_bind, with_capability(Capability::SysAdmin);
        "image-remount", "make the mount of a shared image writable, then write it",
            image_remount, by_effect(), need_not_succeed();
        "umount", "unmount what hides the host", umount, with_capability(Capability::SysAdmin);
        "pivot-root", "exchange its root folder (pivot_root)", pivot_root, with_capability(Capability::SysAdmin);
        "open-tree", "copy a tree of mounts, and move it (open_tree, move_mount)",
            open_tree, with_capability(Capability::SysAdmin), needs("Linux 5.2");
        "fsopen", "make a file system by the newer calls (fsopen, fsmount)",
            fsopen, with_capability(Capability::SysAdmin), needs("Linux 5.2");
        "mount-setattr", "change a mount's attributes (mount_setattr)",
            mount_setattr, with_capability(Capability::SysAdmin), needs("Linux 5.12");
        "chroot", "leave a root folder by entering another (chroot), and read the neighbour's file",
            chroot, by_secret(), with_capability(Capability::SysChroot);
        "cgroup-mount", "mount control groups, whose release agent runs outside",
            cgroup_mount, with_capability(Capability::SysAdmin), needs("control groups, version 1");
        "cgroup-leave", "move to the control group of everybody",
            cgroup_leave, with_capability(Capability::DacOverride), needs("control groups");
        "cgroup-limits", "open its control group's limits for writing",
            cgroup_limits, with_capability(Capability::DacOverride), needs("control groups");
    },
};

/// Makes a folder for this attempt, calls `go` with it, and removes it.
fn at_own_folder(go: impl FnOnce(&CStr, &Path) -> AttemptResult) -> AttemptResult {
    let folder = own_path("-mount")?;
    fs::create_dir(&folder).map_err(with_place("mkdir"))?;
    let name = CString::new(folder.as_os_str().as_bytes()).expect("a path has no null byte");
    let outcome = go(&name, &folder);
    fs::remove_dir(&folder)?;
    outcome
}

fn mount(what: &CStr, kind: &CStr, flags: u64, data: &CStr) -> AttemptResult {
    at_own_folder(|name, _| {
        kernel!(
            SYS_mount,
            what.as_ptr(),
            name.as_ptr(),
            kind.as_ptr(),
            flags,
            data.as_ptr()
        )?;
        kernel!(SYS_umount2, name.as_ptr(), libc::MNT_DETACH)?;
        Ok(format!("mounted {kind:?}"))
    })
}

fn mount_tmpfs() -> AttemptResult {
    mount(c"none", c"tmpfs", 0, c"size=4k")
}

fn mount_proc() -> AttemptResult {
    mount(c"none", c"proc", 0, c"")
}

fn mount_bind() -> AttemptResult {
    mount(c"/usr", c"", libc::MS_BIND, c"")
}

fn image_remount() -> AttemptResult {
    let image = path("IMAGE")?;
    let name = CString::new(image.as_os_str().as_bytes()).expect("a path has no null byte");
    let flags = libc::MS_REMOUNT | libc::MS_BIND;
    kernel!(SYS_mount, 0, name.as_ptr(), 0, flags, 0)?;
    fs::write(image.join("module.py"), "overwritten").map_err(with_place("write"))?;
    Ok("wrote the image".into())
}

fn umount() -> AttemptResult {
    // The kernel checks the rights first. Then it refuses to expire the root folder (MNT_EXPIRE) as an invalid request.
    let result = kernel!(SYS_umount2, c"/".as_ptr(), libc::MNT_EXPIRE);
    judge_argument_errors("umount", result)
}

fn pivot_root() -> AttemptResult {
    judge_argument_errors("pivot_root", kernel!(SYS_pivot_root, c"/".as_ptr(), c"/".as_ptr()))
}

fn open_tree() -> AttemptResult {
    const OPEN_TREE_CLONE: i32 = 1;
    kernel!(SYS_open_tree, libc::AT_FDCWD, c"/".as_ptr(), OPEN_TREE_CLONE)?;
    Ok("has a copy of the root folder's mount".into())
}

fn fsopen() -> AttemptResult {
    kernel!(SYS_fsopen, c"tmpfs".as_ptr(), 0)?;
    Ok("may make a file system".into())
}

fn mount_setattr() -> AttemptResult {
    // struct mount_attr: set, clear, propagation, userns. MOUNT_ATTR_RDONLY is cleared at a folder that is no
    // mount.
    let attributes = [0u64, 1, 0, 0];
    let result = kernel!(
        SYS_mount_setattr,
        libc::AT_FDCWD,
        c"/etc".as_ptr(),
        0,
        attributes.as_ptr(),
        32
    );
    judge_argument_errors("mount_setattr", result)
}

fn chroot() -> AttemptResult {
    std::env::set_current_dir("/").map_err(with_place("chdir"))?;
    at_own_folder(|name, _| {
        kernel!(SYS_chroot, name.as_ptr())?;
        // The working directory is now outside the root folder, so that `..` leads up to the real root.
        for _ in 0..64 {
            kernel!(SYS_chdir, c"..".as_ptr())?;
        }
        kernel!(SYS_chroot, c".".as_ptr())?;
        fs::read_to_string(path("FILE")?).map_err(with_place("read"))
    })
}

fn cgroup_mount() -> AttemptResult {
    at_own_folder(|name, folder| {
        // A private hierarchy without controllers, which ends with its mount, so no other process is affected.
        kernel!(
            SYS_mount,
            c"none".as_ptr(),
            name.as_ptr(),
            c"cgroup".as_ptr(),
            0,
            c"none,name=hotlease-escape".as_ptr()
        )?;
        let agent = OpenOptions::new().write(true).open(folder.join("release_agent"));
        kernel!(SYS_umount2, name.as_ptr(), libc::MNT_DETACH)?;
        agent.map_err(with_place("release_agent"))?;
        Ok("may name a program that the kernel starts outside".into())
    })
}

/// Folders of control groups: first of version 2, then of the controllers of version 1.
const GROUPS: [&str; 5] = [
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/unified",
    "/sys/fs/cgroup/pids",
    "/sys/fs/cgroup/memory",
    "/sys/fs/cgroup/cpu",
];

/// Runs `go` with each of these files in each group's folder until one attempt succeeds.
fn in_group(files: &[&str], go: impl Fn(&Path) -> AttemptResult) -> AttemptResult {
    let mut stopped = StopReason::Denied("no control groups to be seen".into());
    for group in GROUPS {
        for file in files {
            let file = Path::new(group).join(file);
            match go(&file) {
                Ok(got) => return Ok(got),
                Err(StopReason::Denied(how)) if how.ends_with("ENOENT") => {}
                Err(stop) => stopped = stop,
            }
        }
    }
    Err(stopped)
}

fn cgroup_leave() -> AttemptResult {
    in_group(&["cgroup.procs"], |file| {
        OpenOptions::new()
            .write(true)
            .open(file)
            .and_then(|mut file| std::io::Write::write_all(&mut file, b"0"))
            .map_err(with_place(file.display()))?;
        Ok(format!("moved itself by {}", file.display()))
    })
}

fn cgroup_limits() -> AttemptResult {
    let files = ["cgroup.subtree_control", "memory.limit_in_bytes", "notify_on_release"];
    in_group(&files, |file| {
        OpenOptions::new()
            .write(true)
            .open(file)
            .map_err(with_place(file.display()))?;
        Ok(format!("may write {}", file.display()))
    })
}
