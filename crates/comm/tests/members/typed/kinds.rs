//! Types of elements and their operators: one operator for each type.

use super::TypedCase;
use bytemuck::{Pod, Zeroable};
use hotlease_comm::{Datatype, Operator, Plain, Rank};
use std::fmt::Debug;
use std::sync::Arc;

pub(super) trait Kind: Plain + Debug + PartialEq {
    /// Element that a rank contributes at this index.
    fn of(rank: Rank, index: usize) -> Self;
    fn operator() -> Operator;
    /// Result of the operator for two elements, computed in the simplest way.
    fn then(self, next: Self) -> Self;
}

/// Runs all operations with elements of one type.
pub(super) type AllOperations = fn(&TypedCase<'_>);

/// Size of an element, and the function that runs all operations with it.
const fn kind<K: Kind>() -> (usize, AllOperations) {
    (size_of::<K>(), |scene| scene.everything::<K>())
}

/// Types whose operator commutes.
pub(super) const KINDS: [(usize, AllOperations); 13] = [
    kind::<u64>(),
    kind::<u8>(),
    kind::<f64>(),
    kind::<i16>(),
    kind::<Nearest>(),
    kind::<i32>(),
    kind::<[f32; 2]>(),
    kind::<u16>(),
    kind::<f32>(),
    kind::<i64>(),
    kind::<u32>(),
    kind::<i8>(),
    kind::<[f64; 2]>(),
];

/// Type whose operator does not commute.
pub(super) const FUNCTIONS: (usize, AllOperations) = kind::<Function>();

/// Number that depends on rank and index. It is below 2^24, so that sums of a few numbers are exact in floats too.
fn number(rank: Rank, index: usize) -> u32 {
    (index as u32)
        .wrapping_mul(2_654_435_761)
        .wrapping_add(rank.wrapping_mul(77_777_777))
        >> 12
}

macro_rules! kinds {
    ($($type:ty: $operator:ident, $then:expr, $of:expr;)*) => {
        $(
            impl Kind for $type {
                fn of(rank: Rank, index: usize) -> Self {
                    ($of)(number(rank, index))
                }

                fn operator() -> Operator {
                    Operator::$operator
                }

                fn then(self, next: Self) -> Self {
                    let then: fn(Self, Self) -> Self = $then;
                    then(self, next)
                }
            }
        )*
    };
}

kinds! {
    i8: Min, Ord::min, |number| number as i8;
    u8: Max, Ord::max, |number| number as u8;
    i16: BitXor, |one, next| one ^ next, |number| number as i16;
    u16: Sum, u16::wrapping_add, |number| number as u16;
    i32: Prod, i32::wrapping_mul, |number| number as i32;
    u32: BitOr, |one, next| one | next, |number| 1_u32 << (number % 32);
    i64: Min, Ord::min, |number| 500_000 - i64::from(number);
    u64: Sum, u64::wrapping_add, |number| u64::from(number) << 40;
    f32: Max, f32::max, |number| number as f32;
    f64: Sum, |one, next| one + next, f64::from;
    [f32; 2]: Sum, |one, next| [one[0] + next[0], one[1] + next[1]], |number| [(number % 1000) as f32, 1.0];
    [f64; 2]: Sum, |one, next| [one[0] + next[0], one[1] + next[1]], |number| [f64::from(number), -1.0];
}

/// A value and its index, as in `MPI_DOUBLE_INT`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Nearest {
    distance: f64,
    index: i32,
    unused: u32,
}

impl PartialEq for Nearest {
    fn eq(&self, other: &Self) -> bool {
        (self.distance, self.index) == (other.distance, other.index)
    }
}

impl Plain for Nearest {
    const DATATYPE: Datatype = Datatype::F64Index;
}

impl Kind for Nearest {
    fn of(rank: Rank, index: usize) -> Self {
        Self {
            // Some values are equal.
            distance: f64::from(number(rank, index) % 4),
            index: rank as i32,
            unused: 0,
        }
    }

    fn operator() -> Operator {
        Operator::MinLoc
    }

    fn then(self, next: Self) -> Self {
        let is_next = (next.distance, next.index) < (self.distance, self.index);
        if is_next { next } else { self }
    }
}

/// Function `x -> scale * x + offset` of 32-bit numbers. The composition of two such functions has the same form, and
/// depends on their order.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Function {
    scale: u32,
    offset: u32,
}

impl Plain for Function {
    const DATATYPE: Datatype = Datatype::record::<Self>();
}

impl Kind for Function {
    fn of(rank: Rank, index: usize) -> Self {
        Self {
            scale: 2 * (rank + index as u32) + 3,
            offset: 7 * rank + 1,
        }
    }

    fn operator() -> Operator {
        Operator::User {
            function: Arc::new(|first, second, _| {
                let pairs = first.as_chunks::<8>().0.iter().zip(second.as_chunks_mut::<8>().0);
                for (first, second) in pairs {
                    let [first, next] = [first, &*second].map(|one| bytemuck::pod_read_unaligned::<Self>(one));
                    second.copy_from_slice(bytemuck::bytes_of(&first.then(next)));
                }
            }),
            commutes: false,
        }
    }

    fn then(self, next: Self) -> Self {
        Self {
            scale: self.scale.wrapping_mul(next.scale),
            offset: self.offset.wrapping_mul(next.scale).wrapping_add(next.offset),
        }
    }
}
