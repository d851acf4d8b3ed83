use super::*;
use crate::peer::{CertificateRole, Peer};
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

/// Chance decides whether the relay notices the last message or the failed write first, so the test tries many times.
#[tokio::test]
async fn messages_sent_before_the_other_host_closed_arrive_although_writing_fails() {
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

/// Relay of a session whose client may have 4 KiB of memory on its way; returns the agent's end, and the client's.
fn session() -> (Socket, FrameWriter<tokio::io::DuplexStream>) {
    let (client, host) = tokio::io::duplex(1 << 16);
    let (ours, theirs) = Socket::pair().expect("sockets");
    theirs.set_nonblocking(true).expect("set");
    let peer = Peer {
        role: CertificateRole::Client,
        name: "alice".into(),
        tenant: Some("alice".into()),
        hosts: Vec::new(),
        fingerprint: [0; 32],
    };
    let side = RelaySide::AgentSession {
        tickets: Arc::default(),
        holder: TicketHolder::Certified(peer),
        arrivals: Arc::new(Arrivals::new(8 << 10, 4 << 10)),
        unanswered: StdMutex::default(),
        receiving: Arc::default(),
    };
    let local = LocalSocket::new(ours).expect("on the runtime");
    let long = Duration::from_secs(30);
    tokio::spawn(relay(local, split_frames(host, "a client", long), side));
    (theirs, split_frames(client, "the agent", long).1)
}

/// Sends a message with this many memories of 4 KiB. Errors are ignored: the session may have ended already.
async fn send_with_memory(client: &mut FrameWriter<tokio::io::DuplexStream>, word: &[u8], memories: usize) {
    let attachments = vec![Attachment::Memory { size_bytes: 4096 }; memories];
    let bytes = word.to_vec();
    let _ = client.send(&TunnelFrame::Message { bytes, attachments }).await;
    for _ in 0..memories {
        let _ = client.send_bytes(&[7; 4096]).await;
    }
    let _ = client.send(&TunnelFrame::Alive).await;
}

/// The next message to the agent; `None` if none arrives in time.
async fn next(agent: &Socket, within: Duration) -> Option<Vec<u8>> {
    let received = timeout(within, async {
        loop {
            match agent.receive_raw() {
                Err(error) if error.would_block() => tokio::time::sleep(Duration::from_millis(1)).await,
                received => return received.expect("readable").map(|(bytes, _)| bytes),
            }
        }
    });
    received.await.ok().flatten()
}

#[tokio::test]
async fn memory_counts_until_the_agent_has_answered_the_request_that_it_came_with() {
    let (agent, mut client) = session();
    let (moment, long) = (Duration::from_millis(50), Duration::from_secs(30));
    send_with_memory(&mut client, b"first", 1).await;
    send_with_memory(&mut client, b"second", 1).await;
    assert_eq!(next(&agent, long).await.as_deref(), Some(&b"first"[..]));
    assert_eq!(next(&agent, moment).await, None, "it has the memory of both");
    agent.send(&SessionReply::RoomWanted, &[]).expect("sent");
    assert_eq!(next(&agent, moment).await, None, "an event is no answer");
    agent
        .send(&SessionReply::Refused(Rejection::BadToken), &[])
        .expect("sent");
    assert_eq!(next(&agent, long).await.as_deref(), Some(&b"second"[..]));
}

#[tokio::test]
async fn a_message_brings_one_memory_at_most() {
    let (agent, mut client) = session();
    send_with_memory(&mut client, b"two", 2).await;
    let received = timeout(Duration::from_secs(30), async {
        loop {
            match agent.receive_raw() {
                Err(error) if error.would_block() => tokio::time::sleep(Duration::from_millis(1)).await,
                received => return received.expect("readable"),
            }
        }
    });
    assert!(received.await.expect("the session ends").is_none(), "both came");
}
