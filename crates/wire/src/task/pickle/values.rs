//! Values of the machine, as far as the check of a pickle knows them.

/// Properties of a value that are known.
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
    /// Whether one of them is a dict with a special key.
    pub is_special: bool,
    /// Height of the highest frail object among them; 0: there is none.
    pub height: u16,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DictParts {
    /// Whether a key may be named `__x__`, except `__notes__`.
    pub is_special: bool,
    /// Whether the dict is in a tuple.
    pub is_in_tuple: bool,
    /// Height of the highest frail object among its values; 0: there is none.
    pub height: u16,
}

/// An object that a name has made.
#[derive(Debug, Clone, Copy)]
pub(super) struct MadeObject {
    /// Uses of the name; without states and items once its state is set. A second state would go through methods that
    /// the first one has replaced.
    pub uses: u8,
    /// Number of frail objects in it, one directly in the other, and itself; 0: it is not frail.
    pub height: u16,
    /// Whether it is in a tuple, or in another frail object.
    pub is_part: bool,
}
