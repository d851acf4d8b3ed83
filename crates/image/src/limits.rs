//! What an image may have at most.

/// Of an image that is packed, fetched or mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the image's file.
    pub image_bytes: u64,
    /// Bytes of all files in it, unpacked: a small image can hold much.
    pub contents_bytes: u64,
    /// Files, folders and links in it.
    pub entries: u64,
}

impl Default for Limits {
    /// 16 GiB, 64 GiB and a million: several times what the largest Python environments have.
    fn default() -> Self {
        Self {
            image_bytes: 16 << 30,
            contents_bytes: 64 << 30,
            entries: 1_000_000,
        }
    }
}
