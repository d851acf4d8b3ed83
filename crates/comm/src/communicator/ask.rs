//! Arguments of a collective, as the caller gives them.

use crate::collective::Collective;
use crate::datatype::Datatype;
use crate::operator::Operator;

/// A collective of all members, as this member calls it.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The collective, with its counts, blocks and root.
    pub collective: Collective<'a>,
    /// Type of the elements.
    pub datatype: Datatype,
    /// Operator, if the collective reduces.
    pub operator: Option<&'a Operator>,
    /// The caller's part is already in the output (`MPI_IN_PLACE`): see [`Call::in_place`](crate::Call::in_place).
    pub in_place: bool,
    /// Place of the call in the program, named in errors of checked mode (default: the place in Rust).
    pub site: Option<&'a str>,
}

impl<'a> Ask<'a> {
    /// Makes arguments that are not in place, without an operator.
    pub const fn new(collective: Collective<'a>, datatype: Datatype) -> Self {
        Self {
            collective,
            datatype,
            operator: None,
            in_place: false,
            site: None,
        }
    }

    /// Sets the operator.
    pub const fn by(mut self, operator: &'a Operator) -> Self {
        self.operator = Some(operator);
        self
    }

    /// Makes the collective in place.
    pub const fn in_place(mut self) -> Self {
        self.in_place = true;
        self
    }
}

/// Data that the caller contributes: a slice, or [`InPlace`].
#[derive(Debug, Clone, Copy)]
pub enum Given<'a, T> {
    /// Separate memory, which is never written.
    Apart(&'a [T]),
    /// The output, at the position of the result or of the caller's block.
    InPlace,
}

/// Marker: the caller's data is already in the output, as with `MPI_IN_PLACE`. In a gather, a scatter and a reduce,
/// only the root can use it.
#[derive(Debug, Clone, Copy)]
pub struct InPlace;

impl<T> From<InPlace> for Given<'_, T> {
    fn from(_: InPlace) -> Self {
        Self::InPlace
    }
}

impl<'a, T> From<&'a [T]> for Given<'a, T> {
    fn from(slice: &'a [T]) -> Self {
        Self::Apart(slice)
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for Given<'a, T> {
    fn from(array: &'a [T; N]) -> Self {
        Self::Apart(array)
    }
}

impl<'a, T> From<&'a Vec<T>> for Given<'a, T> {
    fn from(vector: &'a Vec<T>) -> Self {
        Self::Apart(vector)
    }
}

impl<T> Given<'_, T> {
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::Apart(slice) => Some(slice.len()),
            Self::InPlace => None,
        }
    }
}
