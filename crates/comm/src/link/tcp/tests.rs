//! Tests of the end of a connection.

use super::*;
use crate::memory::Piece;
use hotlease_wire::comm::frame::{MessageAddress, MessageClass};
use hotlease_wire::comm::greeting::MemberNode;
use std::io::Write;
use std::net::TcpListener;
use std::time::Instant;

const PATIENCE: Duration = Duration::from_secs(20);

/// Collects the received frames.
#[derive(Default)]
struct RecordedEvents(Vec<MemberFrame>);

impl Sink for RecordedEvents {
    fn frame(&mut self, _: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss> {
        self.0.push(frame);
        Ok(None)
    }

    fn body(&mut self, _: Rank, _: u64) {}
}

/// Makes a link of rank 0, and the bare connection of rank 1.
fn link() -> (Tcp, std::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let ours = std::net::TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    let (theirs, _) = listener.accept().expect("it has called");
    ours.set_nonblocking(true).expect("it is open");
    let joined = MemberConnection {
        stream: TcpStream::from_std(ours),
        cipher: None,
        rest: Vec::new(),
        route: Route::Direct,
        member_node: MemberNode::UNKNOWN,
    };
    (Tcp::new(vec![None, Some(joined)]).expect("it can be polled"), theirs)
}

fn eager(tag: u32) -> MemberFrame {
    let to = MessageAddress {
        class: MessageClass::Message,
        context: 0,
        tag,
    };
    MemberFrame::Eager { to, length: 0 }
}

#[test]
fn frames_sent_before_a_member_ended_are_read_although_nothing_can_be_sent_to_it() {
    for is_asked_by_readiness in [false, true] {
        let (mut tcp, mut theirs) = link();
        let mut seen = RecordedEvents::default();
        if is_asked_by_readiness {
            tcp.prepare_sleep();
            tcp.connections += ASKED_DIRECTLY_MAX;
        }
        theirs.write_all(&eager(7).encode()).expect("there is room");
        theirs.write_all(&eager(8).encode()).expect("there is room");
        drop(theirs);
        // Sends until the connection refuses: the other side answers the first frame with a reset.
        let began = Instant::now();
        while tcp.peers[1]
            .as_ref()
            .expect("the member stays until its frames are read")
            .unsendable
            .is_none()
        {
            assert!(began.elapsed() < PATIENCE, "a member that has ended still takes frames");
            tcp.send(1, &eager(1), Body::Borrowed(&[]));
            std::thread::yield_now();
        }
        assert_eq!(tcp.take_lost(), None, "it is lost before its frames are read");
        let lost = loop {
            assert!(began.elapsed() < PATIENCE, "it is not lost");
            tcp.poll(&mut seen);
            if let Some(lost) = tcp.take_lost() {
                break lost;
            }
        };
        assert_eq!(seen.0, [eager(7), eager(8)]);
        assert_eq!(lost, (1, Loss::Closed));
        assert!(!tcp.is_sending());
    }
}
