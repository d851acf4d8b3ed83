//! All objects that contain a neighbour's secret, and the checks whether another process has changed them.

use crate::residue::{NEIGHBOUR, SysvKey, name, sysv_key};
use crate::syscall::kernel;
use nix::fcntl::{Flock, FlockArg};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

/// Contents that attempts try to overwrite.
pub(super) const CANARY: &str = "only the neighbour writes these bytes";

/// Files, sockets, memory and queues of a neighbour.
pub(super) struct Secrets {
    folder: PathBuf,
    memory: Box<[u8; 32]>,
    canary: Box<[u8; 64]>,
    memfd: OwnedFd,
    fifo: File,
    shm: PathBuf,
    sysv_segment: Option<usize>,
    sysv_queue: Option<i32>,
    posix_queue: Option<i32>,
    udp: UdpSocket,
    // Held while this value exists.
    _lock: Flock<File>,
}

/// Listeners to which other processes may try to connect. A thread serves each listener, and sends the secret to every
/// peer.
pub(super) struct Listeners {
    pub(super) tcp: TcpListener,
    pub(super) path: UnixListener,
    pub(super) nameless: UnixListener,
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create_new(true).read(true).write(true).mode(0o600);
    options
}

/// Converts the error of a failed call into an error of the standard library.
fn or_stop(result: Result<libc::c_long, crate::attempt::StopReason>) -> io::Result<libc::c_long> {
    result.map_err(|stop| io::Error::other(format!("{stop:?}")))
}

impl Secrets {
    /// Makes all objects, and adds their locations to `given`.
    pub(super) fn make(
        token: &str,
        secret: &str,
        folder: &Path,
        given: &mut Vec<(&'static str, String)>,
    ) -> io::Result<(Self, Listeners)> {
        let own = name(token, NEIGHBOUR);
        let folder = folder.join(&own);
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        std::env::set_current_dir(&folder)?;
        let mut say = |name, value: String| given.push((name, value));
        let at = |name: &str| folder.join(name).display().to_string();

        private().open("secret")?.write_all(secret.as_bytes())?;
        say("FILE", at("secret"));
        say("FILE_FROM_AGENT", format!("../{own}/secret"));
        let lock = Flock::lock(private().open("lock")?, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, errno)| io::Error::from(errno))?;
        say("LOCK", at("lock"));
        nix::unistd::mkfifo("fifo", nix::sys::stat::Mode::from_bits_truncate(0o600))?;
        // Opened for writing, too, so that the FIFO always has a writer.
        let fifo = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("fifo")?;
        say("FIFO", at("fifo"));

        let mut memory = Box::new([b'-'; 32]);
        let length = secret.len().min(memory.len());
        memory[..length].copy_from_slice(&secret.as_bytes()[..length]);
        say("ADDRESS", (memory.as_ptr() as usize).to_string());
        let mut canary = Box::new([0; 64]);
        canary[..CANARY.len()].copy_from_slice(CANARY.as_bytes());
        say("CANARY", (canary.as_ptr() as usize).to_string());

        let shm = PathBuf::from("/dev/shm").join(&own);
        private().open(&shm)?.write_all(secret.as_bytes())?;
        say("SHM", shm.display().to_string());
        let memfd = nix::sys::memfd::memfd_create(c"secret", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
        nix::unistd::write(&memfd, secret.as_bytes())?;
        say("MEMFD", memfd.as_raw_fd().to_string());

        let sysv_segment = segment(token, secret).ok().map(|(id, address)| {
            say("SYSV_SHM", id.to_string());
            address
        });
        let flags = libc::IPC_CREAT | libc::IPC_EXCL | 0o600;
        let queue = kernel!(SYS_msgget, sysv_key(token, SysvKey::Queue), flags);
        let sysv_queue = queue.ok().map(|id| id as i32);
        if let Some(id) = sysv_queue {
            say("SYSV_QUEUE", id.to_string());
        }
        let posix_queue = posix_queue(&own).ok();
        if posix_queue.is_some() {
            say("MQUEUE", own.clone());
        }
        if add_keys(&own, secret).is_ok() {
            say("KEY", format!("{own}-user"));
            say("AGENT_KEY", format!("{own}-session"));
        }

        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        say("TCP", tcp.local_addr()?.port().to_string());
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        udp.set_nonblocking(true)?;
        say("UDP", udp.local_addr()?.port().to_string());
        let path = UnixListener::bind("socket")?;
        say("SOCKET", at("socket"));
        let nameless = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&own)?)?;
        say("ABSTRACT", own);
        say("NEIGHBOUR_TOKEN", token.to_owned());
        say("PID", std::process::id().to_string());

        let secrets = Self {
            folder,
            memory,
            canary,
            memfd,
            fifo,
            shm,
            sysv_segment,
            sysv_queue,
            posix_queue,
            udp,
            _lock: lock,
        };
        Ok((secrets, Listeners { tcp, path, nameless }))
    }

    /// Harm that other processes have done to the neighbour's objects.
    pub(super) fn harm(&mut self, secret: &str) -> Vec<String> {
        let mut harm = Vec::new();
        let mut unless = |holds: bool, what: &str| {
            if !holds {
                harm.push(what.to_owned());
            }
        };
        // SAFETY: both live as long as `self`; volatile, because another process may have changed them.
        let (memory, canary) = unsafe {
            (
                std::ptr::read_volatile(&raw const *self.memory),
                std::ptr::read_volatile(&raw const *self.canary),
            )
        };
        unless(memory == secret.as_bytes(), "its memory was written");
        unless(canary.starts_with(CANARY.as_bytes()), "its memory was written");
        unless(is_whole(&self.folder.join("secret"), secret), "its file was changed");
        unless(
            fs::metadata(self.folder.join("secret")).is_ok_and(|about| about.nlink() == 1),
            "its file got another name",
        );
        unless(self.folder.join("lock").exists(), "its lock file was removed");
        unless(is_whole(&self.shm, secret), "its segment in /dev/shm was changed");
        unless(self.memfd_is(secret), "its nameless memory was changed");
        let mut chunk = [0; 64];
        unless(self.fifo.read(&mut chunk).is_err(), "its FIFO was written");
        unless(self.udp.recv(&mut chunk).is_err(), "a datagram came");
        if let Some(address) = self.sysv_segment {
            // SAFETY: attached for as long as this lives, and a page long.
            let now = unsafe { std::ptr::read_volatile(address as *const [u8; 32]) };
            unless(now == secret.as_bytes(), "its System V segment was changed");
        }
        if let Some(id) = self.sysv_queue {
            let mut message = [0u64; 16];
            match kernel!(SYS_msgrcv, id, message.as_mut_ptr(), 64, 0, libc::IPC_NOWAIT) {
                Err(stop) if format!("{stop:?}").contains("ENOMSG") => {}
                Err(_) => unless(false, "its System V queue was removed"),
                Ok(_) => unless(false, "a message is in its System V queue"),
            }
        }
        if let Some(fd) = &self.posix_queue {
            // struct mq_attr: flags, longest queue, longest message, messages now.
            let mut about = [0i64; 8];
            let known = kernel!(SYS_mq_getsetattr, *fd, 0, about.as_mut_ptr());
            unless(known.is_ok() && about[3] == 0, "a message is in its POSIX queue");
        }
        harm
    }

    fn memfd_is(&self, secret: &str) -> bool {
        let mut now = [0; 32];
        nix::sys::uio::pread(&self.memfd, &mut now, 0).is_ok() && now == secret.as_bytes()
    }
}

fn is_whole(file: &Path, secret: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|now| now == secret)
}

/// Makes a System V segment with the secret, and attaches it. Returns its id and address.
fn segment(token: &str, secret: &str) -> io::Result<(i32, usize)> {
    let flags = libc::IPC_CREAT | libc::IPC_EXCL | 0o600;
    let id = or_stop(kernel!(SYS_shmget, sysv_key(token, SysvKey::Segment), 4096, flags))?;
    let address = or_stop(kernel!(SYS_shmat, id, 0, 0))? as usize;
    let mut bytes = [b'-'; 32];
    let length = secret.len().min(bytes.len());
    bytes[..length].copy_from_slice(&secret.as_bytes()[..length]);
    // SAFETY: attached just now for writing, and a page long.
    unsafe { std::ptr::write_volatile(address as *mut [u8; 32], bytes) };
    Ok((id as i32, address))
}

fn posix_queue(name: &str) -> io::Result<i32> {
    let name = CString::new(name)?;
    // struct mq_attr: flags, longest queue, longest message.
    let about = [0i64, 4, 64, 0, 0, 0, 0, 0];
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
    Ok(or_stop(kernel!(SYS_mq_open, name.as_ptr(), flags, 0o600, about.as_ptr()))? as i32)
}

/// Adds a key to the user's keyring, and one to the session's keyring, which processes started from here share. The
/// keys expire after a while; removing the residue removes them earlier.
fn add_keys(own: &str, secret: &str) -> io::Result<()> {
    const KEYCTL_GET_KEYRING_ID: i32 = 0;
    const KEYCTL_SETPERM: i32 = 5;
    const KEYCTL_LINK: i32 = 8;
    const KEYCTL_SET_TIMEOUT: i32 = 15;
    const PROCESS_KEYRING: i32 = -2;
    const SESSION_KEYRING: i32 = -3;
    const USER_KEYRING: i32 = -4;
    // The session of a service has no link to the user's keyring. Without this link, no process would possess the
    // keys of that keyring, so none could change them.
    or_stop(kernel!(SYS_keyctl, KEYCTL_LINK, USER_KEYRING, PROCESS_KEYRING))?;
    // A process without its own session keyring gets the user's session keyring by this call. Without the call, it
    // would get a new keyring.
    let session = or_stop(kernel!(SYS_keyctl, KEYCTL_GET_KEYRING_ID, SESSION_KEYRING, 0))?;
    for (ring, whose) in [(libc::c_long::from(USER_KEYRING), "user"), (session, "session")] {
        let name = CString::new(format!("{own}-{whose}"))?;
        let bytes = secret.as_bytes();
        let key = or_stop(kernel!(
            SYS_add_key,
            c"user".as_ptr(),
            name.as_ptr(),
            bytes.as_ptr(),
            bytes.len(),
            ring
        ))?;
        // Possessor and user have all rights, except that only the possessor may change the attributes.
        or_stop(kernel!(SYS_keyctl, KEYCTL_SETPERM, key, 0x3f1f_0000u32))?;
        or_stop(kernel!(SYS_keyctl, KEYCTL_SET_TIMEOUT, key, 60))?;
    }
    Ok(())
}
