//! HTTP/1.1 over any stream, byte by byte as a test defines it; tests can also send what a correct client never sends.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Time limit of an answer.
const LIMIT: Duration = Duration::from_secs(20);
/// Longest answer that a test reads, bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// Headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: String,
}

impl Answer {
    /// Value of a header; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If the body is not JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }
}

/// A connection to the REST interface of a runtime directory.
///
/// # Panics
/// If there is no REST interface.
pub fn connect(directory: &Path) -> UnixStream {
    let stream = UnixStream::connect(directory.join("rest.sock")).expect("the REST interface");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    stream.set_write_timeout(Some(LIMIT)).expect("a limit");
    stream
}

/// Sends a request over a new connection. `headers` are lines with line ends; Host is added.
///
/// # Panics
/// If there is no answer.
pub fn ask(directory: &Path, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let mut stream = connect(directory);
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    answer(&mut stream, method == "HEAD").expect("an answer")
}

/// Asks for a path.
///
/// # Panics
/// If there is no answer.
pub fn get(directory: &Path, path: &str) -> Answer {
    ask(directory, "GET", path, "", "")
}

/// Reads one answer; fails if there is no answer, or if it is not HTTP.
pub fn answer(stream: &mut impl Read, is_head: bool) -> io::Result<Answer> {
    let bad = |what: &str| io::Error::new(ErrorKind::InvalidData, what.to_owned());
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
        if head.len() > ANSWER_BYTES_MAX {
            return Err(bad("endless headers"));
        }
    }
    let head = String::from_utf8(head).map_err(|_| bad("headers that are no text"))?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let status = status
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| bad("no status"))?;
    let headers = lines.filter_map(|line| line.split_once(": "));
    let mut answer = Answer {
        status,
        headers: headers
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect(),
        body: String::new(),
    };
    let length = answer.header("content-length").parse().unwrap_or(0);
    if length > ANSWER_BYTES_MAX {
        return Err(bad("an endless answer"));
    }
    if !is_head {
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        answer.body = String::from_utf8(body).map_err(|_| bad("a body that is no text"))?;
    }
    Ok(answer)
}
