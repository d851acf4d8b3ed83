//! Steps by which a process of a sandbox gives up capabilities, file access and system calls before its program runs.

use crate::kernel;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};
use seccompiler::BpfProgram;
use std::io;
use std::path::{Path, PathBuf};

/// Upper bound of capability numbers. The kernel refuses numbers of capabilities that it does not have.
const CAPABILITIES: u32 = 64;

/// Ensures that no program run from now on gains a capability, even one that its file has.
pub fn forbid_capabilities() -> io::Result<()> {
    for number in 0..CAPABILITIES {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    clear_ambient_capability_set()?;
    set_no_new_privs(true)?;
    Ok(())
}

/// Drops all capabilities of the calling process.
pub fn give_up_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    Ok(set_capabilities(None, sets)?)
}

/// Whether this kernel has Landlock.
pub fn has_landlock() -> bool {
    landlock_version() > 0
}

/// First version of Landlock that can keep connections to abstract Unix sockets inside.
const LANDLOCK_WITH_SCOPES: i64 = 6;

/// Part of a sandbox's policy that a kernel with this version of Landlock cannot enforce; `None` if it enforces all. A
/// sandbox without the host's network has abstract sockets of its own in any case.
pub fn find_lacking(version: i64) -> Option<&'static str> {
    match version {
        ..1 => Some(
            "Landlock, the second line behind mounts (the kernel has none); code in a sandbox with the host's network can \
             connect to the host's abstract Unix sockets",
        ),
        1..LANDLOCK_WITH_SCOPES => Some(
            "abstract Unix sockets of the host: code in a sandbox with the host's network can connect to them (Landlock \
             prevents it from Linux 6.12 on)",
        ),
        _ => None,
    }
}

/// Version of this kernel's Landlock; 0 or less if it has none.
pub fn landlock_version() -> i64 {
    // SAFETY: queries the version; no memory is read or written.
    unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            1_u32,
        )
    }
}

/// Confines a zygote: abstract Unix sockets and signals stay inside. Does not restrict files, because the zygote's
/// forks have other files than the zygote.
pub fn limit_reach() -> io::Result<()> {
    let failed = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::AbstractUnixSocket | Scope::Signal)
        .and_then(Ruleset::create)
        .and_then(RulesetCreated::restrict_self)
        .map_err(|error| failed(&error))
        .map(drop)
}

/// TCP ports that a program may reach, if the kernel's Landlock has rules for TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpRules {
    /// No port.
    None,
    /// May connect to this port only.
    To(u16),
    /// Every port.
    Any,
}

/// Sets up Landlock as a second line of defence behind the mounts. Files may be read and run everywhere in the
/// sandbox's root, and written only in `writable`; abstract Unix sockets and signals stay inside; TCP is limited as
/// `tcp` says.
pub fn limit_files(writable: &[PathBuf], tcp: TcpRules) -> io::Result<RulesetStatus> {
    let failed = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
    let all = AccessFs::from_all(ABI::V6);
    let read = AccessFs::from_read(ABI::V6);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)
        .and_then(|rules| rules.scope(Scope::AbstractUnixSocket | Scope::Signal))
        .map_err(|error| failed(&error))?;
    if tcp != TcpRules::Any {
        rules = rules
            .handle_access(AccessNet::from_all(ABI::V6))
            .map_err(|error| failed(&error))?;
    }
    let mut rules = rules.create().map_err(|error| failed(&error))?;
    if let TcpRules::To(port) = tcp {
        let port = NetPort::new(port, AccessNet::ConnectTcp);
        rules = rules.add_rule(port).map_err(|error| failed(&error))?;
    }
    let devices = (AccessFs::from_file(ABI::V6) & !AccessFs::Execute) | AccessFs::ReadDir;
    let mut allowed = vec![(Path::new("/"), read), (Path::new("/dev"), devices)];
    allowed.extend(writable.iter().map(|path| match path.is_dir() {
        true => (path.as_path(), all),
        false => (path.as_path(), AccessFs::from_file(ABI::V6)),
    }));
    for (path, access) in allowed {
        let place = PathFd::new(path).map_err(|error| failed(&error))?;
        rules = rules
            .add_rule(PathBeneath::new(place, access))
            .map_err(|error| failed(&error))?;
    }
    let status = rules.restrict_self().map_err(|error| failed(&error))?;
    Ok(status.ruleset)
}

/// Limits the system calls of the calling thread, and of everything that it starts, for good.
pub fn limit_system_calls(filter: &BpfProgram) -> io::Result<()> {
    kernel::limit_system_calls(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_cannot_confine_abstract_sockets_is_reported() {
        for version in -1..LANDLOCK_WITH_SCOPES {
            let lacking = find_lacking(version).expect("something is missing");
            assert!(lacking.contains("abstract"), "version {version}: {lacking}");
            assert_eq!(
                lacking.contains("has none"),
                version < 1,
                "version {version}: {lacking}"
            );
        }
        assert_eq!(find_lacking(LANDLOCK_WITH_SCOPES), None);
    }
}
