//! Tests with a hostile guest: any of its messages may fail its own worker, but does no harm to the monitor.

use super::*;
use hotlease_wire::ids::Epoch;
use hotlease_wire::machine::MachineHead;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::mpsc::TryRecvError;

const MEMORY_MIB: u32 = 256;

/// A connection that receives only a test's messages, and the other end of its port.
fn far() -> (GuestConnection, UnixStream, SyncSender<Result<(), String>>) {
    let (port, guest) = UnixStream::pair().expect("a socket pair");
    let (files, _) = UnixStream::pair().expect("a socket pair");
    let (far, obeyed) = GuestConnection::new(port, files.into(), None, MEMORY_MIB);
    (far, guest, obeyed)
}

fn said(messages: &[(FromGuest, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (message, brought) in messages {
        messages::send(&mut bytes, message, brought).expect("a vector takes all");
    }
    bytes
}

fn hear(far: &GuestConnection, obeyed: &SyncSender<Result<(), String>>, mut bytes: &[u8]) -> LastMessage {
    let (heard, _words) = mpsc::channel();
    far.handle_messages(&mut bytes, &mut false, &heard, obeyed)
}

fn lost(messages: &[(FromGuest, &[u8])]) -> String {
    let (far, _guest, obeyed) = far();
    match hear(&far, &obeyed, &said(messages)) {
        LastMessage::Lost(why) => why,
        last => panic!("{messages:?}: {last:?}"),
    }
}

fn returned_of(slot: u16, status: u16, bytes: u64) -> FromGuest {
    FromGuest::Returned {
        slot,
        status,
        code: 0,
        bytes,
    }
}

const READY: FromGuest = FromGuest::Ready {
    version: 1,
    imports_us: u64::MAX,
};

#[test]
fn an_unasked_message_is_the_machine_s_end() {
    assert_eq!(lost(&[]), "QEMU has ended");
    assert_eq!(lost(&[(READY, b""), (READY, b"")]), "it says twice that it is ready");
    assert_eq!(
        lost(&[(READY, b""), (FromGuest::Booted, b"")]),
        "it says that it boots, and it has"
    );
    assert!(lost(&[(FromGuest::File, b"a question")]).starts_with("it asks for files"));
    assert_eq!(
        lost(&[(returned_of(7, 0, 0), b"")]),
        "it answers slot 7, which did not ask"
    );
    // An answer that arrives before its order is taken for the answer: a guest may send any answer.
    let obeys = || (FromGuest::Obeyed(Ok(())), &b"brought"[..]);
    assert_eq!(lost(&[obeys(), obeys()]), "it answers an order that it was not given");
}

#[test]
fn a_call_is_answered_once() {
    let (far, _guest, obeyed) = far();
    let (sender, answer) = mpsc::sync_channel(1);
    locked(&far.waiting).insert(3, sender);
    let twice = said(&[
        (returned_of(3, InvocationStatus::Ok as u16, 3), b"abc"),
        (returned_of(3, InvocationStatus::Ok as u16, 3), b"xyz"),
    ]);
    let last = hear(&far, &obeyed, &twice);
    assert_eq!(last, LastMessage::Lost("it answers slot 3, which did not ask".into()));
    let first = answer.recv().expect("an answer").expect("it ran");
    assert_eq!((first.bytes, first.output.as_slice()), (3, &b"abc"[..]));
    assert!(matches!(answer.try_recv(), Err(TryRecvError::Disconnected)));
}

#[test]
fn a_status_that_is_none_is_an_error() {
    for number in [0xffff, 0x7fff, 999] {
        assert!(
            matches!(
                call_result((number, 0, 0), Vec::new()),
                Err(InvocationStatus::BadHeader)
            ),
            "{number}"
        );
    }
    for status in [InvocationStatus::BadSpan, InvocationStatus::StaleEpoch] {
        let answer = call_result((status as u16, 0, u64::MAX), vec![1; 10]);
        assert!(matches!(answer, Err(told) if told == status), "{status:?} is no output");
    }
}

#[test]
fn lengths_that_no_message_has_are_not_taken_memory_for() {
    let heads = [
        (u32::MAX, 0),
        (1, u64::MAX),
        (0, 0),
        (4, CARRIED_BYTES_MAX),
        (64 << 10, 10),
    ];
    for (message_bytes, brought_bytes) in heads {
        let head = MachineHead {
            message_bytes,
            brought_bytes,
        };
        let (far, _guest, obeyed) = far();
        let last = hear(&far, &obeyed, &[&head.encode()[..], &[0xff; 64]].concat());
        assert!(matches!(last, LastMessage::Lost(_)), "{head:?}: {last:?}");
    }
}

#[test]
fn nonsense_is_an_end_and_never_a_panic() {
    let messages = [
        (READY, &b""[..]),
        (FromGuest::Obeyed(Err("words".into())), b""),
        (returned_of(0, 3, u64::MAX), b"output"),
        (FromGuest::Printed, b""),
    ];
    let good = said(&messages);
    for seed in 0..2000 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut bytes = good.clone();
        for _ in 0..random.random_range(1..8) {
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.random();
        }
        bytes.truncate(random.random_range(0..=bytes.len()));
        let (far, _guest, obeyed) = far();
        // Tests that the loop returns; nothing else can be tested for every input.
        drop(hear(&far, &obeyed, &bytes));
    }
}

#[test]
fn an_end_is_told_as_it_was_and_want_of_memory_by_its_mark() {
    let ended = |status, out_of_memory, crash| GuestEnd {
        failure: String::new(),
        status,
        out_of_memory,
        crash,
    };
    let crash = GuestCrash {
        slot: Some(u16::MAX),
        signal: i32::MIN,
        overrun_capacity: Some(u64::MAX),
    };
    let (far, _guest, obeyed) = far();
    let strange = ended(i32::MIN, true, Some(crash));
    let last = hear(&far, &obeyed, &said(&[(FromGuest::Ended(strange.clone()), b"more")]));
    assert_eq!(last, LastMessage::Ended(strange.clone()));
    assert_eq!(end_of(&strange).crash, Some(crash));
    assert_eq!(
        end_of(&ended(-19, false, None)).status,
        1,
        "SIGSTOP would not end the worker"
    );
    let killed = end_of(&ended(-9, true, None));
    assert_eq!((killed.status, killed.crash.map(|crash| crash.signal)), (-9, Some(9)));
    assert_eq!(end_of(&ended(-9, false, None)).crash, None, "another process killed it");
    assert_eq!(
        end_of(&ended(3, true, None)).crash,
        None,
        "a child of its was killed, it exited"
    );
}

#[test]
fn more_memory_than_a_machine_has_is_refused_with_both_sizes_before_it_is_told() {
    let (far, mut guest, obeyed) = far();
    let assignment = |mib: u64| Assignment {
        epoch: Epoch(1),
        slots: 1,
        memory_bytes: mib << 20,
        tenant: "ann".into(),
    };
    let why = far.assign(assignment(200)).expect_err("it has 160");
    for words in ["200 MiB", "have 160", "--sandbox-machine-memory"] {
        assert!(why.contains(words), "{why}");
    }
    guest.set_nonblocking(true).expect("set");
    assert!(guest.read(&mut [0]).is_err(), "nothing was told");
    obeyed.send(Err("the guest's words".into())).expect("room for one");
    assert_eq!(far.assign(assignment(160)), Err("the guest's words".into()));
}

#[test]
fn orders_to_a_machine_that_is_gone_are_errors() {
    let (far, guest, obeyed) = far();
    guest.shutdown(std::net::Shutdown::Both).expect("shut");
    drop((guest, obeyed));
    assert_eq!(far.load(b"code", 0), Err("the virtual machine is gone".into()));
    let too_large = vec![0; CODE_BYTES_MAX as usize + 1];
    assert!(far.load(&too_large, 0).is_err_and(|why| why.contains("bytes")));
}
