//! Memory of another process of this user.

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::IoSliceMut;

/// Copies `into.len()` bytes from an address in another process, or in this process, and afterwards the word at another
/// address there, which it returns. The kernel checks whether this process may inspect the other process.
pub(super) fn read(process: u32, address: u64, into: &mut [u8], word_address: u64) -> Result<u64, Errno> {
    let base = |address| usize::try_from(address).map_err(|_| Errno::EINVAL);
    let process = i32::try_from(process).map_err(|_| Errno::EINVAL)?;
    let (mut word, length) = ([0; 8], into.len());
    let places = [(base(address)?, length), (base(word_address)?, word.len())];
    // The kernel copies one after the other. Between them it counts references of pages, with full barriers.
    let copied = process_vm_readv(
        Pid::from_raw(process),
        &mut [IoSliceMut::new(into), IoSliceMut::new(&mut word)],
        &places.map(|(base, len)| RemoteIoVec { base, len }),
    )?;
    match copied == length + word.len() {
        true => Ok(u64::from_ne_bytes(word)),
        // A part of the memory does not exist there.
        false => Err(Errno::EFAULT),
    }
}
