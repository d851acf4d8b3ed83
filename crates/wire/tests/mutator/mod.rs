//! Mutator that makes new frames from valid frames.

use rand::rngs::StdRng;
use rand::{RngExt, seq::IndexedRandom};

/// Numbers at which arithmetic goes wrong.
const EDGES: [u64; 14] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 36,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Seed from `HOTLEASE_SEED`, which replays a run, else a new seed. Prints the seed.
pub fn seed() -> u64 {
    let seed = match std::env::var("HOTLEASE_SEED") {
        Ok(text) => text.parse().expect("HOTLEASE_SEED is a number"),
        Err(_) => rand::random(),
    };
    eprintln!("replay with HOTLEASE_SEED={seed}");
    seed
}

/// An endless source of broken frames.
pub struct Mutator<'a> {
    corpus: &'a [Vec<u8>],
    random: StdRng,
}

impl<'a> Mutator<'a> {
    /// Mutator of these valid frames.
    pub fn new(corpus: &'a [Vec<u8>], random: StdRng) -> Self {
        Self { corpus, random }
    }

    /// The next frame: a valid frame after one to four changes.
    pub fn next(&mut self) -> Vec<u8> {
        let mut frame = self
            .corpus
            .choose(&mut self.random)
            .expect("a corpus is not empty")
            .clone();
        for _ in 0..self.random.random_range(1..=4) {
            self.change(&mut frame);
        }
        frame
    }

    fn change(&mut self, frame: &mut Vec<u8>) {
        let random = &mut self.random;
        if frame.is_empty() {
            frame.push(random.random());
            return;
        }
        let at = random.random_range(0..frame.len());
        match random.random_range(0..8) {
            0 => frame[at] ^= 1 << random.random_range(0..8),
            1 => frame[at] = random.random(),
            2 => frame.truncate(at),
            3 => {
                // A number on its natural boundary, where lengths and offsets are.
                let width = *[2, 4, 8].choose(random).expect("three widths");
                let at = at / width * width;
                let edge = EDGES.choose(random).expect("edges").to_le_bytes();
                let end = frame.len().min(at + width);
                frame[at..end].copy_from_slice(&edge[..end - at]);
            }
            4 => {
                // A huge varint, which postcard reads as a length.
                let varint = [0xff; 9];
                let end = frame.len().min(at + varint.len());
                frame[at..end].copy_from_slice(&varint[..end - at]);
            }
            5 => frame.insert(at, random.random()),
            6 => {
                // The tail of another frame.
                let other = self.corpus.choose(random).expect("a corpus is not empty");
                frame.truncate(at);
                frame.extend(other.iter().skip(at));
            }
            _ => {
                // A piece of the frame, copied to another position.
                let from = random.random_range(0..frame.len());
                let length = random
                    .random_range(1..=16)
                    .min(frame.len() - from)
                    .min(frame.len() - at);
                frame.copy_within(from..from + length, at);
            }
        }
    }
}
