//! Byte format of a checkpoint: a header, then records, each with a header of its own.
//!
//! ```text
//! file    byte 0        8         10      16        32      56    64
//!              | HLflowck | version | zeros | file id | zeros | sum |
//! record  byte 0      4      6      8              16    48          56    64
//!              | HLck | kind | zeros | value bytes | key | value sum | sum | value
//! ```
//!
//! Numbers are little-endian. The sum of a record's header covers the file's id and the record's own offset in the
//! file, so that no other bytes are taken for a record: neither a result that is itself a piece of a checkpoint, nor
//! older bytes at the same offset.

use crate::id::MemoKey;
use hotlease_journal::frame::checksum;

/// Length of either header, bytes.
pub(super) const HEADER_BYTES: usize = 64;
const SUM_AT: usize = HEADER_BYTES - 8;
const FILE_MAGIC: [u8; 8] = *b"HLflowck";
/// First bytes of every record.
pub(super) const RECORD_MAGIC: [u8; 4] = *b"HLck";
/// Version of the format.
pub(super) const VERSION: u16 = 1;
const KIND: u16 = 1;

/// Identity of a file: drawn at random when the file is made.
pub(super) type FileId = [u8; 16];

/// Reason why the beginning of a file is not a valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderError {
    /// The bytes are not a checkpoint's header.
    NotACheckpoint,
    /// The version is not known.
    Version(u16),
    /// The header is damaged.
    Damaged,
}

/// Decoded header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub key: MemoKey,
    pub value_bytes: u64,
    pub value_sum: [u8; 8],
}

pub(super) fn encode_file(id: FileId) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&FILE_MAGIC);
    header[8..10].copy_from_slice(&VERSION.to_le_bytes());
    header[16..32].copy_from_slice(&id);
    let sum = checksum(&[&header[..SUM_AT]]);
    header[SUM_AT..].copy_from_slice(&sum);
    header
}

/// Whether these bytes may be the beginning of a header whose rest was never written.
pub(super) fn is_torn_file(bytes: &[u8]) -> bool {
    bytes.len() < HEADER_BYTES && bytes.iter().zip(FILE_MAGIC).all(|(byte, known)| *byte == known)
}

pub(super) fn decode_file(header: &[u8; HEADER_BYTES]) -> Result<FileId, HeaderError> {
    if header[..8] != FILE_MAGIC {
        return Err(HeaderError::NotACheckpoint);
    }
    // Checked before the sum, because another version may have its sum at another offset.
    let version = u16::from_le_bytes([header[8], header[9]]);
    if version != VERSION {
        return Err(HeaderError::Version(version));
    }
    if header[SUM_AT..] != checksum(&[&header[..SUM_AT]]) {
        return Err(HeaderError::Damaged);
    }
    Ok(piece(header, 16))
}

fn piece<const N: usize>(header: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut piece = [0; N];
    piece.copy_from_slice(&header[at..at + N]);
    piece
}

fn record_sum(id: FileId, offset: u64, header: &[u8]) -> [u8; 8] {
    checksum(&[&id, &offset.to_le_bytes(), &header[..SUM_AT]])
}

/// Encodes the header of a record at this offset of a file.
pub(super) fn encode_record(id: FileId, offset: u64, key: MemoKey, value: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&RECORD_MAGIC);
    header[4..6].copy_from_slice(&KIND.to_le_bytes());
    header[8..16].copy_from_slice(&(value.len() as u64).to_le_bytes());
    header[16..48].copy_from_slice(&key.0);
    header[48..56].copy_from_slice(&value_sum(value));
    let sum = record_sum(id, offset, &header);
    header[SUM_AT..].copy_from_slice(&sum);
    header
}

pub(super) fn value_sum(value: &[u8]) -> [u8; 8] {
    checksum(&[value])
}

/// Decodes a record's header. Returns `None` if the bytes are no header, a damaged header, or a header from another
/// offset.
pub(super) fn decode_record(id: FileId, offset: u64, header: &[u8; HEADER_BYTES]) -> Option<RecordHeader> {
    // The check of the magic comes first, because it is quick: in a damaged file every byte may be the beginning of a
    // record.
    if header[..4] != RECORD_MAGIC || header[SUM_AT..] != record_sum(id, offset, header) {
        return None;
    }
    if u16::from_le_bytes([header[4], header[5]]) != KIND || header[6..8] != [0; 2] {
        return None;
    }
    Some(RecordHeader {
        key: MemoKey(piece(header, 16)),
        value_bytes: u64::from_le_bytes(piece(header, 8)),
        value_sum: piece(header, 48),
    })
}
