//! Output of tasks: how it is kept and encoded, and that it follows a reply where a lease asks for it.

use crate::printed::{
    FLAG, HALF_BYTES, LEFT_OUT, NAME, OutputPieces, RECORD, RECORD_BYTES_MAX, STDERR, STDOUT, TaskOutput, push, split,
};
use crate::requests::*;

/// A reply of one byte, with the output that follows it.
fn after(printed: &[u8]) -> Vec<u8> {
    [&[FLAG], printed].concat()
}

/// Takes the output, which is no longer than announced.
fn taken(mut printed: TaskOutput) -> Vec<u8> {
    let most = printed.bytes();
    let bytes = printed.take();
    assert!(bytes.len() <= most, "{} bytes, not {most} at most", bytes.len());
    bytes
}

/// OutputPieces of the output; texts that follow one another are joined.
fn pieces(printed: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let reply = after(printed);
    let (end, section) = split(&reply).expect("something printed");
    assert_eq!(end, 1, "the reply itself is what it was");
    let mut found: Vec<(u8, Vec<u8>)> = Vec::new();
    let mut bytes = 4;
    for (kind, piece) in OutputPieces(section) {
        bytes += 5 + piece.len();
        match found.last_mut() {
            Some((last, text)) if *last == kind && kind <= STDERR => text.extend_from_slice(piece),
            _ => found.push((kind, piece.to_vec())),
        }
    }
    assert_eq!(bytes, printed.len(), "every byte belongs to a piece");
    found
}

#[test]
fn output_within_the_limit_is_kept_in_order() {
    let mut printed = TaskOutput::new();
    printed.text(STDOUT, b"one ");
    printed.text(STDOUT, "für".as_bytes());
    printed.text(STDERR, b"two\n");
    printed.record(&[7; 300]);
    printed.text(STDOUT, b"three\n");
    printed.name("speak".into());
    let expected = [
        (NAME, b"speak".to_vec()),
        (STDOUT, "one für".as_bytes().to_vec()),
        (STDERR, b"two\n".to_vec()),
        (RECORD, vec![7; 300]),
        (STDOUT, b"three\n".to_vec()),
    ];
    assert_eq!(pieces(&printed.take()), expected);
    assert_eq!(pieces(&taken(printed)), [], "taken once");
}

#[test]
fn output_over_the_limit_keeps_its_ends_and_counts_the_rest() {
    for size in [1, 7, 100, 1023, 1024, 1025, 40_000, 300_000] {
        let mut printed = TaskOutput::new();
        let text: String = (0..300_000 / 3).map(|at| ["aü", "ü\n", "日"][at % 3]).collect();
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let (chunk, more) = rest.split_at(size.min(rest.len()));
            printed.text(STDOUT, chunk);
            rest = more;
        }
        let bytes = taken(printed);
        assert!(bytes.len() < 2 * HALF_BYTES + 4096, "{} bytes are kept", bytes.len());
        let found = pieces(&bytes);
        let [(STDOUT, first), (LEFT_OUT, number), (STDOUT, last)] = found.as_slice() else {
            panic!("{} pieces", found.len());
        };
        let left_out = u64::from_le_bytes(number.as_slice().try_into().expect("8 bytes"));
        assert_eq!(first.len() + last.len() + left_out as usize, text.len());
        assert!(text.as_bytes().starts_with(first) && text.as_bytes().ends_with(last));
        assert!(first.len() > HALF_BYTES - 32 && last.len() > HALF_BYTES * 9 / 10 - 1024);
        if size > 1 {
            // The text was printed in whole characters.
            let whole = |text: &[u8]| size < 40_000 || std::str::from_utf8(text).is_ok();
            assert!(whole(first) && whole(last), "cut in a character");
        }
    }
}

#[test]
fn many_small_pieces_of_changing_kinds_are_bounded_too() {
    let mut printed = TaskOutput::new();
    for number in 0..200_000_u32 {
        printed.text(STDOUT, b"a");
        printed.text(STDERR, b"b");
        if number % 100 == 0 {
            printed.record(&[0; RECORD_BYTES_MAX]);
        }
    }
    let bytes = taken(printed);
    assert!(bytes.len() < 2 * HALF_BYTES + 4096, "{} bytes are kept", bytes.len());
    let found = pieces(&bytes);
    let lost = found
        .iter()
        .find(|(kind, _)| *kind == LEFT_OUT)
        .expect("much is left out");
    let lost = u64::from_le_bytes(lost.1.as_slice().try_into().expect("8 bytes"));
    let kept = found.iter().filter(|(kind, _)| *kind != LEFT_OUT);
    let kept: usize = kept.map(|(_, piece)| piece.len()).sum();
    assert_eq!(kept as u64 + lost, 400_000 + 2000 * RECORD_BYTES_MAX as u64);
    assert_eq!(found.last(), Some(&(STDERR, b"b".to_vec())), "the last is kept");
}

#[test]
fn text_that_is_no_utf_8_is_kept_as_it_is() {
    let mut printed = TaskOutput::new();
    let text = vec![0x80; 100_000];
    printed.text(STDERR, &text);
    let found = pieces(&taken(printed));
    let kept = found.iter().filter(|(kind, _)| *kind == STDERR);
    assert!(kept.clone().all(|(_, piece)| piece.iter().all(|byte| *byte == 0x80)));
    assert!(kept.map(|(_, piece)| piece.len()).sum::<usize>() > HALF_BYTES);
}

#[test]
fn damage_is_noticed_or_costs_what_is_damaged() {
    let mut printed = TaskOutput::new();
    printed.text(STDOUT, b"some text\n");
    printed.record(&[1, 2, 3]);
    let good = after(&taken(printed));
    assert!(split(&good).is_some());
    assert!(split(&[]).is_none() && split(&[0, 1, 2, 3, 4, 5]).is_none(), "no flag");
    for length in 1..good.len() {
        // The last bytes may say anything: no byte beyond the section is read.
        if let Some((end, section)) = split(&good[..length]) {
            assert!(end >= 1 && end + section.len() + 4 == length);
            assert!(OutputPieces(section).count() <= length);
        }
    }
    for at in 1..good.len() {
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let mut spoiled = good.clone();
            spoiled[at] = byte;
            if let Some((_, section)) = split(&spoiled) {
                assert!(OutputPieces(section).all(|(_, piece)| piece.len() <= section.len()));
            }
        }
    }
    let mut many = Vec::new();
    push(&mut many, 200, b"of a kind that is not known");
    push(&mut many, STDOUT, b"text");
    let last = OutputPieces(&many).last();
    assert_eq!(last, Some((STDOUT, b"text".as_slice())));
}

#[test]
fn output_of_a_task_follows_its_reply_if_the_lease_requests_it() {
    let scene = Scene::new();
    let mut python = scene.python.clone();
    let wanted = ("HOTLEASE_PYTHON_OUTPUT".to_owned(), "30".to_owned());
    python.environment.extend([wanted]);
    for (python, asks) in [(scene.python.clone(), false), (python, true)] {
        let invoker = scene.allocate(python);
        let invoker = invoker.unwrap_or_else(|error| panic!("no lease: {error}"));
        let function = invoker.function("hotlease.call").expect("the one function");
        let request = plain(&by_reference("tasks", "prints"), true, &tuple(&[text("für")]));
        for _ in 0..3 {
            let reply = function.call(&request).expect("it runs");
            let Some((end, section)) = split(&reply) else {
                assert!(!asks, "nothing follows {reply:02x?}");
                assert_eq!(reply[0], PLAIN);
                continue;
            };
            assert!(asks, "no lease has asked");
            assert_eq!(
                (reply[0], &reply[1..end]),
                (PLAIN | FLAG, [&[0; 7], int(3).as_slice()].concat().as_slice())
            );
            let found: Vec<_> = OutputPieces(section).collect();
            assert_eq!(found, [(STDOUT, "für\n".as_bytes()), (STDERR, b"and more".as_slice())]);
        }
        let silent = function.call(&plain(&by_reference("tasks", "pid"), true, NOTHING));
        assert!(split(&silent.expect("it runs")).is_none(), "nothing was printed");
    }
}

#[test]
fn output_too_large_for_the_reply_is_kept_with_it() {
    let scene = Scene::new();
    let mut python = scene.python.clone();
    let wanted = ("HOTLEASE_PYTHON_OUTPUT".to_owned(), "30".to_owned());
    python.environment.extend([wanted]);
    let invoker = scene.allocate(python);
    let invoker = invoker.unwrap_or_else(|error| panic!("no lease: {error}"));
    let function = invoker.function("hotlease.call").expect("the one function");
    let arguments = tuple(&[[&[0x06], 20_000_u32.to_le_bytes().as_slice(), &[b'y'; 20_000]].concat()]);
    // A ticket is valid with the one worker that gave it.
    let request = plain(&by_reference("tasks", "prints"), true, &arguments);
    let kept = function.clone().output_bytes(8_000).call(&request).expect("it runs");
    assert_eq!((kept[0], kept.len()), (KEPT, 24), "without what was printed");
    let bytes = u64::from_le_bytes(kept[16..24].try_into().expect("8 bytes")) as usize;
    let buffer = function
        .output_bytes(bytes)
        .call(&take(&kept[8..16]))
        .expect("it is there");
    assert_eq!(buffer.len(), bytes, "as large as was told");
    let (end, section) = split(&buffer).expect("something printed");
    assert_eq!(buffer[8..end], int(3));
    let text: Vec<u8> = OutputPieces(section)
        .filter(|(kind, _)| *kind == STDOUT)
        .flat_map(|(_, text)| text.to_vec())
        .collect();
    assert_eq!(text.len(), 20_001);
}
