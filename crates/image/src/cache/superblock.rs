//! Check of an image's first bytes before it is mounted.

use crate::error::{ImageError, io};
use crate::limits::Limits;
use crate::survey::check_limit;
use std::fs::File;
use std::io::Read;
use std::path::Path;

const BYTES: usize = 96;

/// Refuses a file that is no squashfs of version 4, is shorter than it says, or has too many entries.
pub(crate) fn check(path: &Path, limits: &Limits) -> Result<(), ImageError> {
    let mut file = File::open(path).map_err(io("open", path))?;
    let length = file.metadata().map_err(io("look at", path))?.len();
    let mut bytes = [0; BYTES];
    let damaged = |why: &str| ImageError::Damaged {
        path: path.to_owned(),
        why: why.into(),
    };
    if length < BYTES as u64 {
        return Err(damaged("it is too short for a squashfs image"));
    }
    file.read_exact(&mut bytes).map_err(io("read", path))?;
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if &bytes[..4] != b"hsqs" || bytes[28..30] != [4, 0] {
        return Err(damaged("it is no squashfs image of version 4"));
    }
    let used = u64::from(word(40)) | u64::from(word(44)) << 32;
    if used > length {
        return Err(damaged("it is shorter than it says"));
    }
    // Two more than the limit: the root and the manifest.
    check_limit(
        "files, folders and links",
        u64::from(word(4)),
        limits.entries.saturating_add(2),
    )
}
