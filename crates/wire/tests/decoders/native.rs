//! Decoder of a native function's request: promises for any bytes, with a second implementation of the rules of
//! `bindings/python/FORMAT.md`.

use hotlease_wire::limits::FUNCTION_NAME_BYTES_MAX;
use hotlease_wire::task::native::{AS_INPUT, NativeArguments};

pub fn arguments(bytes: &[u8]) -> bool {
    let Ok(arguments) = NativeArguments::decode(bytes) else {
        return false;
    };
    let NativeArguments { room, name, recipe } = arguments;
    assert!(name.len() <= FUNCTION_NAME_BYTES_MAX, "a name of {} bytes", name.len());
    let length = (name.len() as u16).to_le_bytes();
    let expected = [&room.to_le_bytes()[..], &length, name.as_bytes(), recipe].concat();
    assert_eq!(expected, bytes, "nothing is left out, and nothing added");
    assert_eq!(arguments.encode(), bytes, "there is one form only");
    true
}

pub fn argument_seeds() -> Vec<Vec<u8>> {
    let encoded = |room, name, recipe| NativeArguments { room, name, recipe }.encode();
    let longest = "x".repeat(FUNCTION_NAME_BYTES_MAX);
    vec![
        encoded(8192, "scale", b"a pickle"),
        encoded(AS_INPUT, "scale", b"the pickle of a dtype"),
        encoded(0, "gr\u{f6}\u{df}e", b""),
        encoded(1, &longest, b"a pickle"),
    ]
}
