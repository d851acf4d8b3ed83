//! What a process of a sandbox gives up before its program runs: capabilities, files, system calls.

use crate::kernel;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use seccompiler::BpfProgram;
use std::io;
use std::path::{Path, PathBuf};

/// Capabilities that any kernel may have; those that this one does not have are refused.
const CAPABILITIES: u32 = 64;

/// No program that is run from now on gives any capability, whatever its file says.
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

/// It has none from now on.
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
    // SAFETY: asks for the version; no memory is read or written.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            1_u32,
        )
    };
    version > 0
}

/// Of a zygote, whose forks have other files than it has: sockets with names in the abstract, and signals, stay inside.
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

/// Which ports of TCP there are, where the kernel has a Landlock that knows of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tcp {
    /// None.
    None,
    /// This one, to connect to.
    To(u16),
    /// All.
    Any,
}

/// A second line behind the mounts: files are read and run everywhere in the sandbox's root, and written only in `writable`;
/// sockets with names in the abstract, and signals, stay inside; TCP as it says.
pub fn limit_files(writable: &[PathBuf], tcp: Tcp) -> io::Result<RulesetStatus> {
    let failed = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
    let all = AccessFs::from_all(ABI::V6);
    let read = AccessFs::from_read(ABI::V6);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)
        .and_then(|rules| rules.scope(Scope::AbstractUnixSocket | Scope::Signal))
        .map_err(|error| failed(&error))?;
    if tcp != Tcp::Any {
        rules = rules
            .handle_access(AccessNet::from_all(ABI::V6))
            .map_err(|error| failed(&error))?;
    }
    let mut rules = rules.create().map_err(|error| failed(&error))?;
    if let Tcp::To(port) = tcp {
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

/// For good.
pub fn limit_system_calls(filter: &BpfProgram) -> io::Result<()> {
    kernel::limit_system_calls(filter)
}
