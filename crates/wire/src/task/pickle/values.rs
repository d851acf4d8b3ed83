//! Values of the pickle machine, reduced to the properties that the check of a pickle uses.

/// Known properties of a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    /// Number, bytes, or a long text.
    Plain,
    /// Text of at most 64 KiB, by its offset and length.
    Text(usize, u16),
    List,
    Set,
    /// Dict, by its number in `Check::dicts`.
    Dict(u32),
    Tuple(TupleParts),
    /// Name, with its uses.
    Name(u8),
    /// Object that a name has made, by its number in `Check::objects`.
    Object(u32),
}

/// Parts of a tuple or frozen set.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TupleParts {
    /// Number of values that its hash visits.
    pub weight: u32,
    /// Whether one of the parts is a dict with a special key.
    pub is_special: bool,
    /// Height of the highest frail object among the parts; 0 if there is none.
    pub height: u16,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DictParts {
    /// Whether a key may be named `__x__`, except `__notes__`.
    pub is_special: bool,
    /// Whether the dict is in a tuple.
    pub is_in_tuple: bool,
    /// Height of the highest frail object among the values; 0 if there is none.
    pub height: u16,
}

/// An object that a name has made.
#[derive(Debug, Clone, Copy)]
pub(super) struct MadeObject {
    /// Uses of the name; without states and items once the object's state is set, because a second state would be set
    /// by methods that the first state may have replaced.
    pub uses: u8,
    /// Length of the longest chain of frail objects, each directly in the one before it, from this object on; 0 if it
    /// is not frail.
    pub height: u16,
    /// Whether the object is in a tuple, or in another frail object.
    pub is_part: bool,
}
