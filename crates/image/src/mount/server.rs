//! FUSE mounts for root, in which no process of root parses images that any user may have packed.
//!
//! Root opens the connection and mounts it. squashfuse gets the open connection and the open image. It runs as a user
//! that owns nothing, and that no other server of this process runs as, because a server could debug other servers of
//! its user. The user is random: if it were derived from the image's hash, the author of an image could choose it. An
//! attacker that takes over a server can lie about its image, and do what any stranger on the node can do.

use crate::ImageId;
use crate::error::ImageError;
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sys::statvfs::statvfs;
use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

/// Range of user ids of servers: above the user ids of sandboxes, in a range in which neither distributions nor systemd
/// assign users.
const USER_FIRST: u32 = 2_000_065_536;
const USERS: u32 = 65_536;
/// Time limit for a server's first answer, before which it reads the image's first and last blocks.
const UP_WITHIN: Duration = Duration::from_secs(20);
/// Limit of output that is kept, bytes.
const OUTPUT_BYTES_MAX: u64 = 4096;

/// Users of the servers of this process.
static USERS_IN_USE: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// User of one server. It is reserved while this value exists.
struct ServerUser(u32);

impl ServerUser {
    /// Takes the first free user, beginning with number `first` of the range. Returns `None` if all are in use.
    fn take(first: u32) -> Option<Self> {
        let mut taken = USERS_IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut users = (0..USERS).map(|next| USER_FIRST + (first % USERS + next) % USERS);
        users.find(|user| taken.insert(*user)).map(Self)
    }

    fn random() -> Option<Self> {
        // Each `RandomState` has random keys.
        Self::take(RandomState::new().hash_one(0) as u32)
    }
}

impl Drop for ServerUser {
    fn drop(&mut self) {
        let mut taken = USERS_IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        taken.remove(&self.0);
    }
}

/// Mounts an image at a folder, and starts a separate process that serves the mount. The caller must be root.
pub(crate) fn mount(id: &ImageId, image: &Path, at: &Path) -> Result<(), String> {
    let text = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let file = File::open(image).map_err(text("opening the image"))?;
    let connection = File::options().read(true).write(true).open("/dev/fuse");
    let connection = connection.map_err(text("opening /dev/fuse"))?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
        connection.as_raw_fd()
    );
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    nix::mount::mount(
        Some("squashfuse"),
        at,
        Some("fuse.squashfuse"),
        flags,
        Some(options.as_str()),
    )
    .map_err(|errno| format!("mounting: {errno}"))?;
    serve(id, file, connection, at).inspect_err(|_| {
        // No other process uses the mount yet.
        let _ = umount2(at, MntFlags::MNT_DETACH);
    })
}

fn serve(id: &ImageId, file: File, connection: File, at: &Path) -> Result<(), String> {
    let user = ServerUser::random().ok_or("no user is left for a server")?;
    let start = |program: &'static str| {
        let (connection, file) = (connection.try_clone()?, file.try_clone()?);
        Command::new(program)
            // The name is shown in lists of processes.
            .args(["-f", "-o", &format!("ro,fsname={id}"), "/dev/fd/1", "/dev/fd/0"])
            .stdin(connection)
            .stdout(file)
            .stderr(Stdio::piped())
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .current_dir("/")
            // A Ctrl-C for this process must not end the server.
            .process_group(0)
            .uid(user.0)
            .gid(user.0)
            .spawn()
    };
    // The first program is faster, but not installed everywhere.
    let started = match start("squashfuse_ll") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => start("squashfuse"),
        other => other,
    };
    let mut child = started.map_err(|source| {
        let (program, package) = ("squashfuse", "squashfuse");
        ImageError::Tool {
            program,
            package,
            source,
        }
        .to_string()
    })?;
    // Only the server has the connection open now, so the connection ends when the server ends.
    drop((connection, file));
    let (answers, is_up) = mpsc::channel();
    let asked = at.to_owned();
    thread::spawn(move || answers.send(statvfs(&asked).is_ok()));
    if is_up.recv_timeout(UP_WITHIN) == Ok(true) {
        thread::spawn(move || {
            wait_for_output(&mut child);
            drop(user);
        });
        return Ok(());
    }
    // The server may have ended already.
    let _ = child.kill();
    let output = wait_for_output(&mut child);
    Err(format!("squashfuse does not serve it ({output})"))
}

/// Waits for the end of the server. Returns its last output, or its exit status if it printed nothing.
fn wait_for_output(child: &mut Child) -> String {
    let mut output = Vec::new();
    if let Some(mut from) = child.stderr.take() {
        let _ = from.by_ref().take(OUTPUT_BYTES_MAX).read_to_end(&mut output);
        let _ = io::copy(&mut from, &mut io::sink());
    }
    let ended = child.wait();
    let output = String::from_utf8_lossy(&output).trim().replace('\n', "; ");
    match (output.is_empty(), ended) {
        (true, Ok(status)) => status.to_string(),
        _ => output,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_servers_have_one_user() {
        let users: Vec<_> = (0..3).map(|_| ServerUser::take(u32::MAX).expect("free")).collect();
        let [first, second, third] = &users[..] else {
            panic!("three")
        };
        let numbers = BTreeSet::from([first.0, second.0, third.0]);
        assert_eq!(numbers.len(), 3, "{numbers:?}");
        assert!(
            numbers
                .iter()
                .all(|user| (USER_FIRST..USER_FIRST + USERS).contains(user))
        );
        let freed = first.0;
        drop(users);
        assert_eq!(ServerUser::take(freed - USER_FIRST).expect("free").0, freed);
    }
}
