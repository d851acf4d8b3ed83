//! The built-in operators, for each type that supports them. Elements are loaded from bytes, which costs nothing: a
//! vector load need not be aligned.

use super::{Operands, Operator};
use crate::datatype::Datatype;

fn zip<const N: usize>(operands: Operands<'_>, of: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    match operands {
        Operands::Separate { left, right, into } => {
            let sources = left.as_chunks().0.iter().zip(right.as_chunks().0);
            for (into, (left, right)) in into.as_chunks_mut().0.iter_mut().zip(sources) {
                *into = of(*left, *right);
            }
        }
        Operands::OntoLeft { left, right } => {
            for (left, right) in left.as_chunks_mut().0.iter_mut().zip(right.as_chunks().0) {
                *left = of(*left, *right);
            }
        }
        Operands::OntoRight { left, right } => {
            for (left, right) in left.as_chunks().0.iter().zip(right.as_chunks_mut().0) {
                *right = of(*left, *right);
            }
        }
    }
}

macro_rules! kernel {
    ($type:ty, |$left:ident, $right:ident| $result:expr) => {{
        fn kernel(operands: Operands<'_>) {
            zip(operands, |left, right| {
                let ($left, $right) = (<$type>::from_ne_bytes(left), <$type>::from_ne_bytes(right));
                let result: $type = $result;
                result.to_ne_bytes()
            });
        }
        Some(kernel as fn(Operands<'_>))
    }};
}

macro_rules! integer {
    ($operator:expr, $type:ty) => {
        match $operator {
            Operator::Sum => kernel!($type, |left, right| left.wrapping_add(right)),
            Operator::Prod => kernel!($type, |left, right| left.wrapping_mul(right)),
            Operator::Min => kernel!($type, |left, right| left.min(right)),
            Operator::Max => kernel!($type, |left, right| left.max(right)),
            Operator::BitAnd => kernel!($type, |left, right| left & right),
            Operator::BitOr => kernel!($type, |left, right| left | right),
            Operator::BitXor => kernel!($type, |left, right| left ^ right),
            Operator::LogicalAnd => kernel!($type, |left, right| (left != 0 && right != 0).into()),
            Operator::LogicalOr => kernel!($type, |left, right| (left != 0 || right != 0).into()),
            Operator::LogicalXor => kernel!($type, |left, right| ((left != 0) != (right != 0)).into()),
            Operator::MinLoc | Operator::MaxLoc | Operator::User { .. } => None,
        }
    };
}

macro_rules! float {
    ($operator:expr, $type:ty) => {
        match $operator {
            Operator::Sum => kernel!($type, |left, right| left + right),
            Operator::Prod => kernel!($type, |left, right| left * right),
            // A NaN on the left fails the comparison and is kept.
            Operator::Min => kernel!($type, |left, right| if right < left || right.is_nan() {
                right
            } else {
                left
            }),
            Operator::Max => kernel!($type, |left, right| if right > left || right.is_nan() {
                right
            } else {
                left
            }),
            _ => None,
        }
    };
}

macro_rules! complex {
    ($operator:expr, $type:ty, $number:expr, $bytes:expr) => {
        match $operator {
            Operator::Sum => {
                fn kernel(operands: Operands<'_>) {
                    zip(operands, |left, right| {
                        let ([a, b], [c, d]): ([$type; 2], [$type; 2]) = ($number(left), $number(right));
                        $bytes([a + c, b + d])
                    });
                }
                Some(kernel as fn(Operands<'_>))
            }
            Operator::Prod => {
                fn kernel(operands: Operands<'_>) {
                    zip(operands, |left, right| {
                        let ([a, b], [c, d]): ([$type; 2], [$type; 2]) = ($number(left), $number(right));
                        $bytes([a * c - b * d, a * d + b * c])
                    });
                }
                Some(kernel as fn(Operands<'_>))
            }
            _ => None,
        }
    };
}

/// Operators on a value with an index after it. They keep the whole element, including its padding.
macro_rules! located {
    ($operator:expr, $type:ty, $size:literal, $is_nan:expr) => {{
        const VALUE: usize = size_of::<$type>();
        fn parts(element: &[u8; $size]) -> ($type, i32) {
            let mut value = [0; VALUE];
            let mut index = [0; 4];
            value.copy_from_slice(&element[..VALUE]);
            index.copy_from_slice(&element[VALUE..VALUE + 4]);
            (<$type>::from_ne_bytes(value), i32::from_ne_bytes(index))
        }
        fn pick(left: [u8; $size], right: [u8; $size], better: fn($type, $type) -> bool) -> [u8; $size] {
            let ((a, i), (b, j)) = (parts(&left), parts(&right));
            let is_nan: fn($type) -> bool = $is_nan;
            let equal = a == b || (is_nan(a) && is_nan(b));
            let right_wins = if equal {
                j < i
            } else {
                !is_nan(a) && (is_nan(b) || better(b, a))
            };
            if right_wins { right } else { left }
        }
        match $operator {
            Operator::MinLoc => Some((|operands| zip(operands, |l, r| pick(l, r, |b, a| b < a))) as fn(Operands<'_>)),
            Operator::MaxLoc => Some((|operands| zip(operands, |l, r| pick(l, r, |b, a| b > a))) as fn(Operands<'_>)),
            _ => None,
        }
    }};
}

/// The function that applies an operator to elements of a type, if there is one.
pub(super) fn of(operator: &Operator, datatype: Datatype) -> Option<fn(Operands<'_>)> {
    match datatype {
        Datatype::I8 => integer!(operator, i8),
        Datatype::U8 => integer!(operator, u8),
        Datatype::I16 => integer!(operator, i16),
        Datatype::U16 => integer!(operator, u16),
        Datatype::I32 => integer!(operator, i32),
        Datatype::U32 => integer!(operator, u32),
        Datatype::I64 => integer!(operator, i64),
        Datatype::U64 => integer!(operator, u64),
        Datatype::F32 => float!(operator, f32),
        Datatype::F64 => float!(operator, f64),
        Datatype::Complex64 => complex!(operator, f32, complex64, complex64_bytes),
        Datatype::Complex128 => complex!(operator, f64, complex128, complex128_bytes),
        Datatype::Bool => match operator {
            Operator::BitAnd | Operator::LogicalAnd => of(&Operator::LogicalAnd, Datatype::U8),
            Operator::BitOr | Operator::LogicalOr => of(&Operator::LogicalOr, Datatype::U8),
            Operator::BitXor | Operator::LogicalXor => of(&Operator::LogicalXor, Datatype::U8),
            _ => None,
        },
        Datatype::Bytes => match operator {
            Operator::BitAnd | Operator::BitOr | Operator::BitXor => of(operator, Datatype::U8),
            _ => None,
        },
        Datatype::I32Index => located!(operator, i32, 8, |_| false),
        Datatype::I64Index => located!(operator, i64, 16, |_| false),
        Datatype::F32Index => located!(operator, f32, 8, |value| value.is_nan()),
        Datatype::F64Index => located!(operator, f64, 16, |value| value.is_nan()),
        Datatype::Record(_) => None,
    }
}

fn complex64(bytes: [u8; 8]) -> [f32; 2] {
    let (parts, _) = bytes.as_chunks::<4>();
    [f32::from_ne_bytes(parts[0]), f32::from_ne_bytes(parts[1])]
}

fn complex64_bytes([re, im]: [f32; 2]) -> [u8; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (re.to_ne_bytes(), im.to_ne_bytes());
    [a, b, c, d, e, f, g, h]
}

fn complex128(bytes: [u8; 16]) -> [f64; 2] {
    let (parts, _) = bytes.as_chunks::<8>();
    [f64::from_ne_bytes(parts[0]), f64::from_ne_bytes(parts[1])]
}

fn complex128_bytes([re, im]: [f64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&re.to_ne_bytes());
    bytes[8..].copy_from_slice(&im.to_ne_bytes());
    bytes
}
