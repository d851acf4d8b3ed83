//! Data that the caller of a collective contributes: in separate memory, or in place in the output.

/// Data that the caller contributes: a slice, or [`InPlace`].
#[derive(Debug, Clone, Copy)]
pub enum Contribution<'a, T> {
    /// Separate memory, which is never written.
    Separate(&'a [T]),
    /// The data is in the output, at the position of the result or of the caller's block.
    InPlace,
}

/// Marker: the caller's data is already in the output, as with `MPI_IN_PLACE`. In a gather, a scatter and a reduce,
/// only the root can use this marker.
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
