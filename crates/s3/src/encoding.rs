//! Percent-encoding in the canonical form that signatures use.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::borrow::Cow;

/// All bytes except letters, digits and `-._~`.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// All bytes of [`RESERVED`] except slashes, which stay in paths.
const RESERVED_IN_PATHS: &AsciiSet = &RESERVED.remove(b'/');

/// Decodes a text; `None` if its encoding is invalid or the result is not UTF-8.
pub(crate) fn decode(text: &str) -> Option<String> {
    let begins_with_digits = |after: &str| after.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    // The decoder would leave an invalid escape unchanged.
    if !text.split('%').skip(1).all(begins_with_digits) {
        return None;
    }
    percent_decode_str(text).decode_utf8().map(Cow::into_owned).ok()
}

/// Encodes everything except letters, digits, `-._~` and, in paths, slashes.
pub(crate) fn encode(text: &str, is_path: bool) -> String {
    let encoded = if is_path { RESERVED_IN_PATHS } else { RESERVED };
    utf8_percent_encode(text, encoded).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_reverses_encoding() {
        for text in ["", "a b", "ä/ö", "%2e%2e", "a+b&c=d", "\u{10ffff}", "~-._"] {
            assert_eq!(decode(&encode(text, true)).as_deref(), Some(text));
            assert_eq!(decode(&encode(text, false)).as_deref(), Some(text));
        }
        assert_eq!(encode("a/b c", true), "a/b%20c");
        assert_eq!(encode("a/b c", false), "a%2Fb%20c");
        for byte in 0..=127u8 {
            let text = char::from(byte).to_string();
            let is_kept = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
            let kept_or = |escape| if is_kept { text.clone() } else { escape };
            assert_eq!(encode(&text, false), kept_or(format!("%{byte:02X}")));
        }
        for bad in ["%", "%2", "%zz", "%ff", "a%", "%+1"] {
            assert_eq!(decode(bad), None, "{bad:?} was taken");
        }
    }
}
