//! Operators of reductions, and their application to bytes.

mod kernels;

use crate::datatype::Datatype;
use crate::error::Error;
use std::fmt;
use std::sync::Arc;

/// Computes `second = first op second` for all elements of two slices of the same length, like an MPI user function.
/// The operation must be associative.
pub type UserFunction = dyn Fn(&[u8], &mut [u8], Datatype) + Send + Sync;

/// Operation that a reduction applies to two elements.
#[derive(Clone)]
pub enum Operator {
    /// The sum; of integers, modulo their size.
    Sum,
    /// The product; of integers, modulo their size.
    Prod,
    /// The lesser element; of floats, NaN if one is NaN.
    Min,
    /// The greater element; of floats, NaN if one is NaN.
    Max,
    /// Bitwise and; of `Bool`, the same as [`Operator::LogicalAnd`].
    BitAnd,
    /// Bitwise or; of `Bool`, the same as [`Operator::LogicalOr`].
    BitOr,
    /// Bitwise exclusive or; of `Bool`, the same as [`Operator::LogicalXor`].
    BitXor,
    /// 1 if both elements are not 0, else 0.
    LogicalAnd,
    /// 1 if at least one element is not 0, else 0.
    LogicalOr,
    /// 1 if one element is 0 and the other is not, else 0.
    LogicalXor,
    /// The least value and the lowest index where it occurs; of floats, NaN if one is NaN.
    MinLoc,
    /// The greatest value and the lowest index where it occurs; of floats, NaN if one is NaN.
    MaxLoc,
    /// A user-defined operator.
    User {
        /// The function.
        function: Arc<UserFunction>,
        /// Whether the operands may be in any order; if `false`, operands are in rank order.
        commutes: bool,
    },
}

impl Operator {
    /// Returns whether the operands may be in any order.
    pub const fn commutes(&self) -> bool {
        match self {
            Operator::User { commutes, .. } => *commutes,
            _ => true,
        }
    }

    /// Name of the operator.
    pub const fn name(&self) -> &'static str {
        match self {
            Operator::Sum => "sum",
            Operator::Prod => "prod",
            Operator::Min => "min",
            Operator::Max => "max",
            Operator::BitAnd => "bitwise and",
            Operator::BitOr => "bitwise or",
            Operator::BitXor => "bitwise xor",
            Operator::LogicalAnd => "logical and",
            Operator::LogicalOr => "logical or",
            Operator::LogicalXor => "logical xor",
            Operator::MinLoc => "minloc",
            Operator::MaxLoc => "maxloc",
            Operator::User { .. } => "a function of the user's",
        }
    }

    /// Returns the operator for elements of one type; call this once for each collective.
    ///
    /// ```
    /// use hotlease_collectives::{Datatype, Operands, Operator};
    ///
    /// let sum = Operator::Sum.of(Datatype::I32)?;
    /// let mut total = 40i32.to_ne_bytes();
    /// sum.apply(Operands::OntoRight { left: &2i32.to_ne_bytes(), right: &mut total })?;
    /// assert_eq!(i32::from_ne_bytes(total), 42);
    /// # Ok::<(), hotlease_collectives::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Operator`] if there is no such reduction: the sum of truth values, the maximum of complex numbers, any
    /// operator on bytes that is not bitwise.
    pub fn of(&self, datatype: Datatype) -> Result<Reduction, Error> {
        if let Operator::User { function, .. } = self {
            return Ok(Reduction(ReductionKind::User(function.clone(), datatype)));
        }
        kernels::of(self, datatype)
            .map(|kernel| Reduction(ReductionKind::Kernel(kernel)))
            .ok_or(Error::Operator {
                operator: self.name(),
                datatype,
            })
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The two operands of a reduction, with the same length in bytes, and the place of its result.
#[derive(Debug)]
pub enum Operands<'a> {
    /// The result goes to a third buffer.
    Separate {
        /// The first operand.
        left: &'a [u8],
        /// The second operand.
        right: &'a [u8],
        /// The result.
        into: &'a mut [u8],
    },
    /// The result replaces the first operand.
    OntoLeft {
        /// The first operand, and the result.
        left: &'a mut [u8],
        /// The second operand.
        right: &'a [u8],
    },
    /// The result replaces the second operand.
    OntoRight {
        /// The first operand.
        left: &'a [u8],
        /// The second operand, and the result.
        right: &'a mut [u8],
    },
}

/// An operator for elements of one type.
#[derive(Clone)]
pub struct Reduction(ReductionKind);

#[derive(Clone)]
enum ReductionKind {
    Kernel(fn(Operands<'_>)),
    User(Arc<UserFunction>, Datatype),
}

/// Bytes of an operand that are copied at a time, if the result must replace the first operand but the function
/// overwrites the second.
const COPY_BYTES: usize = 16 * 1024;

impl Reduction {
    /// Whether this is an operator of this library, which neither panics nor calls a user's code.
    pub const fn is_predefined(&self) -> bool {
        matches!(self.0, ReductionKind::Kernel(_))
    }

    /// Reduces all elements.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the operands and the place of the result differ in length; nothing was reduced.
    pub fn apply(&self, operands: Operands<'_>) -> Result<(), Error> {
        let (left, right, into) = match &operands {
            Operands::Separate { left, right, into } => (left.len(), right.len(), into.len()),
            Operands::OntoLeft { left, right } => (left.len(), right.len(), left.len()),
            Operands::OntoRight { left, right } => (left.len(), right.len(), right.len()),
        };
        if left != right || left != into {
            let what = format!("operands of {left} and {right} bytes, and a result of {into}: they differ in length");
            return Err(Error::Options { what });
        }
        let (function, datatype) = match &self.0 {
            ReductionKind::Kernel(kernel) => {
                kernel(operands);
                return Ok(());
            }
            ReductionKind::User(function, datatype) => (function, *datatype),
        };
        match operands {
            Operands::OntoRight { left, right } => function(left, right, datatype),
            Operands::Separate { left, right, into } => {
                into.copy_from_slice(right);
                function(left, into, datatype);
            }
            Operands::OntoLeft { left, right } => {
                let piece = (COPY_BYTES / datatype.size()).max(1) * datatype.size();
                let mut aside = vec![0; piece.min(left.len())];
                for (left, right) in left.chunks_mut(piece).zip(right.chunks(piece)) {
                    let aside = &mut aside[..left.len()];
                    aside.copy_from_slice(right);
                    function(left, aside, datatype);
                    left.copy_from_slice(aside);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
impl Operator {
    /// An operator for tests of schedules, which do not call it.
    pub(crate) fn in_order(commutes: bool) -> &'static Operator {
        static ORDERED: std::sync::LazyLock<Operator> = std::sync::LazyLock::new(|| Operator::User {
            function: Arc::new(|_, _, _| ()),
            commutes: false,
        });
        if commutes { &Operator::Sum } else { &ORDERED }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_ways(operator: &Operator, datatype: Datatype, left: &[u8], right: &[u8]) -> Vec<u8> {
        let reduction = operator.of(datatype).expect("there is such a reduction");
        let mut into = vec![0xAA; left.len()];
        reduction
            .apply(Operands::Separate {
                left,
                right,
                into: &mut into,
            })
            .expect("operands of one length");
        let mut onto_left = left.to_vec();
        reduction
            .apply(Operands::OntoLeft {
                left: &mut onto_left,
                right,
            })
            .expect("operands of one length");
        let mut onto_right = right.to_vec();
        reduction
            .apply(Operands::OntoRight {
                left,
                right: &mut onto_right,
            })
            .expect("operands of one length");
        assert_eq!(
            into, onto_left,
            "{operator:?} of {datatype}: the place of the result matters"
        );
        assert_eq!(
            into, onto_right,
            "{operator:?} of {datatype}: the place of the result matters"
        );
        into
    }

    macro_rules! pair {
        ($operator:expr, $datatype:ident, $type:ty, $left:expr, $right:expr) => {{
            let left: $type = $left;
            let right: $type = $right;
            let result = all_ways(
                &$operator,
                Datatype::$datatype,
                &left.to_ne_bytes(),
                &right.to_ne_bytes(),
            );
            <$type>::from_ne_bytes(result.try_into().unwrap())
        }};
    }

    #[test]
    fn integers_wrap_and_floats_keep_nan() {
        assert_eq!(pair!(Operator::Sum, U8, u8, 250, 10), 4);
        assert_eq!(pair!(Operator::Prod, I64, i64, i64::MAX, 2), -2);
        assert_eq!(pair!(Operator::Min, I16, i16, -3, 2), -3);
        assert_eq!(pair!(Operator::Max, U32, u32, 7, u32::MAX), u32::MAX);
        assert_eq!(pair!(Operator::BitXor, U16, u16, 0b1100, 0b1010), 0b0110);
        assert_eq!(pair!(Operator::LogicalXor, I32, i32, 5, 9), 0);
        assert_eq!(pair!(Operator::LogicalAnd, I8, i8, 5, -9), 1);
        assert_eq!(pair!(Operator::Sum, F64, f64, 0.5, 0.25), 0.75);
        for (left, right) in [(f64::NAN, 1.0), (1.0, f64::NAN)] {
            assert!(
                pair!(Operator::Min, F64, f64, left, right).is_nan(),
                "min of {left} and {right}"
            );
            assert!(
                pair!(Operator::Max, F64, f64, left, right).is_nan(),
                "max of {left} and {right}"
            );
        }
        assert_eq!(
            all_ways(&Operator::BitAnd, Datatype::Bool, &[2, 2, 0], &[1, 0, 0]),
            [1, 0, 0]
        );
        assert_eq!(all_ways(&Operator::BitAnd, Datatype::Bytes, &[2, 3], &[1, 6]), [0, 2]);
    }

    #[test]
    fn complex_numbers_multiply_as_such() {
        let number = |re: f32, im: f32| [re.to_ne_bytes(), im.to_ne_bytes()].concat();
        let product = all_ways(
            &Operator::Prod,
            Datatype::Complex64,
            &number(1.0, 2.0),
            &number(3.0, -1.0),
        );
        assert_eq!(product, number(5.0, 5.0));
    }

    #[test]
    fn the_lowest_index_wins_among_equal_values() {
        let at = |value: f64, index: i32| [&value.to_ne_bytes()[..], &index.to_ne_bytes()[..], &[0; 4]].concat();
        for operator in [Operator::MinLoc, Operator::MaxLoc] {
            assert_eq!(
                all_ways(&operator, Datatype::F64Index, &at(2.0, 7), &at(2.0, 3)),
                at(2.0, 3)
            );
            let nan = all_ways(&operator, Datatype::F64Index, &at(2.0, 7), &at(f64::NAN, 9));
            assert_eq!(nan[8..12], 9i32.to_ne_bytes(), "{operator:?} keeps NaN and where it is");
        }
        assert_eq!(
            all_ways(&Operator::MinLoc, Datatype::F64Index, &at(2.0, 7), &at(1.0, 9)),
            at(1.0, 9)
        );
        assert_eq!(
            all_ways(&Operator::MaxLoc, Datatype::F64Index, &at(2.0, 7), &at(1.0, 9)),
            at(2.0, 7)
        );
    }

    #[test]
    fn invalid_arguments_are_refused_by_name() {
        let refused = [
            (Operator::Sum, Datatype::Bool),
            (Operator::Max, Datatype::Complex128),
            (Operator::BitOr, Datatype::F32),
            (Operator::Sum, Datatype::Bytes),
            (Operator::MinLoc, Datatype::F64),
            (Operator::Sum, Datatype::F64Index),
        ];
        for (operator, datatype) in refused {
            let error = operator
                .of(datatype)
                .err()
                .unwrap_or_else(|| panic!("{operator:?} of {datatype}"));
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("{} of {datatype}:", operator.name())),
                "{error}"
            );
        }
    }

    #[test]
    fn operands_that_differ_in_length_are_refused() {
        let user = Operator::User {
            function: Arc::new(|_, _, _| panic!("there is nothing to reduce")),
            commutes: true,
        };
        for operator in [Operator::Sum, user] {
            let reduction = operator.of(Datatype::U8).expect("there is such a reduction");
            let (short, long) = ([1; 2], [1; 3]);
            let (mut left, mut right, mut into) = (short, short, short);
            let wrong = [
                Operands::OntoLeft {
                    left: &mut left,
                    right: &long,
                },
                Operands::OntoRight {
                    left: &long,
                    right: &mut right,
                },
                Operands::Separate {
                    left: &long,
                    right: &long,
                    into: &mut into,
                },
            ];
            for operands in wrong {
                let error = reduction.apply(operands).expect_err("2 and 3 bytes").to_string();
                assert!(error.contains("they differ in length"), "{error}");
            }
            assert_eq!([left, right, into], [short; 3], "nothing was reduced by {operator:?}");
        }
    }

    #[test]
    fn functions_of_the_user_see_operands_in_order_and_whole_elements() {
        // A record of 3 bytes, and operands longer than the bytes copied at a time; the result is the left operand.
        let three = Datatype::Record(std::num::NonZeroU32::new(3).unwrap());
        let first = Operator::User {
            function: Arc::new(|first, second, datatype| {
                assert!(first.len().is_multiple_of(datatype.size()), "no element is cut");
                second.copy_from_slice(first);
            }),
            commutes: false,
        };
        let left: Vec<u8> = (0..60_000u32).map(|index| index as u8).collect();
        assert_eq!(all_ways(&first, three, &left, &vec![9; left.len()]), left);
    }
}
