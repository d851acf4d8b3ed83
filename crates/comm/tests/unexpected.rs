//! Test of messages without a receive. It is alone in its file, and so in its process, whose memory it measures.

#[allow(dead_code, reason = "each test file uses a part of it")]
#[path = "members/group/mod.rs"]
mod group;

use group::each;
use hotlease_comm::Pattern;

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("this is Linux");
    let pages: u64 = status
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("a number of pages");
    pages * 4096
}

#[test]
fn a_million_unexpected_messages_do_not_grow_memory_without_bound() {
    const MESSAGES: u32 = 1_000_000;
    each(
        2,
        |_| (),
        |all| {
            if all.rank() == 0 {
                let before = resident_bytes();
                for number in 0..MESSAGES {
                    all.send(&number.to_le_bytes(), 1, 7).expect("sent");
                }
                let grown = resident_bytes().saturating_sub(before);
                assert!(grown < 64 << 20, "{grown} bytes more than before");
                all.send(&[], 1, 8).expect("sent");
            } else {
                // Rank 0 has sent as much as it may, and waits.
                let mut word = [0; 4];
                all.probe(Pattern::of(0, 7)).expect("here");
                std::thread::sleep(std::time::Duration::from_millis(300));
                assert_eq!(all.iprobe(Pattern::of(0, 8)), Ok(None), "it does not get ahead");
                for number in 0..MESSAGES {
                    all.receive(&mut word, Pattern::of(0, 7)).expect("here");
                    assert_eq!(u32::from_le_bytes(word), number);
                }
                all.receive(&mut word, Pattern::of(0, 8)).expect("here");
            }
        },
    );
}
