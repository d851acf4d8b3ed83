//! Transfer of a state to and from a worker: through a pipe, so that a worker cannot access the file, and neither side
//! holds the state in memory twice. Each side waits for the other for at most the agreed time.

use super::files::StateWriter;
use crate::workers::worker::{OrderError, StartError, StartedWorker};
use hotlease_wire::control::WorkerOrder;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;

/// Size of a pipe in bytes, if the system allows this size; the default is 16 pages.
const PIPE_BYTES: i32 = 1 << 20;
/// Bytes that are moved at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Reason why a state was not saved.
pub(crate) enum SaveError {
    /// The worker reports the reason, and still serves.
    Refused(String),
    /// The worker does not serve any more, or its condition is unknown.
    Lost(String),
}

/// Makes a worker write its state, while it runs no function; afterwards it serves no client.
pub(super) async fn save(worker: &StartedWorker, part: StateWriter, limit: Duration) -> Result<StateWriter, SaveError> {
    let begun = Instant::now();
    let pipe = pipe().and_then(|(reader, writer)| Ok((without_waiting(reader)?, writer)));
    let (reader, writer) = pipe.map_err(|error| SaveError::Refused(format!("a pipe: {error}")))?;
    let sent = worker.send(&WorkerOrder::Save, &[writer.as_fd()]);
    drop(writer);
    let receiving = spawn_blocking(move || receive(reader, part, begun + limit));
    let done = sent.wait_for_answer(limit).await;
    let received = receiving
        .await
        .unwrap_or_else(|error| Err(ReceiveError::Local(error.to_string())));
    match (done, received) {
        (Ok(()), Ok(part)) => Ok(part),
        (Ok(()), Err(ReceiveError::Local(why))) => Err(SaveError::Lost(why)),
        (Ok(()), Err(ReceiveError::WorkerClosed)) => Err(SaveError::Lost(
            "its worker sent fewer bytes than it had announced".into(),
        )),
        // If this side has failed, its own reason is reported: the worker saw only that its pipe was closed.
        (Err(OrderError::Failed(_)), Err(ReceiveError::Local(why))) | (Err(OrderError::Failed(why)), _) => {
            Err(SaveError::Refused(why))
        }
        (Err(OrderError::Died), _) => Err(SaveError::Lost("its worker died while saving it".into())),
        (Err(OrderError::TimedOut), _) => Err(SaveError::Lost(format!(
            "its worker did not save it within {} ms (--swap-limit of the agent)",
            limit.as_millis()
        ))),
    }
}

/// Makes a worker restore this state, before it serves any client. Without a state, asks whether it could save one.
pub(super) async fn restore(
    worker: &StartedWorker,
    state: Option<(File, u64)>,
    limit: Duration,
) -> Result<(), StartError> {
    let until = Instant::now() + limit;
    let answer = match state {
        None => {
            let order = WorkerOrder::Restore { size_bytes: None };
            worker.send(&order, &[]).wait_for_answer(limit).await
        }
        Some((file, bytes)) => {
            let pipe = pipe().and_then(|(reader, writer)| Ok((reader, without_waiting(writer)?)));
            let (reader, writer) = pipe.map_err(|error| StartError::for_now(format!("a pipe: {error}")))?;
            let order = WorkerOrder::Restore {
                size_bytes: Some(bytes),
            };
            let sent = worker.send(&order, &[reader.as_fd()]);
            drop(reader);
            let giving = spawn_blocking(move || give(file, writer, until));
            let answer = sent.wait_for_answer(limit).await;
            // If the worker reports success, its report is used. If it reports a failure, an error on this side
            // explains it better.
            let given = giving.await.unwrap_or_else(|error| Err(error.to_string()));
            match (answer, given) {
                (Err(OrderError::Failed(_)), Err(why)) if !why.is_empty() => Err(OrderError::Failed(why)),
                (answer, _) => answer,
            }
        }
    };
    match answer {
        Ok(()) => Ok(()),
        Err(OrderError::Failed(why)) => Err(StartError::for_good(why)),
        Err(OrderError::Died) => {
            // If the worker has only closed its end, it cannot serve any more, and is killed.
            worker.kill();
            Err(StartError::from(&*worker.wait_for_exit().await))
        }
        Err(OrderError::TimedOut) => Err(StartError::for_now(format!(
            "its worker was not done within {} ms",
            limit.as_millis()
        ))),
    }
}

/// Reason why a state was not received.
enum ReceiveError {
    /// The worker closed its end.
    WorkerClosed,
    /// An error on this side.
    Local(String),
}

/// Receives all pieces, each after its length. Blocks.
fn receive(mut pipe: PipeReader, mut part: StateWriter, until: Instant) -> Result<StateWriter, ReceiveError> {
    let mut room = vec![0; PIECE_BYTES];
    loop {
        let mut length = [0; 8];
        let mut known = 0;
        while known < length.len() {
            known += read_some(&mut pipe, &mut length[known..], until)?;
        }
        let mut left = u64::from_le_bytes(length);
        if left == 0 {
            return Ok(part);
        }
        part.expect(left).map_err(ReceiveError::Local)?;
        while left > 0 {
            let most = room.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = read_some(&mut pipe, &mut room[..most], until)?;
            part.add(&room[..count]).map_err(ReceiveError::Local)?;
            left -= count as u64;
        }
    }
}

/// Reads at least one byte. Looks at the deadline before each read, so that a worker that sends without pause is
/// stopped, too.
fn read_some(pipe: &mut PipeReader, place: &mut [u8], until: Instant) -> Result<usize, ReceiveError> {
    loop {
        if Instant::now() >= until {
            // The caller that waits for the answer reports the timeout.
            return Err(ReceiveError::WorkerClosed);
        }
        match pipe.read(place) {
            Ok(0) => return Err(ReceiveError::WorkerClosed),
            Ok(count) => return Ok(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                is_ready(pipe.as_fd(), PollFlags::POLLIN, until);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ReceiveError::Local(format!("its pipe: {error}"))),
        }
    }
}

/// Writes a whole file. Blocks. An empty error means that the worker has closed its end, and reports the reason, or
/// that the time is over.
fn give(mut file: File, mut pipe: PipeWriter, until: Instant) -> Result<(), String> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = file.read(&mut piece).map_err(|error| error.to_string())?;
        if count == 0 {
            return Ok(());
        }
        let mut left = &piece[..count];
        while !left.is_empty() {
            match pipe.write(left) {
                Ok(written) => left = &left[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock
                        && is_ready(pipe.as_fd(), PollFlags::POLLOUT, until) => {}
                Err(_) => return Err(String::new()),
            }
        }
    }
}

/// Waits until the descriptor is ready, or the time is over.
fn is_ready(fd: BorrowedFd<'_>, what: PollFlags, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd, what)], wait) {
            Ok(0) | Err(nix::errno::Errno::EINTR) if Instant::now() < until => {}
            Ok(0) | Err(_) => return false,
            Ok(_) => return true,
        }
    }
}

/// Makes this end non-blocking, and the pipe as large as allowed.
fn without_waiting<P: AsFd>(end: P) -> io::Result<P> {
    let flags = OFlag::from_bits_retain(fcntl(&end, FcntlArg::F_GETFL)?);
    fcntl(&end, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    // A smaller pipe is slower, but works.
    let _ = fcntl(&end, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::super::SwapOptions;
    use super::super::files::{StateClaim, StateLock, StateRequest};
    use super::*;
    use hotlease_wire::ids::LeaseId;

    /// Receives what `write` sends in place of a worker, within this time. Returns the saved bytes, or the error; an
    /// empty error means that the worker has to report the reason.
    fn received_of(
        state_bytes: u64,
        within: Duration,
        write: impl FnOnce(PipeWriter) + Send + 'static,
    ) -> Result<Vec<u8>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let options = SwapOptions {
            state_bytes,
            ..SwapOptions::new(folder.path())
        };
        let wanted = StateRequest {
            tenant: "uid:7".into(),
            name: "model".into(),
            program: [1; 32],
            lease: LeaseId([1; 8]),
        };
        let StateClaim::Held(hold) = StateLock::try_take(folder.path(), wanted, "test").expect("a folder") else {
            panic!("another lease has it");
        };
        let (reader, writer) = pipe().expect("a pipe");
        let reader = without_waiting(reader).expect("our end");
        let part = hold.part(&options).expect("a file");
        let until = Instant::now() + within;
        std::thread::spawn(move || write(writer));
        let part = receive(reader, part, until).map_err(|stopped| match stopped {
            ReceiveError::WorkerClosed => String::new(),
            ReceiveError::Local(why) => why,
        })?;
        let (path, bytes) = part.finish("node1").expect("the state is written");
        let saved = std::fs::read(path)
            .expect("a state")
            .split_off(hotlease_wire::state::HEAD_BYTES);
        assert_eq!(saved.len() as u64, bytes);
        Ok(saved)
    }

    /// Receives these bytes from a worker.
    fn received(sent: &[&[u8]]) -> Result<Vec<u8>, String> {
        let sent = sent.concat();
        received_of(16, Duration::from_secs(30), move |mut writer| {
            // Fails if the limit is exceeded, because the reader then stops.
            let _ = writer.write_all(&sent);
        })
    }

    #[test]
    fn a_worker_that_sends_without_end_is_stopped_in_time() {
        let pieces = [&1_u64.to_le_bytes()[..], b"x"].concat().repeat(1000);
        let (sender, ended) = std::sync::mpsc::channel();
        let begun = Instant::now();
        let received = received_of(8 << 20, Duration::from_millis(100), move |mut writer| {
            while writer.write_all(&pieces).is_ok() {}
            // The test waits for this below.
            let _ = sender.send(());
        });
        assert_eq!(received, Err(String::new()));
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        ended.recv().expect("its pipe is closed");
    }

    #[test]
    fn pieces_are_a_state_and_no_length_from_a_worker_is_believed() {
        let length = |bytes: u64| bytes.to_le_bytes();
        let (none, two, eight) = (&length(0)[..], &length(2)[..], &length(8)[..]);
        assert_eq!(received(&[none]), Ok(vec![]));
        let pieces = [two, b"ab", eight, b"cdefghij", two, b"kl", none];
        assert_eq!(received(&pieces), Ok(b"abcdefghijkl".to_vec()));
        for cut in [&[][..], &[two], &[two, b"a"], &[two, b"ab"], &[two, b"ab", &none[..7]]] {
            assert_eq!(received(cut), Err(String::new()), "{cut:?}");
        }
        for (first, said) in [
            (&[][..], u64::MAX),
            (&[two, b"ab"], u64::MAX),
            (&[two, b"ab"], 15),
            (&[], 17),
        ] {
            let why = received(&[first, &[&length(said)]].concat()).expect_err("too long");
            assert!(why.contains("and may have 16"), "{why}");
        }
    }
}
