//! Attempts at the kernel's keyrings.

use crate::attempt::{AttemptResult, StopReason, Threat, attempts, denied, with_place};
use crate::syscall::kernel;
use crate::variables::text;
use std::ffi::CString;
use std::fs;

pub(super) const THEME: Threat = Threat {
    threat: "find, read or leave keys in the kernel's keyrings",
    attempts: attempts! {
        "keyring-user", "find the neighbour's key in the user's keyring, and read it",
            keyring_user, by_secret(), needs("the kernel's keyrings");
        "keyring-request", "link the user's keyring into its own, and ask for the neighbour's key by request_key",
            keyring_request, by_secret(), needs("the kernel's keyrings");
        "keyring-session", "read a key from the session keyring that the agent came with",
            keyring_session, by_secret(), needs("the kernel's keyrings");
        "keyring-add", "leave a key in the user's keyring", keyring_add, by_effect(), needs("the kernel's keyrings");
        "keyring-new", "have a keyring at all", keyring_new, needs("the kernel's keyrings");
        "proc-keys", "list keys in /proc/keys", proc_keys, needs("the kernel's keyrings");
    },
};

const KEYCTL_JOIN_SESSION_KEYRING: i32 = 1;
const KEYCTL_LINK: i32 = 8;
const KEYCTL_SEARCH: i32 = 10;
const KEYCTL_READ: i32 = 11;
const PROCESS_KEYRING: i32 = -2;
const SESSION_KEYRING: i32 = -3;
const USER_KEYRING: i32 = -4;

fn description(name: &str) -> Result<CString, StopReason> {
    Ok(CString::new(text(name)?).expect("a variable has no null byte"))
}

fn read(key: libc::c_long) -> AttemptResult {
    let mut read = [0u8; 64];
    let count = kernel!(SYS_keyctl, KEYCTL_READ, key, read.as_mut_ptr(), read.len())?;
    Ok(String::from_utf8_lossy(&read[..(count as usize).min(read.len())]).into_owned())
}

fn search(keyring: i32, name: &str) -> AttemptResult {
    let name = description(name)?;
    read(kernel!(
        SYS_keyctl,
        KEYCTL_SEARCH,
        keyring,
        c"user".as_ptr(),
        name.as_ptr(),
        0
    )?)
}

fn keyring_user() -> AttemptResult {
    search(USER_KEYRING, "KEY")
}

fn keyring_request() -> AttemptResult {
    let name = description("KEY")?;
    // A process possesses keys that are linked into its own keyring, and may read them.
    kernel!(SYS_keyctl, KEYCTL_LINK, USER_KEYRING, PROCESS_KEYRING)?;
    read(kernel!(SYS_request_key, c"user".as_ptr(), name.as_ptr(), 0, 0)?)
}

fn keyring_session() -> AttemptResult {
    search(SESSION_KEYRING, "AGENT_KEY")
}

fn keyring_add() -> AttemptResult {
    let name = description("LEFT_KEY")?;
    kernel!(
        SYS_add_key,
        c"user".as_ptr(),
        name.as_ptr(),
        c"left".as_ptr(),
        4,
        USER_KEYRING
    )?;
    Ok("added a key".into())
}

fn keyring_new() -> AttemptResult {
    let ring = kernel!(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0)?;
    Ok(format!("made keyring {ring}"))
}

fn proc_keys() -> AttemptResult {
    let keys = fs::read_to_string("/proc/keys").map_err(with_place("/proc/keys"))?;
    match keys.lines().next() {
        Some(line) => Ok(format!("sees {line}")),
        None => denied("no key in the listing"),
    }
}
