//! Percent-encoding in the canonical form that signatures use.

/// Decodes a text; none if its encoding is invalid or the result is not UTF-8.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                bytes.push(digit(*high)? << 4 | digit(*low)?);
                after
            }
            (b'%', _) => return None,
            (byte, after) => {
                bytes.push(*byte);
                after
            }
        };
    }
    String::from_utf8(bytes).ok()
}

fn digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|digit| digit as u8)
}

/// Encodes everything except letters, digits, `-._~` and, in paths, slashes.
pub(crate) fn encode(text: &str, is_path: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            b'/' if is_path => encoded.push('/'),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_to_the_same() {
        for text in ["", "a b", "ä/ö", "%2e%2e", "a+b&c=d", "\u{10ffff}", "~-._"] {
            assert_eq!(decode(&encode(text, true)).as_deref(), Some(text));
            assert_eq!(decode(&encode(text, false)).as_deref(), Some(text));
        }
        assert_eq!(encode("a/b c", true), "a/b%20c");
        assert_eq!(encode("a/b c", false), "a%2Fb%20c");
        for bad in ["%", "%2", "%zz", "%ff", "a%", "%+1"] {
            assert_eq!(decode(bad), None, "{bad:?} was taken");
        }
    }
}
