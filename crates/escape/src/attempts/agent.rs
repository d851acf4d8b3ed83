//! Attempts at the agent that started the sandbox. In tests, `hotlease sandbox test` takes the place of the agent.

use super::processes::read_memory;
use crate::attempt::{AttemptResult, Capability, StopReason, Threat, attempts, denied, untried, with_place};
use crate::syscall::{judge_senseless_call, kernel};
use crate::variables::{PREFIX, number, path, text};
use nix::errno::Errno;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

pub(super) const THEME: Threat = Threat {
    threat: "reach the agent: its memory, its descriptors, its sockets, what only it was told",
    attempts: attempts! {
        "agent-memory", "read the agent's memory by process_vm_readv", agent_memory, by_secret();
        "agent-environment", "read the agent's environment from /proc", agent_environment;
        "agent-descriptors", "list the agent's descriptors in /proc", agent_descriptors;
        "agent-signal", "send the agent a signal", agent_signal, by_effect();
        "agent-socket", "connect to a socket in the agent's runtime folder", agent_socket, by_secret();
        "agent-folder", "list the agent's runtime folder", agent_folder;
        "inherited-descriptor", "find and read a descriptor that the agent forgot to close",
            inherited_descriptor, by_secret();
        "inherited-folder", "walk out through a folder that the agent forgot to close (openat, fchdir)",
            inherited_folder, by_secret();
        "control-pidfd", "get a pidfd of the agent from the control socket, and signal through it",
            control_pidfd, by_effect(), needs("Linux 6.5");
        "control-descriptors", "send the agent thousands of descriptors over the control socket",
            control_descriptors, by_effect(), need_not_succeed();
        "control-linger", "send the agent sockets whose close waits for their peer (SO_LINGER)",
            control_linger, by_effect();
        "control-buffer", "make the control socket's buffer larger than the system allows (SO_SNDBUFFORCE)",
            control_buffer, with_capability(Capability::NetAdmin);
        "control-interfaces", "ask the control socket, which was made outside, for the network's interfaces there",
            control_interfaces, needs("an interface");
        "control-namespace", "get the network that the control socket was made in (SIOCGSKNS)",
            control_namespace, with_capability(Capability::NetAdmin);
        "parent-trace", "trace the process that it was started by", parent_trace;
        "parent-descriptors", "walk out through a descriptor of the process that it was started by",
            parent_descriptors, by_secret();
        "own-environment", "find a variable of the agent's environment in its own", own_environment, need_not_succeed();
        "own-program", "open its own program for writing through /proc/self/exe",
            own_program, with_capability(Capability::DacOverride);
    },
};

fn agent_memory() -> AttemptResult {
    read_memory(number("AGENT")?, number("AGENT_ADDRESS")?)
}

fn of_agent(entry: &str) -> Result<String, StopReason> {
    Ok(format!("/proc/{}/{entry}", number::<i32>("AGENT")?))
}

fn agent_environment() -> AttemptResult {
    let environment = fs::read(of_agent("environ")?).map_err(with_place("open"))?;
    match environment.is_empty() {
        true => denied("nothing in it"),
        false => Ok(format!("{} bytes of the agent's environment", environment.len())),
    }
}

fn agent_descriptors() -> AttemptResult {
    let count = fs::read_dir(of_agent("fd")?).map_err(with_place("open"))?.count();
    match count {
        0 => denied("nothing in it"),
        count => Ok(format!("sees {count} descriptors of the agent")),
    }
}

fn agent_signal() -> AttemptResult {
    // This signal is ignored by default, so it does no harm to a process that does not count it.
    kernel!(SYS_kill, number::<i32>("AGENT")?, libc::SIGURG)?;
    Ok("kill was taken".into())
}

fn agent_socket() -> AttemptResult {
    let mut socket = UnixStream::connect(path("AGENT_SOCKET")?).map_err(with_place("connect"))?;
    let mut read = String::new();
    socket.read_to_string(&mut read)?;
    Ok(read)
}

fn agent_folder() -> AttemptResult {
    let folder = path("AGENT_SOCKET")?;
    let Some(folder) = folder.parent() else {
        return untried("the agent's socket is in no folder");
    };
    let names: Vec<String> = fs::read_dir(folder)
        .map_err(with_place("open"))?
        .flatten()
        .map(|entry| entry.file_name().display().to_string())
        .collect();
    match names.iter().any(|name| name == "agent.sock") {
        true => Ok(format!("lists {}", names.join(" "))),
        false => denied("another folder has this name here"),
    }
}

/// Open descriptors besides standard input, output and error. The agent passed none of them on purpose.
fn foreign_descriptors() -> Vec<i32> {
    (3..4096)
        .filter(|fd| kernel!(SYS_fcntl, *fd, libc::F_GETFD).is_ok())
        .collect()
}

fn inherited_descriptor() -> AttemptResult {
    let found = foreign_descriptors();
    for fd in &found {
        let mut read = [0u8; 64];
        if let Ok(count @ 1..) = kernel!(SYS_pread64, *fd, read.as_mut_ptr(), read.len(), 0) {
            return Ok(String::from_utf8_lossy(&read[..count as usize]).into_owned());
        }
    }
    denied(format!("{} descriptors above 2, none to be read", found.len()))
}

fn inherited_folder() -> AttemptResult {
    let wanted = text("FILE_FROM_AGENT")?;
    let wanted = std::ffi::CString::new(wanted).expect("a variable has no null byte");
    for fd in foreign_descriptors() {
        if kernel!(SYS_fchdir, fd).is_err() {
            continue;
        }
        let file = kernel!(SYS_openat, libc::AT_FDCWD, wanted.as_ptr(), libc::O_RDONLY)?;
        let mut read = [0u8; 64];
        let count = kernel!(SYS_pread64, file, read.as_mut_ptr(), read.len(), 0)?;
        return Ok(String::from_utf8_lossy(&read[..count as usize]).into_owned());
    }
    denied("no folder among the descriptors")
}

fn control_pidfd() -> AttemptResult {
    const SO_PEERPIDFD: i32 = 77;
    let (mut pidfd, mut length) = (-1i32, 4u32);
    kernel!(
        SYS_getsockopt,
        0,
        libc::SOL_SOCKET,
        SO_PEERPIDFD,
        &raw mut pidfd,
        &raw mut length
    )?;
    kernel!(SYS_pidfd_send_signal, pidfd, libc::SIGURG, 0, 0)?;
    Ok("the signal was taken".into())
}

fn control_descriptors() -> AttemptResult {
    // Sends as many descriptors as fit into one message, in more messages than a socket can buffer.
    let null = fs::File::open("/dev/null").map_err(with_place("/dev/null"))?;
    let fds = vec![null.as_raw_fd(); 253];
    let mut sent = 0;
    for _ in 0..64 {
        let message = [nix::sys::socket::ControlMessage::ScmRights(&fds)];
        let bytes = [std::io::IoSlice::new(b"x")];
        let flags = nix::sys::socket::MsgFlags::MSG_DONTWAIT;
        match nix::sys::socket::sendmsg::<()>(0, &bytes, &message, flags, None) {
            Ok(_) => sent += fds.len(),
            Err(_) => break,
        }
    }
    Ok(format!("sent {sent} descriptors"))
}

/// Longer than the time for which the agent's stand-in waits for a close.
const LINGER_SECONDS: libc::c_int = 60;

fn control_linger() -> AttemptResult {
    let linger = |socket: i32| {
        let value = libc::linger {
            l_onoff: 1,
            l_linger: LINGER_SECONDS,
        };
        kernel!(
            SYS_setsockopt,
            socket,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            &raw const value,
            size_of_val(&value)
        )
    };
    // Any socket shows whether the option is allowed here, even if there is no TCP.
    linger(0)?;
    let connection = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(with_place("bind"))?;
        let mut full = TcpStream::connect(listener.local_addr()?).map_err(with_place("connect"))?;
        let (unread, _) = listener.accept().map_err(with_place("accept"))?;
        linger(full.as_raw_fd())?;
        full.set_nonblocking(true)?;
        while full.write(&[0; 1 << 16]).is_ok() {}
        Ok::<_, StopReason>((full, unread))
    };
    // Both ends of each connection are sent together, so that neither is closed earlier. Closing the full end blocks
    // only if the other end is closed later, so the second pair is sent in the other order.
    let (first, second) = (connection()?, connection()?);
    let ends = [&first.0, &first.1, &second.1, &second.0];
    let fds = ends.map(AsRawFd::as_raw_fd);
    let message = [nix::sys::socket::ControlMessage::ScmRights(&fds)];
    let bytes = [std::io::IoSlice::new(b"x")];
    let flags = nix::sys::socket::MsgFlags::MSG_DONTWAIT;
    nix::sys::socket::sendmsg::<()>(0, &bytes, &message, flags, None).map_err(with_place("sendmsg"))?;
    Ok("sent both ends of two connections".into())
}

fn control_buffer() -> AttemptResult {
    let size = 64 << 20;
    let set = kernel!(
        SYS_setsockopt,
        0,
        libc::SOL_SOCKET,
        libc::SO_SNDBUFFORCE,
        &raw const size,
        4
    );
    judge_senseless_call("SO_SNDBUFFORCE", set, &[])
}

fn control_interfaces() -> AttemptResult {
    // struct ifreq: a name of 16 bytes, and a union, which holds an index here.
    for index in 1..64u32 {
        let mut about = [0u32; 10];
        about[4] = index;
        match kernel!(SYS_ioctl, 0, 0x8910 /* SIOCGIFNAME */, about.as_mut_ptr()) {
            Ok(_) => {}
            Err(StopReason::Denied(how)) if how.ends_with("ENODEV") => continue,
            Err(stop) => return Err(stop),
        }
        let name: Vec<u8> = about[..4].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
        if name != "lo" {
            return Ok(format!("sees {name}"));
        }
    }
    denied("none but lo")
}

fn control_namespace() -> AttemptResult {
    kernel!(SYS_ioctl, 0, 0x894c /* SIOCGSKNS */)?;
    Ok("has a descriptor of the agent's network namespace".into())
}

fn parent_trace() -> AttemptResult {
    kernel!(
        SYS_ptrace,
        libc::PTRACE_SEIZE,
        std::os::unix::process::parent_id(),
        0,
        0
    )?;
    Ok("traces its parent".into())
}

fn parent_descriptors() -> AttemptResult {
    let file = text("FILE_FROM_AGENT")?;
    let folder = format!("/proc/{}/fd", std::os::unix::process::parent_id());
    let mut stopped = StopReason::Denied("no descriptor leads out".into());
    for entry in fs::read_dir(folder).map_err(with_place("open"))?.flatten() {
        match fs::read_to_string(entry.path().join(&file)) {
            Ok(read) => return Ok(read),
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {}
            Err(error) => stopped = error.into(),
        }
    }
    Err(stopped)
}

/// Variables that are allowed in a worker's environment. None is a secret, and none belongs to the agent itself.
const EXPECTED: [&str; 15] = [
    "HOME",
    "HOTLEASE_LIBFABRIC",
    "HOTLEASE_LOG",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "PATH",
    "PWD",
    "RUST_BACKTRACE",
    "SHLVL",
    "TMPDIR",
    "TZ",
    "USER",
    "_",
];

fn own_environment() -> AttemptResult {
    let mut strange = std::env::vars_os().filter_map(|(name, _)| {
        let name = name.to_string_lossy().into_owned();
        // Variables with the number of threads of a library, which is the number of the slot's cores.
        let is_team = name.ends_with("_NUM_THREADS") || name == "VECLIB_MAXIMUM_THREADS";
        (!name.starts_with(PREFIX) && !is_team && !EXPECTED.contains(&name.as_str())).then_some(name)
    });
    match strange.next() {
        Some(name) => Ok(format!("was told {name}")),
        None => denied("only what a worker is to have"),
    }
}

fn own_program() -> AttemptResult {
    let opened = kernel!(SYS_openat, libc::AT_FDCWD, c"/proc/self/exe".as_ptr(), libc::O_WRONLY);
    // The kernel checks the rights before it checks whether the program is running.
    judge_senseless_call("writing its own program", opened, &[Errno::ETXTBSY])
}
