//! Workers that are Python interpreters: constants shared by client, agent and worker.
//!
//! The format of their tasks is defined in [`task`](crate::task); the agent does not read it.

use crate::code::{ExportedFunction, Interface};
use crate::ids::CodeHash;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Name of the one function of a Python worker, which runs a task.
pub const FUNCTION: &str = "hotlease.call";
/// Environment variable in which a worker finds the versions that its client expects, as `NAME=VERSION` separated by
/// spaces.
pub const EXPECTED: &str = "HOTLEASE_PYTHON_EXPECTED";
/// Environment variable with the import path of the program, separated by colons. In a path, `%3A` is a colon and `%25`
/// a percent sign.
pub const PATH: &str = "HOTLEASE_PYTHON_PATH";
/// Environment variable with the modules that a worker imports before it accepts orders, separated by spaces. Workers
/// with such modules can be forked from a zygote that has imported them.
pub const IMPORTS: &str = "HOTLEASE_PYTHON_IMPORTS";
/// Bytes that a worker writes to its output when a task has ended: output before these bytes does not explain the
/// worker's death.
pub const END_OF_TASK: &[u8] = b"\0hotlease: a task has ended\0";
/// Largest number of bytes of environment, import path and all other strings of a lease's Python.
pub const BYTES_MAX: usize = 128 * 1024;

/// Encodes a path for a message, whose strings are UTF-8. Bytes that are not UTF-8, and percent signs, become `%XX`.
pub fn encode_path(path: &OsStr) -> String {
    let mut encoded = String::with_capacity(path.len());
    for chunk in path.as_bytes().utf8_chunks() {
        encoded.push_str(&chunk.valid().replace('%', "%25"));
        chunk
            .invalid()
            .iter()
            .for_each(|byte| encoded.push_str(&format!("%{byte:02X}")));
    }
    encoded
}

/// Decodes a path. A percent sign that no two hexadecimal digits follow stands for itself.
pub fn decode_path(encoded: &str) -> OsString {
    let mut parts = encoded.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part
            .get(..2)
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(&part.as_bytes()[2..]);
            }
            None => {
                bytes.push(b'%');
                bytes.extend_from_slice(part.as_bytes());
            }
        }
    }
    OsString::from_vec(bytes)
}

/// Joins folders to the value of [`PATH`].
pub fn join_path<'a>(folders: impl Iterator<Item = &'a OsStr>) -> OsString {
    let mut joined = Vec::new();
    for (number, folder) in folders.enumerate() {
        if number > 0 {
            joined.push(b':');
        }
        for byte in folder.as_bytes() {
            match byte {
                b':' => joined.extend(b"%3A"),
                b'%' => joined.extend(b"%25"),
                byte => joined.push(*byte),
            }
        }
    }
    OsString::from_vec(joined)
}

/// Address of the library that every Python worker has from the beginning. It has no bytes and cannot be sent.
pub fn library() -> CodeHash {
    CodeHash::of(b"hotlease: the library of Python workers, version 1")
}

/// Functions of the library of Python workers.
pub fn functions() -> Vec<ExportedFunction> {
    vec![ExportedFunction {
        name: FUNCTION.to_owned(),
        interface: Interface::Context,
        idempotent: false,
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_arrives_as_it_is() {
        for path in [
            &b"/plain"[..],
            b"/100%",
            b"/%41",
            b"/caf\xe9",
            b"\xff%\xfe\xc3",
            "/caf\u{e9}/%e9".as_bytes(),
            b"",
        ] {
            let path = OsStr::from_bytes(path);
            assert_eq!(decode_path(&encode_path(path)), path);
        }
        assert_eq!(encode_path(OsStr::new("/a:b")), "/a:b", "most paths stay as they are");
        for strange in ["%", "%4", "%zz", "%\u{e9}\u{e9}", "%+1"] {
            assert_eq!(decode_path(strange), strange, "not what `encode_path` makes");
        }
    }

    #[test]
    fn folders_are_joined_by_the_only_colons() {
        let joined = join_path([OsStr::new("/12:30"), OsStr::new("/5%3A"), OsStr::from_bytes(b"/\xe9")].into_iter());
        assert_eq!(joined.as_bytes(), b"/12%3A30:/5%253A:/\xe9");
    }
}
