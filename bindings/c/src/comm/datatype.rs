//! `hotlease_comm_datatype`: the numbers of types.

use crate::status::Failure;
use hotlease_comm::Datatype;
use std::num::NonZeroU32;

/// Types in the order of their numbers in `communicator.h`, from 1.
const NAMED: [Datatype; 18] = [
    Datatype::I8,
    Datatype::U8,
    Datatype::I16,
    Datatype::U16,
    Datatype::I32,
    Datatype::U32,
    Datatype::I64,
    Datatype::U64,
    Datatype::F32,
    Datatype::F64,
    Datatype::Complex64,
    Datatype::Complex128,
    Datatype::Bool,
    Datatype::Bytes,
    Datatype::I32Index,
    Datatype::I64Index,
    Datatype::F32Index,
    Datatype::F64Index,
];
/// Difference between a record's number and its size.
const RECORD: u64 = 1 << 32;
/// Largest alignment of a type in C.
pub(super) const ALIGNMENT_MAX: usize = 16;

/// Returns the datatype with a number.
pub(super) fn datatype(number: u64) -> Result<Datatype, Failure> {
    let named = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    if let Some(datatype) = named.and_then(|index| NAMED.get(index)) {
        return Ok(*datatype);
    }
    let record = number.checked_sub(RECORD).and_then(|size| u32::try_from(size).ok());
    record.and_then(NonZeroU32::new).map(Datatype::Record).ok_or_else(|| {
        Failure::Argument(format!(
            "datatype: {number} is none; take one of HOTLEASE_COMM_I8 and so on, or HOTLEASE_COMM_RECORD of 1 to {} bytes",
            u32::MAX
        ))
    })
}

/// Returns the number of a datatype.
pub(super) fn number(datatype: Datatype) -> u64 {
    if let Datatype::Record(size) = datatype {
        return RECORD + u64::from(size.get());
    }
    let index = NAMED.iter().position(|named| *named == datatype);
    index.map_or(0, |index| index as u64 + 1)
}

/// Returns the alignment of elements in C; records in C may have a smaller alignment.
pub(super) fn alignment(datatype: Datatype) -> usize {
    let size = datatype.size();
    match datatype {
        Datatype::Complex64 | Datatype::Complex128 | Datatype::I32Index | Datatype::F32Index => size / 2,
        Datatype::I64Index | Datatype::F64Index => 8,
        _ => (1 << size.trailing_zeros()).min(ALIGNMENT_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_types_are_one_to_one() {
        for (index, named) in NAMED.into_iter().enumerate() {
            let number = number(named);
            assert_eq!(number, index as u64 + 1);
            assert_eq!(datatype(number).ok(), Some(named));
        }
        for size in [1, 24, u32::MAX] {
            let record = datatype(RECORD + u64::from(size)).ok().expect("a record");
            assert_eq!(
                (record.size(), number(record)),
                (size as usize, RECORD + u64::from(size))
            );
        }
        for none in [0, 19, RECORD - 1, RECORD, 2 * RECORD, u64::MAX] {
            assert!(datatype(none).is_err(), "{none}");
        }
    }

    #[test]
    fn alignments_are_those_of_c() {
        let record = |size| Datatype::Record(NonZeroU32::new(size).expect("not 0"));
        let expected = [
            (Datatype::U8, 1),
            (Datatype::F64, 8),
            (Datatype::Complex64, 4),
            (Datatype::Complex128, 8),
            (Datatype::I32Index, 4),
            (Datatype::F64Index, 8),
            (record(24), 8),
            (record(3), 1),
            (record(64), 16),
        ];
        for (datatype, expected) in expected {
            assert_eq!(alignment(datatype), expected, "{datatype}");
        }
    }
}
