use super::*;
use crate::lane::LINES;
use crate::lane::memory::BYTES_AT;
use std::ptr::NonNull;
use std::sync::Arc;

const CAPACITY: usize = LANE_BYTES_MIN;

/// Memory of this process alone, so that Miri can run the protocol.
#[repr(C, align(4096))]
struct Heap(std::cell::UnsafeCell<[u8; BYTES_AT + CAPACITY]>);
// SAFETY: as for `LaneMemory`.
unsafe impl Sync for Heap {}
// SAFETY: as for `LaneMemory`.
unsafe impl Send for Heap {}

fn on_heap() -> (LaneWriter, LaneReader) {
    let heap = Arc::new(Heap(std::cell::UnsafeCell::new([0; BYTES_AT + CAPACITY])));
    let space = || LaneMemory {
        start: NonNull::new(heap.0.get().cast()).expect("an address"),
        capacity: CAPACITY,
        _owner: heap.clone(),
    };
    (
        LaneWriter::on(space(), None),
        LaneReader::on(space(), (std::process::id(), 0)),
    )
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + seed * 17 + at / 256) as u8).collect()
}

/// Reads a whole message; waits for it.
fn read(reader: &mut LaneReader, wait: impl Fn(&mut LaneReader) -> LaneLine) -> ([u8; HEAD_BYTES], Vec<u8>) {
    let message = wait(reader);
    let head = message.head();
    let length = u64::from_le_bytes(head[..8].try_into().unwrap()) as usize;
    let mut body = vec![0; length];
    if length <= INLINE_BYTES {
        body.copy_from_slice(&message.inline()[..length]);
        reader.release();
        return (head, body);
    }
    let (mut at, mut piece) = (0, message.first_piece() as usize);
    loop {
        assert!((1..=length - at).contains(&piece), "{piece} of {length} at {at}");
        reader.take(&mut body[at..at + piece]);
        reader.release();
        at += piece;
        if at == length {
            return (head, body);
        }
        piece = wait(reader).next_piece() as usize;
    }
}

fn head(length: usize, number: usize) -> [u8; HEAD_BYTES] {
    let mut head = [number as u8; HEAD_BYTES];
    head[..8].copy_from_slice(&(length as u64).to_le_bytes());
    head
}

#[test]
fn bodies_of_all_lengths_arrive_whole_and_in_order_between_threads() {
    let lengths = [
        0,
        1,
        8,
        24,
        25,
        64,
        100,
        4095,
        4097,
        CAPACITY - 1,
        CAPACITY,
        3 * CAPACITY + 5,
    ];
    let rounds = if cfg!(miri) { 2 } else { 300 };
    let (mut writer, mut reader) = on_heap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..rounds * lengths.len() {
                let body = pattern(number, lengths[number % lengths.len()]);
                let head = head(body.len(), number);
                let mut gone = loop {
                    match writer.begin(&head, &body).expect("the reader is well") {
                        Some(gone) => break gone,
                        None => std::thread::yield_now(),
                    }
                };
                while gone < body.len() {
                    gone += writer.continue_body(&body[gone..]).expect("the reader is well");
                    std::thread::yield_now();
                }
            }
        });
        for number in 0..rounds * lengths.len() {
            let (got, body) = read(&mut reader, |reader| {
                loop {
                    match reader.next_line() {
                        Some(message) => break message,
                        None => std::thread::yield_now(),
                    }
                }
            });
            assert_eq!(got[8], number as u8);
            assert!(
                body == pattern(number, lengths[number % lengths.len()]),
                "message {number}"
            );
        }
        assert!(!reader.has_line());
    });
}

#[test]
fn a_lane_is_full_at_its_bounds_and_its_writer_is_told_of_room() {
    let (mut writer, mut reader) = on_heap();
    for _ in 0..LINES {
        assert_eq!(writer.begin(&head(0, 0), &[]), Ok(Some(0)));
    }
    assert_eq!(writer.begin(&head(0, 0), &[]), Ok(None));
    assert_eq!(writer.announce_stall(), Ok(false));
    let mut told = 0;
    while reader.next_line().is_some() {
        told += u32::from(reader.release());
    }
    assert_eq!(told, 1, "once for each time that the writer waits");
    assert_eq!(writer.announce_stall(), Ok(true));
    let body = vec![1; 2 * CAPACITY];
    let first = writer
        .begin(&head(body.len(), 0), &body)
        .expect("it is well")
        .expect("there is room");
    let rest = writer.continue_body(&body[first..]).expect("it is well");
    assert_eq!(first + rest, CAPACITY);
    assert_eq!(writer.continue_body(&body), Ok(0));
}

/// Whichever bytes the memory contains, neither end accesses bytes outside of it.
#[cfg(not(miri))]
#[test]
fn garbage_is_refused_or_read_as_garbage() {
    let mut word = 88_172_645_463_325_252_u64;
    let mut random = move || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    };
    let mut refused = 0;
    for _ in 0..2000 {
        let (mut writer, mut reader) = on_heap();
        let start = reader.space.start;
        for _ in 0..random() % 64 {
            let at = random() as usize % ((BYTES_AT + CAPACITY) / 8) * 8;
            // SAFETY: inside the memory, and aligned; as a hostile process would do.
            unsafe { start.add(at).cast::<AtomicU64>().as_ref() }.store(random(), Ordering::Relaxed);
        }
        // Publishes the next lines with valid sequence words and random content.
        for number in 0..4 {
            let mut words = std::array::from_fn(|_| random());
            words[0] = Seq::new(1, number).word();
            reader.space.line(number).publish(&words);
        }
        let mut into = vec![0; CAPACITY];
        while let Some(message) = reader.next_line() {
            let piece = message.first_piece() as usize % (CAPACITY + 1);
            reader.take(&mut into[..piece]);
            reader.skip(message.next_piece() as usize);
            reader.release();
        }
        for _ in 0..LINES + 1 {
            match writer.begin(&head(0, 0), &[]) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(LaneError) => {
                    refused += 1;
                    break;
                }
            }
        }
    }
    assert!(refused > 100, "only {refused} were refused");
}

#[cfg(not(miri))]
#[test]
fn only_the_memory_that_was_meant_is_opened() {
    let writer = LaneWriter::create(CAPACITY, 7).expect("memory");
    let (process, descriptor) = (std::process::id(), writer.descriptor().expect("it is open"));
    let open = |descriptor, capacity, key| LaneReader::open(process, descriptor, capacity, key).map(drop);
    assert!(open(descriptor, CAPACITY, 7).is_ok());
    assert!(matches!(open(descriptor, CAPACITY, 8), Err(MemoryError::OtherObject)));
    assert!(matches!(
        open(descriptor, 2 * CAPACITY, 7),
        Err(MemoryError::TooSmall { .. })
    ));
    assert!(matches!(
        open(descriptor, CAPACITY + 1, 7),
        Err(MemoryError::BadSize { .. })
    ));
    let file = tempfile::tempfile().expect("a file");
    assert!(matches!(
        open(file.as_raw_fd() as u32, CAPACITY, 7),
        Err(MemoryError::NotSealed)
    ));
    assert!(matches!(open(u32::MAX, CAPACITY, 7), Err(MemoryError::System { .. })));
}

/// Exposes bodies to a reader in the same process, as a member in another process does.
#[cfg(not(miri))]
#[test]
fn an_exposed_body_is_read_while_it_is_valid_or_taken_from_the_lane() {
    let key = 7;
    let mut writer = LaneWriter::create(CAPACITY, key).expect("memory");
    let descriptor = writer.descriptor().expect("it is open");
    assert!(!writer.may_expose(100), "no reader has said that it can read");
    let mut reader = LaneReader::open(std::process::id(), descriptor, CAPACITY, key).expect("it is there");
    assert!(writer.may_expose(100) && writer.may_expose(CAPACITY));
    assert!(!writer.may_expose(INLINE_BYTES) && !writer.may_expose(CAPACITY + 1));

    let body = pattern(1, 100);
    let valid = AtomicU64::new(key);
    let source = BodySource {
        address: body.as_ptr().addr() as u64,
        validity: std::ptr::from_ref(&valid).addr() as u64,
    };
    assert!(writer.is_readable(source, body.len()));
    assert!(!writer.is_readable(BodySource { address: 8, ..source }, body.len()));
    let expose = |writer: &mut LaneWriter, reader: &mut LaneReader| {
        let exposed = writer.expose(&head(100, 0), source, 100).expect("it is well");
        assert_eq!(reader.next_line().expect("a line").source(), Some(source));
        exposed.expect("there is room")
    };
    let mut into = vec![0; 100];

    let exposed = expose(&mut writer, &mut reader);
    assert_eq!(reader.claim(), Ok(BodyPlace::Source));
    assert_eq!(reader.read_source(source, &mut into), Ok(()));
    assert!(into == body && !writer.is_copied(&exposed));
    assert!(!writer.withdraw(&exposed, &body), "it is claimed");
    reader.finish(100);
    assert!(writer.is_copied(&exposed));

    let exposed = expose(&mut writer, &mut reader);
    assert!(writer.withdraw(&exposed, &body));
    assert_eq!(reader.claim(), Ok(BodyPlace::Lane));
    into.fill(0);
    reader.take(&mut into);
    assert!(into == body);

    expose(&mut writer, &mut reader);
    assert_eq!(reader.claim(), Ok(BodyPlace::Source));
    valid.store(0, Ordering::Relaxed);
    assert_eq!(reader.read_source(source, &mut into), Err(SourceLost));
    valid.store(key, Ordering::Relaxed);
    assert_eq!(reader.read_source(source, &mut into), Ok(()));
    drop(writer);
    assert_eq!(reader.read_source(source, &mut into), Err(SourceLost));
}

#[cfg(not(miri))]
#[test]
fn a_bell_wakes_a_sleeping_reader_and_is_not_rung_otherwise() {
    use crate::lane::{Bell, PeerBell};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut bell = Bell::create(5).expect("memory");
    let place = bell.place();
    assert!(PeerBell::open(&super::super::BellAddress { key: 6, ..place }).is_err());
    // Another pipe of the process: a peer must not make others write into it.
    let (_reader, other) = nix::unistd::pipe().expect("a pipe");
    let pipe = other.as_raw_fd() as u32;
    assert!(PeerBell::open(&super::super::BellAddress { pipe, ..place }).is_err());
    let far = PeerBell::open(&place).expect("it is there");
    let is_rung = |bell: &Bell, timeout: u16| {
        // SAFETY: the descriptor is open as long as the bell lives.
        let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(bell.descriptor()) };
        let mut polled = [PollFd::new(descriptor, PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::from(timeout)).expect("it can be polled") > 0
    };
    far.ring();
    assert!(!is_rung(&bell, 0), "neither end sleeps");
    bell.arm();
    std::thread::scope(|scope| {
        scope.spawn(|| far.ring());
        assert!(is_rung(&bell, 10_000));
    });
    bell.disarm();
    assert!(!is_rung(&bell, 0), "it was taken");
}
