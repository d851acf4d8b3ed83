//! Structs with the fields of a message, for other formats of it.

/// Defines a struct and its conversion from a message. A field has the value of the message's field of this name, or the
/// one that stands behind it.
///
/// ```
/// struct Reply {
///     id: u64,
///     took_ns: Option<u64>,
/// }
/// hotlease_wire::mirror! {
///     /// Row of a table.
///     struct Row from(reply: Reply) {
///         id: u64,
///         took_us: u64 = reply.took_ns.unwrap_or(0) / 1000,
///     }
/// }
/// let row = Row::from(Reply { id: 7, took_ns: Some(5000) });
/// assert_eq!((row.id, row.took_us), (7, 5));
/// ```
#[macro_export]
macro_rules! mirror {
    (
        $(#[$attribute:meta])*
        $visible:vis struct $name:ident from($message:ident: $from:ty) {
            $($(#[$note:meta])* $shown:vis $field:ident: $type:ty $(= $value:expr)?),* $(,)?
        }
    ) => {
        $(#[$attribute])*
        $visible struct $name {
            $($(#[$note])* $shown $field: $type,)*
        }

        impl From<$from> for $name {
            fn from($message: $from) -> Self {
                Self { $($field: $crate::mirror!(@value $message $field $($value)?),)* }
            }
        }
    };
    (@value $message:ident $field:ident) => { $message.$field };
    (@value $message:ident $field:ident $value:expr) => { $value };
}
