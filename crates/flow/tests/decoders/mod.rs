//! The decoder of checkpoints, with the properties that must hold for any input.
//!
//! Shared by the mutation test and by the fuzz target (`fuzz/`). The format is written down here a second time, by
//! hand, so that files of today can be read tomorrow. Random bytes never contain a valid sum, so the check also runs on
//! a copy of the bytes in which the sums are made valid.

use hotlease_flow::checkpoint::replay_bytes;
use hotlease_flow::{CheckpointError, MemoKey};
use std::path::Path;

/// One decoder.
pub struct Decoder {
    /// Name of the decoder's fuzz target and corpus folder.
    pub name: &'static str,
    /// Checks the properties for these bytes; returns whether they were accepted.
    pub check: fn(&[u8]) -> bool,
    /// Valid encodings, each variant at least once.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All decoders of this crate.
pub const DECODERS: &[Decoder] = &[Decoder {
    name: "checkpoint",
    check,
    seeds,
}];

const HEADER_BYTES: usize = 64;

fn sum(parts: &[&[u8]]) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new();
    parts.iter().for_each(|part| {
        hasher.update(part);
    });
    let mut sum = [0; 8];
    sum.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    sum
}

/// Header of a file.
pub fn file_header(id: [u8; 16]) -> Vec<u8> {
    let mut header = b"HLflowck".to_vec();
    header.extend(1_u16.to_le_bytes());
    header.resize(16, 0);
    header.extend(id);
    header.resize(56, 0);
    let sum = sum(&[&header]);
    header.extend(sum);
    header
}

/// A record at an offset of a file.
pub fn record(id: &[u8], offset: usize, key: MemoKey, value: &[u8]) -> Vec<u8> {
    let mut record = b"HLck".to_vec();
    record.extend(1_u16.to_le_bytes());
    record.resize(8, 0);
    record.extend((value.len() as u64).to_le_bytes());
    record.extend(key.0);
    record.extend(sum(&[value]));
    let sum = sum(&[id, &(offset as u64).to_le_bytes(), &record]);
    record.extend(sum);
    record.extend(value);
    record
}

/// Checks that `bytes` contains each accepted record exactly as it would be written, and that every other byte is
/// reported as damaged. Returns the number of records.
fn replay(bytes: &[u8]) -> Option<usize> {
    let found = replay_bytes(bytes, Path::new("bytes")).ok()?;
    let (mut records, mut at) = (0, HEADER_BYTES);
    let mut damaged_before = false;
    for found in found {
        match found {
            Ok(found) => {
                assert_eq!(found.offset as usize, at, "bytes were passed over in silence");
                let whole = record(&bytes[16..32], at, found.key, &found.value);
                assert_eq!(bytes.get(at..at + whole.len()), Some(&whole[..]), "a wrong result");
                at += whole.len();
                records += 1;
                damaged_before = false;
            }
            Err(CheckpointError::Damaged { offset, bytes, .. }) => {
                assert_eq!(offset as usize, at, "damage somewhere else");
                assert!(bytes > 0 && !damaged_before, "damage is told once");
                at += bytes as usize;
                damaged_before = true;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(at, bytes.len(), "every byte is of a record, or damaged");
    Some(records)
}

/// Returns the bytes as a file with valid sums: wherever a record seems to begin, its sums are made valid.
fn summed(bytes: &[u8]) -> Vec<u8> {
    let mut file = file_header([7; 16]);
    file.extend(bytes.iter().skip(HEADER_BYTES));
    let mut at = HEADER_BYTES;
    while at + HEADER_BYTES <= file.len() {
        if file[at..at + 4] != *b"HLck" {
            at += 1;
            continue;
        }
        let mut length = [0; 8];
        length.copy_from_slice(&file[at + 8..at + 16]);
        let value = at + HEADER_BYTES;
        let end = value
            .saturating_add(u64::from_le_bytes(length) as usize)
            .min(file.len());
        let of_value = sum(&[&file[value..end]]);
        file[at + 48..at + 56].copy_from_slice(&of_value);
        let of_header = sum(&[&[7; 16], &(at as u64).to_le_bytes(), &file[at..at + 56]]);
        file[at + 56..at + 64].copy_from_slice(&of_header);
        at = end.max(at + HEADER_BYTES);
    }
    file
}

fn check(bytes: &[u8]) -> bool {
    let exact = replay(bytes);
    let summed = replay(&summed(bytes)).expect("its header is whole");
    exact.unwrap_or(0) + summed > 0
}

fn seeds() -> Vec<Vec<u8>> {
    let id = [7; 16];
    let mut file = file_header(id);
    let empty = file.clone();
    let values: [&[u8]; 4] = [
        b"",
        b"x",
        b"a result of some length, more than its header has: 0123456789",
        b"HLckHLck",
    ];
    for (number, value) in values.into_iter().enumerate() {
        let next = record(&id, file.len(), MemoKey([number as u8; 32]), value);
        file.extend(next);
    }
    // A file that was cut short, with a record appended behind the cut.
    let mut torn = file[..file.len() - 5].to_vec();
    let next = record(&id, torn.len(), MemoKey([9; 32]), b"after the crash");
    torn.extend(next);
    // A result that is itself a checkpoint.
    let mut nested = file_header(id);
    let next = record(&id, nested.len(), MemoKey([5; 32]), &file);
    nested.extend(next);
    vec![empty, file, torn, nested]
}
