//! Tail of a process's output, in bounded memory and at a bounded pace.

use hotlease_wire::limits::LAST_OUTPUT_BYTES_MAX;
use hotlease_wire::python::END_OF_TASK;
use std::time::{Duration, Instant};

/// Interval in which at most [`WINDOW_BYTES`] of a process's output are read. A process that writes more blocks on its
/// pipe. Otherwise a flood of output would cost the agent a quarter of a processor, which is not billed.
const WINDOW: Duration = Duration::from_millis(100);
const WINDOW_BYTES: usize = 1 << 20;

/// Pace of reading a process's output.
#[derive(Debug, Default)]
pub(crate) struct ReadPace {
    /// Beginning of the current interval, and bytes that were read in it.
    window: Option<(Instant, usize)>,
}

impl ReadPace {
    /// Counts bytes that were read.
    pub fn count(&mut self, bytes: usize, now: Instant) {
        let (begin, read) = match self.window {
            Some((begin, read)) if now < begin + WINDOW => (begin, read),
            _ => (now, 0),
        };
        self.window = Some((begin, read + bytes));
    }

    /// Time until which nothing is to be read. Returns `None` if more can be read now.
    pub fn paused_until(&self, now: Instant) -> Option<Instant> {
        let (begin, read) = self.window?;
        let end = begin + WINDOW;
        (read >= WINDOW_BYTES && now < end).then_some(end)
    }
}

/// Number of kept bytes. It includes a whole mark before the text, so that no part of a mark is taken for text.
const KEPT_BYTES: usize = LAST_OUTPUT_BYTES_MAX + END_OF_TASK.len();

/// The last [`LAST_OUTPUT_BYTES_MAX`] bytes of a stream since the last [`END_OF_TASK`] in it.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    bytes: Vec<u8>,
    cut: bool,
}

impl Tail {
    /// Adds more of the stream.
    pub fn push(&mut self, more: &[u8]) {
        let kept = &more[more.len().saturating_sub(KEPT_BYTES)..];
        let excess = (self.bytes.len() + kept.len()).saturating_sub(KEPT_BYTES);
        self.cut |= excess > 0 || kept.len() < more.len();
        self.bytes.drain(..excess);
        self.bytes.extend_from_slice(kept);
    }

    /// The tail as text of at most [`LAST_OUTPUT_BYTES_MAX`] bytes; invalid UTF-8 is replaced.
    pub fn text(&self) -> String {
        let mut bytes = self.bytes.as_slice();
        let mut cut = self.cut;
        let marks = bytes.windows(END_OF_TASK.len());
        if let Some(at) = marks.into_iter().rposition(|bytes| bytes == END_OF_TASK) {
            (bytes, cut) = (&bytes[at + END_OF_TASK.len()..], false);
        }
        if let Some(excess) = bytes
            .len()
            .checked_sub(LAST_OUTPUT_BYTES_MAX)
            .filter(|excess| *excess > 0)
        {
            (bytes, cut) = (&bytes[excess..], true);
        }
        if cut {
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
    fn no_more_is_read_in_an_interval_than_it_allows() {
        let (mut pace, begin) = (ReadPace::default(), Instant::now());
        assert_eq!(pace.paused_until(begin), None);
        let millis = Duration::from_millis;
        for round in 0..3 {
            let begin = begin + round * WINDOW;
            for step in 0..4 {
                assert_eq!(
                    pace.paused_until(begin + millis(step)),
                    None,
                    "step {step} of round {round}"
                );
                pace.count(WINDOW_BYTES / 4, begin + millis(step));
            }
            assert_eq!(pace.paused_until(begin + millis(4)), Some(begin + WINDOW));
        }
        // An interval in which less was read does not raise the limit of a later interval.
        let later = begin + 100 * WINDOW;
        pace.count(WINDOW_BYTES, later);
        assert_eq!(pace.paused_until(later), Some(later + WINDOW));
    }

    #[test]
    fn output_of_ended_tasks_is_left_out() {
        let told = |parts: &[&[u8]], chunk: usize| {
            let mut tail = Tail::default();
            parts.concat().chunks(chunk).for_each(|more| tail.push(more));
            tail.text()
        };
        let long = [b'x'; 2 * LAST_OUTPUT_BYTES_MAX];
        for chunk in [1, 5, 4096, 20_000] {
            assert_eq!(told(&[b"first\n", END_OF_TASK, b"second\n"], chunk), "second\n");
            assert_eq!(told(&[b"first\n", END_OF_TASK, END_OF_TASK], chunk), "");
            assert_eq!(told(&[&long, END_OF_TASK, b"second\n"], chunk), "second\n");
            for length in [
                LAST_OUTPUT_BYTES_MAX - 9,
                LAST_OUTPUT_BYTES_MAX,
                LAST_OUTPUT_BYTES_MAX + 9,
            ] {
                let kept = length.min(LAST_OUTPUT_BYTES_MAX);
                assert_eq!(told(&[b"a", END_OF_TASK, &long[..length]], chunk), "x".repeat(kept));
            }
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
