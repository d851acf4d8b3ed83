//! Check of an image's first bytes before it is mounted.

use crate::error::{ImageError, io};
use crate::limits::Limits;
use crate::survey::check_limit;
use std::fs::File;
use std::io::Read;
use std::path::Path;

const BYTES: usize = 96;
/// Binary logarithms of the smallest and the largest block of squashfs, bytes. The kernel refuses other sizes.
const BLOCK_LOGS: std::ops::RangeInclusive<u16> = 12..=20;

/// Refuses a file that is no squashfs of version 4, is shorter than its header says, has a block size that squashfs
/// does not allow, or has too many entries. A reader allocates whole blocks: a size of 4 GiB would take the memory of
/// the node, outside of every lease's limit.
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
    let block_log = u16::from_le_bytes([bytes[22], bytes[23]]);
    if !BLOCK_LOGS.contains(&block_log) || word(12) != 1 << block_log {
        return Err(damaged("it has a block size that squashfs does not allow"));
    }
    let used = u64::from(word(40)) | u64::from(word(44)) << 32;
    if used > length {
        return Err(damaged("it is shorter than its header says"));
    }
    // The image may contain two more than the limit: the root and the manifest.
    check_limit(
        "files, folders and links",
        u64::from(word(4)),
        limits.entries.saturating_add(2),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_no_squashfs_has_are_refused() {
        let mut good = [0; BYTES];
        good[..4].copy_from_slice(b"hsqs");
        good[4] = 7;
        good[12..16].copy_from_slice(&(128_u32 << 10).to_le_bytes());
        good[22] = 17;
        good[28] = 4;
        good[40] = BYTES as u8;
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("image");
        let checked = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("written");
            check(&path, &Limits::default())
        };
        checked(&good).expect("good");
        for (what, at, value) in [
            ("another magic number", 0, 0),
            ("another version", 28, 3),
            ("longer than the file", 40, BYTES as u8 + 1),
            ("a block that is no power of two", 12, 255),
            ("a block of 2 GiB", 15, 128),
            ("another logarithm", 22, 18),
            ("a logarithm that is no shift", 23, 1),
        ] {
            let mut bad = good;
            bad[at] = value;
            assert!(matches!(checked(&bad), Err(ImageError::Damaged { .. })), "{what}");
        }
        let (mut small, mut large) = (good, good);
        (small[14], small[13], small[22]) = (0, 8, 11);
        (large[14], large[22]) = (32, 21);
        for bad in [small, large] {
            assert!(checked(&bad).is_err(), "{bad:?}");
        }
        let mut many = good;
        many[4..8].fill(255);
        assert!(matches!(checked(&many), Err(ImageError::Limit { .. })));
        assert!(checked(&good[..BYTES - 1]).is_err());
    }
}
