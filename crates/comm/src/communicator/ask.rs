//! What a caller wants of a collective.

use crate::collective::Collective;
use crate::datatype::Datatype;
use crate::operator::Operator;

/// What all members do together, as this one calls it.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Which collective, with its counts, blocks and root.
    pub collective: Collective<'a>,
    /// What elements are.
    pub datatype: Datatype,
    /// By what it reduces, if it does.
    pub operator: Option<&'a Operator>,
    /// The caller's part is in the output already (`MPI_IN_PLACE`): see [`Call::in_place`](crate::Call::in_place).
    pub in_place: bool,
    /// Where the program calls it, to be named in errors of checked mode (default: the place in Rust).
    pub site: Option<&'a str>,
}

impl<'a> Ask<'a> {
    /// Not in place, and with nothing to reduce by.
    pub const fn new(collective: Collective<'a>, datatype: Datatype) -> Self {
        Self {
            collective,
            datatype,
            operator: None,
            in_place: false,
            site: None,
        }
    }

    /// The same, reducing by this.
    pub const fn by(mut self, operator: &'a Operator) -> Self {
        self.operator = Some(operator);
        self
    }

    /// The same, in place.
    pub const fn in_place(mut self) -> Self {
        self.in_place = true;
        self
    }
}

/// What the caller gives of its own: a slice, or [`InPlace`].
#[derive(Debug, Clone, Copy)]
pub enum Given<'a, T> {
    /// In memory of its own, which is never written.
    Apart(&'a [T]),
    /// In the output, where the result, or its block of it, will be.
    InPlace,
}

/// Says that what the caller gives is in the output already, as `MPI_IN_PLACE` does. In a gather, a scatter and a reduce only the root
/// can say so.
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
