//! Data that workers run from, read and write: function libraries, environments, object storage, and saved states.

pub(crate) mod code;
pub(crate) mod image_transfer;
pub(crate) mod images;
pub(crate) mod storage;
pub(crate) mod swap;
