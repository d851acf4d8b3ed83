//! Arguments of a collective, as the caller gives them.

use hotlease_collectives::{Collective, Datatype, Operator};

/// A collective of all members, as this member calls it.
#[derive(Debug, Clone, Copy)]
pub struct CollectiveArguments<'a> {
    /// The collective, with its counts, blocks and root.
    pub collective: Collective<'a>,
    /// Type of the elements.
    pub datatype: Datatype,
    /// Operator, if the collective reduces.
    pub operator: Option<&'a Operator>,
    /// The caller's part is already in the output (`MPI_IN_PLACE`): see [`CollectiveCall::in_place`](crate::CollectiveCall::in_place).
    pub in_place: bool,
    /// Place of the call in the program, named in errors of checked mode (default: the place in Rust).
    pub site: Option<&'a str>,
}

impl<'a> CollectiveArguments<'a> {
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
    pub const fn with_operator(mut self, operator: &'a Operator) -> Self {
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
pub enum Contribution<'a, T> {
    /// Separate memory, which is never written.
    Separate(&'a [T]),
    /// The output, at the position of the result or of the caller's block.
    InPlace,
}

/// Marker: the caller's data is already in the output, as with `MPI_IN_PLACE`. In a gather, a scatter and a reduce,
/// only the root can use it.
#[derive(Debug, Clone, Copy)]
pub struct InPlace;

impl<T> From<InPlace> for Contribution<'_, T> {
    fn from(_: InPlace) -> Self {
        Self::InPlace
    }
}

impl<'a, T> From<&'a [T]> for Contribution<'a, T> {
    fn from(slice: &'a [T]) -> Self {
        Self::Separate(slice)
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for Contribution<'a, T> {
    fn from(array: &'a [T; N]) -> Self {
        Self::Separate(array)
    }
}

impl<'a, T> From<&'a Vec<T>> for Contribution<'a, T> {
    fn from(vector: &'a Vec<T>) -> Self {
        Self::Separate(vector)
    }
}

impl<T> Contribution<'_, T> {
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::Separate(slice) => Some(slice.len()),
            Self::InPlace => None,
        }
    }
}
