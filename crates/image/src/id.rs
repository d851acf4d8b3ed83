//! Names of images.

use std::fmt;
use std::str::FromStr;

/// Name of an image: the BLAKE3 hash of its bytes. As text 64 hexadecimal digits, as `b3sum` prints them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageId([u8; 32]);

impl ImageId {
    /// Name of the bytes that were hashed.
    pub(crate) fn of(hasher: &blake3::Hasher) -> Self {
        Self(*hasher.finalize().as_bytes())
    }

    /// The first 32 bits of the hash.
    pub(crate) fn first_word(&self) -> u32 {
        u32::from_le_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageId({self})")
    }
}

/// Error: the text is not the name of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no environment: 64 hexadecimal digits do, as `hotlease env pack` prints them")]
pub struct ImageIdError(String);

impl FromStr for ImageId {
    type Err = ImageIdError;

    /// Parses a name. Lower case only, so that an image has only one name.
    fn from_str(text: &str) -> Result<Self, ImageIdError> {
        let wrong = || ImageIdError(text.chars().take(80).flat_map(char::escape_default).collect());
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let digits: Option<Vec<u8>> = text.bytes().map(digit).collect();
        let digits = digits.filter(|digits| digits.len() == 64).ok_or_else(wrong)?;
        let mut id = [0; 32];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(Self(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_text() {
        let text = "00ff".repeat(16);
        let id: ImageId = text.parse().expect("a name");
        assert_eq!(id.to_string(), text);
        for wrong in [
            "",
            "00",
            &text.to_uppercase(),
            &format!("{text}0"),
            &text.replace('f', "g"),
            "../../x",
        ] {
            assert!(wrong.parse::<ImageId>().is_err(), "{wrong}");
        }
    }
}
