use super::*;
use crate::tunnel::frames::split_frames;
use hotlease_fabric::socket::Socket;
use std::io::{self, Cursor};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::join;

/// Host that has sent its last message and closed: each write to it fails.
struct ClosedHost;

impl AsyncWrite for ClosedHost {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Chance decides which of the two is noticed first, so the test repeats it.
#[tokio::test]
async fn what_the_other_host_said_before_it_closed_arrives_though_nothing_can_be_said_to_it() {
    for _ in 0..50 {
        let last = TunnelFrame::Message {
            bytes: b"the last".to_vec(),
            attachments: Vec::new(),
        };
        let stream = join(Cursor::new(last.encode()), ClosedHost);
        let (ours, theirs) = Socket::pair().expect("sockets");
        let local = LocalSocket::new(ours).expect("on the runtime");
        let stream = split_frames(stream, "the agent", Duration::from_secs(30));
        relay(local, stream, RelaySide::Worker).await;
        let (bytes, _) = theirs.receive_raw().expect("it is whole").expect("it has come");
        assert_eq!(bytes, b"the last");
        assert!(theirs.receive_raw().expect("closed").is_none());
    }
}
