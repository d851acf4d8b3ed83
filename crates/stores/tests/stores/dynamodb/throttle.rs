//! Test of a table that has no throughput left for some time. The server of the tests never reports this, so a proxy
//! reports it.

use super::local::{PORT, text};
use crate::group;
use hotlease_comm::{Options, Pattern};
use std::io::{BufRead, BufReader, Result, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time of throttling, longer than requests are repeated for other reasons.
const THROTTLED: Duration = Duration::from_secs(2);
const BOUND: Duration = Duration::from_secs(30);
/// Number of messages; one request cannot remove the items of all of them.
const MESSAGES: u32 = 60;

#[derive(Default)]
struct Proxy {
    has_nothing_left: AtomicBool,
    refused: AtomicU32,
    unprocessed: AtomicU32,
}

/// A request or an answer: its first lines and its body.
struct Message {
    head: String,
    body: Vec<u8>,
}

fn read(from: &mut impl BufRead) -> Result<Option<Message>> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let begin = head.len();
        if from.read_line(&mut head)? == 0 {
            return Ok(None);
        }
        let line = head[begin..].to_ascii_lowercase();
        if let Some(number) = line.strip_prefix("content-length:") {
            length = number.trim().parse().expect("a number");
        }
        if line == "\r\n" {
            let mut body = vec![0; length];
            from.read_exact(&mut body)?;
            return Ok(Some(Message { head, body }));
        }
    }
}

fn write(to: &mut TcpStream, message: &Message) -> Result<()> {
    to.write_all(&[message.head.as_bytes(), &message.body].concat())
}

fn answer(status: &str, body: String) -> Message {
    let length = body.len();
    Message {
        head: format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {length}\r\n\r\n"
        ),
        body: body.into_bytes(),
    }
}

impl Proxy {
    /// Starts the proxy and returns its port. It serves as long as this process lives.
    fn start(self: Arc<Self>) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let proxy = Arc::clone(&self);
                // The thread ends when its connection ends.
                std::thread::spawn(move || proxy.serve(client));
            }
        });
        port
    }

    fn serve(&self, mut client: TcpStream) -> Result<()> {
        let mut requests = BufReader::new(client.try_clone()?);
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, PORT))?;
        let mut answers = BufReader::new(server.try_clone()?);
        while let Some(request) = read(&mut requests)? {
            let answer = match self.refuse(&request) {
                Some(refusal) => refusal,
                None => {
                    write(&mut server, &request)?;
                    let Some(answer) = read(&mut answers)? else { break };
                    answer
                }
            };
            write(&mut client, &answer)?;
        }
        Ok(())
    }

    fn refuse(&self, request: &Message) -> Option<Message> {
        if self.has_nothing_left.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            let kind = "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException";
            return Some(answer(
                "400 Bad Request",
                format!(r#"{{"__type": "{kind}", "message": "no more"}}"#),
            ));
        }
        // Every second batch is returned as unprocessed.
        let is_batch = request.head.contains("BatchWriteItem");
        if !is_batch || self.unprocessed.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
            return None;
        }
        let body = String::from_utf8(request.body.clone()).expect("text");
        Some(answer("200 OK", body.replacen("RequestItems", "UnprocessedItems", 1)))
    }
}

/// Checks that messages sent while all requests are throttled arrive, and that none of their items remain.
pub fn waits(table: &str) {
    let proxy = Arc::new(Proxy::default());
    let link = text(table, Arc::clone(&proxy).start(), "").parse().expect("a link");
    let change = |options: &mut Options| {
        options.failure_bound = BOUND;
        options.stores = hotlease_stores::openers();
    };
    group::each_over(&link, 2, change, |all| {
        let other = 1 - all.rank();
        all.barrier().expect("both are well");
        proxy.has_nothing_left.store(true, Ordering::SeqCst);
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(THROTTLED);
                proxy.has_nothing_left.store(false, Ordering::SeqCst);
            });
            for number in 0..MESSAGES {
                all.send(&number.to_le_bytes(), other, 0).expect("it takes it");
            }
            for number in 0..MESSAGES {
                let mut word = [0; 4];
                all.receive(&mut word, Pattern::of(other, 0)).expect("it comes");
                assert_eq!(u32::from_le_bytes(word), number);
            }
        });
        assert!(began.elapsed() >= THROTTLED);
        all.finish().expect("everything is read");
    });
    assert!(proxy.refused.load(Ordering::SeqCst) > 20);
    assert!(proxy.unprocessed.load(Ordering::SeqCst) > 4);
}
