//! Tail of a process's output, in bounded memory.

use hotlease_wire::limits::LAST_OUTPUT_BYTES_MAX;

/// The last [`LAST_OUTPUT_BYTES_MAX`] bytes of a stream.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    bytes: Vec<u8>,
    cut: bool,
}

impl Tail {
    /// Adds more of the stream.
    pub fn push(&mut self, more: &[u8]) {
        let kept = &more[more.len().saturating_sub(LAST_OUTPUT_BYTES_MAX)..];
        let excess = (self.bytes.len() + kept.len()).saturating_sub(LAST_OUTPUT_BYTES_MAX);
        self.cut |= excess > 0 || kept.len() < more.len();
        self.bytes.drain(..excess);
        self.bytes.extend_from_slice(kept);
    }

    /// The tail as text of at most [`LAST_OUTPUT_BYTES_MAX`] bytes; invalid UTF-8 is replaced.
    pub fn text(&self) -> String {
        let mut bytes = self.bytes.as_slice();
        if self.cut {
            // The cut may have split a character, of which at most three bytes remain.
            let rest = bytes
                .iter()
                .take(3)
                .take_while(|byte| (0x80..0xc0).contains(*byte))
                .count();
            bytes = &bytes[rest..];
        }
        let text = String::from_utf8_lossy(bytes);
        // A replacement character is longer than the bytes that it replaces.
        let mut start = text.len().saturating_sub(LAST_OUTPUT_BYTES_MAX);
        while !text.is_char_boundary(start) {
            start += 1;
        }
        text[start..].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_end_however_it_arrives() {
        let stream: Vec<u8> = (0..20_000).map(|number| b'a' + (number % 26) as u8).collect();
        for chunk in [1, 7, 4095, 4096, 4097, 20_000] {
            let mut tail = Tail::default();
            stream.chunks(chunk).for_each(|more| tail.push(more));
            assert_eq!(
                tail.text().as_bytes(),
                &stream[stream.len() - LAST_OUTPUT_BYTES_MAX..],
                "in chunks of {chunk}"
            );
        }
    }

    #[test]
    fn text_is_bounded_and_valid_for_any_bytes() {
        let mut tail = Tail::default();
        tail.push(&[0xff; 10_000]);
        assert!(tail.text().len() <= LAST_OUTPUT_BYTES_MAX);
        let mut tail = Tail::default();
        tail.push("é".repeat(3000).as_bytes());
        tail.push(b"x");
        assert!(tail.text().starts_with('é'), "the character that was cut is left out");
        let mut tail = Tail::default();
        tail.push(b"\x80 is no text");
        assert_eq!(tail.text(), "\u{fffd} is no text");
    }
}
