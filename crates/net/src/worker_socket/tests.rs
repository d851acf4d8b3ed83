use super::*;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Time for which a close waits, and the longest time of everything else.
const LINGER: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(10);

/// A TCP socket whose close waits for [`LINGER`], or until the other socket is closed.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let mut full = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (peer, _) = listener.accept().expect("accepted");
    socket2::SockRef::from(&full).set_linger(Some(LINGER)).expect("set");
    full.set_nonblocking(true).expect("set");
    while full.write(&[0; 1 << 16]).is_ok() {}
    (full, peer)
}

#[tokio::test]
async fn descriptors_whose_close_waits_hold_up_neither_the_runtime_nor_the_end() {
    let start = Instant::now();
    let (worker, ours) = Socket::pair().expect("a pair");
    worker.send_bytes(b"first", &[]).expect("sent");
    let mut peers = Vec::new();
    // The first descriptor is closed when it is received, the second with the socket.
    for _ in 0..2 {
        let (full, peer) = lingering();
        worker
            .send_bytes(b"x", &[full.as_fd()])
            .expect("sent, where it is not refused yet");
        peers.push(peer);
    }
    let socket = WorkerSocket::new(ours).expect("started");
    assert_eq!(socket.receive().await.expect("whole").expect("a message"), b"first");
    // The socket's thread may still wait for a close. The runtime has one thread, and no task of it waits for a close.
    let _ = timeout(Duration::from_millis(200), socket.receive()).await;
    socket.try_send(b"to the worker", &[]).expect("it can still be told");
    drop(socket);
    worker.set_receive_timeout(Some(SOON)).expect("set");
    assert_eq!(
        worker.receive_raw().expect("whole").expect("a message").0,
        b"to the worker"
    );
    assert!(worker.receive_raw().expect("closed").is_none());
    let after = worker.send_bytes(b"more", &[]).expect_err("no end takes it");
    assert_eq!(after.kind(), io::ErrorKind::BrokenPipe);
    assert!(start.elapsed() < LINGER / 2, "{:?}", start.elapsed());
}

#[tokio::test]
async fn messages_arrive_in_order_and_then_the_end() {
    let (worker, ours) = Socket::pair().expect("a pair");
    let socket = WorkerSocket::new(ours).expect("started");
    let sender = std::thread::spawn(move || {
        for number in 0..200_u8 {
            worker.send_bytes(&[number + 1], &[]).expect("sent");
        }
        let pipe = std::io::pipe().expect("a pipe");
        // The kernel refuses the message, or the other end reports an error.
        let refused = worker.send_bytes(b"x", &[pipe.0.as_fd()]);
        (worker, refused.is_err())
    });
    for number in 0..200_u8 {
        assert_eq!(socket.receive().await.expect("whole").expect("a message"), [number + 1]);
    }
    let (worker, is_refused) = sender.join().expect("sent");
    if !is_refused {
        let error = socket.receive().await.expect_err("a descriptor came");
        assert!(matches!(error, SocketError::Truncated), "{error}");
    }
    drop(worker);
    assert!(socket.receive().await.expect("closed").is_none());
}
