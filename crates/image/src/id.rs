//! Names of images.

use std::fmt;
use std::str::FromStr;

/// Name of an image: the BLAKE3 hash of its bytes. Its text is the 64 hexadecimal digits that `b3sum` prints.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageId([u8; 32]);

impl ImageId {
    /// Name of the bytes that were hashed.
    pub(crate) fn of(hasher: &blake3::Hasher) -> Self {
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
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
        let mut id = [0; 32];
        let is_decoded = hex::decode_to_slice(text, &mut id).is_ok();
        let is_name = is_decoded && !text.contains(|letter: char| letter.is_ascii_uppercase());
        is_name.then_some(Self(id)).ok_or_else(wrong)
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
