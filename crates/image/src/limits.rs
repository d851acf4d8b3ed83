//! Limits of images.

/// Limits of an image that is packed, fetched or mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Size of the image's file, bytes.
    pub image_bytes: u64,
    /// Size of all files in the image, unpacked, bytes. Even a small image can contain a lot of data.
    pub contents_bytes: u64,
    /// Number of files, folders and links in the image.
    pub entries: u64,
}

impl Default for Limits {
    /// Returns 16 GiB, 64 GiB and a million entries: several times the size of the largest Python environments.
    fn default() -> Self {
        Self {
            image_bytes: 16 << 30,
            contents_bytes: 64 << 30,
            entries: 1_000_000,
        }
    }
}
