//! Client of the rendezvous: one request, and the answer when all members have arrived.

use crate::error::Error;
use crate::link::cipher::{self, Cipher, HandshakeError, Initiator};
use crate::link::port::{SharedPort, call_from_any};
use crate::options::Options;
use hotlease_wire::comm::GroupId;
use hotlease_wire::comm::greeting::{Greeting, Purpose, Verdict};
use hotlease_wire::comm::rendezvous::{
    AnswerPieces, Join, JoinAnswer, JoinQuestion, MAPPING_MS_MAX, Meeting, MemberAddress,
};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// First pause before the rendezvous is tried again; doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Time after the deadline at which the rendezvous is taken for dead: a live one would have reported the end of the
/// wait.
const GRACE: Duration = Duration::from_secs(2);

/// Group that has met, and the place of this member in it.
pub(crate) struct MeetingResult {
    pub(crate) group: GroupId,
    pub(crate) rank: u32,
    pub(crate) members: Vec<MemberAddress>,
    /// Address of the rendezvous, if it relays.
    pub(crate) relay: Option<SocketAddr>,
    /// Port on which this member listens.
    pub(crate) port: SharedPort,
    /// Connection with the rendezvous. While it is open, a NAT retains the address that it has assigned to the port.
    pub(crate) stream: TcpStream,
}

/// Request of a member to the rendezvous.
pub(crate) struct MeetingRequest<'a> {
    pub(crate) options: &'a Options,
    /// Number of members that are to meet; in a meeting of the rest of a communicator, the number of all its members.
    pub(crate) size: u32,
    pub(crate) rank: Option<u32>,
    /// Returns the meeting. In a meeting of the rest of a communicator, it is called again during the wait for the
    /// other members.
    pub(crate) meeting: &'a dyn Fn() -> Meeting,
}

/// Interval at which a member that waits for the rest of a communicator checks for further losses.
const LOSS_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Connects to the rendezvous, and waits until all members have arrived.
pub(crate) fn meet(errand: &MeetingRequest<'_>, began: Instant) -> Result<MeetingResult, Error> {
    let options = errand.options;
    let mut meeting = (errand.meeting)();
    let deadline = began + options.join_timeout;
    let (port, (mut stream, mut cipher, mut rest)) = loop {
        let reached = reach(options, began, deadline)?;
        match SharedPort::shared_with(&reached.0, options.address.is_some()) {
            Ok(port) => break (port, reached),
            // Since the port was chosen for the connection, a socket has begun to listen on it: take another port.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {}
            Err(error) => return Err(Error::local("listen for other members")(error)),
        }
    };
    let mut address = port.local();
    if let Some(told) = options.address {
        address.set_ip(told);
    }
    let remaining = deadline.saturating_duration_since(Instant::now());
    let join = JoinQuestion::Join(Join {
        name: options.name.clone(),
        size: errand.size,
        rank: errand.rank,
        address,
        wait_ms: remaining.as_millis() as u64,
        meeting: meeting.clone(),
        link: options.agreement()?,
    });
    let lost = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => bad_answer_error(options),
        _ => unanswered_error(options, began, explain(&error)),
    };
    ask(&mut stream, &mut cipher, &join).map_err(lost)?;
    let rendezvous = stream.peer_addr().map_err(lost)?;
    let latest = deadline + GRACE;
    let is_rest = matches!(meeting, Meeting::Rest { .. });
    let mut pieces = AnswerPieces::default();
    let mut is_seen = false;
    loop {
        let until = if is_rest {
            latest.min(Instant::now() + LOSS_CHECK_INTERVAL)
        } else {
            latest
        };
        let answer = match read_answer(&mut stream, &mut cipher, &mut rest, &mut pieces, until) {
            Ok(answer) => answer,
            Err(error) if !is_late(&error) || Instant::now() >= latest => return Err(lost(error)),
            Err(_) => {
                let now = (errand.meeting)();
                if let Meeting::Rest { lost: ranks, .. } = &now
                    && now != meeting
                {
                    // Asks on the same connection, because the answer may already be on its way there.
                    ask(&mut stream, &mut cipher, &JoinQuestion::Lost(ranks.clone())).map_err(lost)?;
                    meeting = now;
                }
                continue;
            }
        };
        match answer {
            JoinAnswer::Seen { port: second, number } if !is_seen => {
                is_seen = true;
                let to = SocketAddr::new(rendezvous.ip(), second);
                if let Err(error) = show_mapping(options, &port, to, number) {
                    tracing::debug!(%to, %error, "the second port of the rendezvous does not answer");
                }
            }
            JoinAnswer::Together {
                group,
                rank,
                members,
                relays,
            } if members.len() == errand.size as usize || is_rest && members.len() < errand.size as usize => {
                return Ok(MeetingResult {
                    group,
                    rank,
                    members,
                    relay: relays.then_some(rendezvous),
                    port,
                    stream,
                });
            }
            JoinAnswer::Refused(refused) => {
                return Err(Error::RendezvousRefused {
                    name: options.name.clone(),
                    refused,
                });
            }
            _ => return Err(bad_answer_error(options)),
        }
    }
}

fn bad_answer_error(options: &Options) -> Error {
    Error::Rejection {
        peer: rendezvous_text(options),
        why: "its answer makes no sense; install the same hotlease everywhere".into(),
    }
}

/// Connects to the second port of the rendezvous, to show which address a NAT assigns to this connection.
fn show_mapping(options: &Options, port: &SharedPort, to: SocketAddr, number: GroupId) -> io::Result<()> {
    let mut stream = port.call_and_wait(to, Duration::from_millis(MAPPING_MS_MAX))?;
    let greeting = Greeting {
        purpose: Purpose::Mapping,
        key: options.secret.id(),
        group: number,
    };
    stream.write_all(&greeting.encode())
}

fn rendezvous_text(options: &Options) -> String {
    format!("the rendezvous at {}", options.rendezvous)
}

fn unanswered_error(options: &Options, began: Instant, why: String) -> Error {
    Error::NoRendezvous {
        address: options.rendezvous.clone(),
        waited: began.elapsed(),
        why,
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "it closed the connection: it has ended, or was stopped".into(),
        _ if is_late(error) => "it does not answer".into(),
        _ => error.to_string(),
    }
}

/// Opens a connection that has proved the secret. The rendezvous may be started after its members.
pub(super) fn reach(
    options: &Options,
    began: Instant,
    deadline: Instant,
) -> Result<(TcpStream, Cipher, Vec<u8>), Error> {
    let mut pause = PAUSE_MIN;
    loop {
        let why = match call(options, deadline) {
            Ok(reached) => return Ok(reached),
            Err(CallError::Final(error)) => return Err(error),
            Err(CallError::Again(why)) => why,
        };
        if Instant::now() + pause >= deadline {
            return Err(unanswered_error(options, began, why));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

enum CallError {
    Again(String),
    Final(Error),
}

fn call(options: &Options, deadline: Instant) -> Result<(TcpStream, Cipher, Vec<u8>), CallError> {
    let again = |error: io::Error| CallError::Again(explain(&error));
    let addresses = options
        .rendezvous
        .to_socket_addrs()
        .map_err(|error| match error.kind() {
            // The text is no address: another look-up finds nothing else.
            io::ErrorKind::InvalidInput => CallError::Final(Error::Options {
                what: format!("a rendezvous at {:?}; it must be `host:port`", options.rendezvous),
            }),
            _ => again(error),
        })?;
    let mut stream = Err(io::Error::other("its name has no address"));
    for address in addresses {
        let remaining = deadline.saturating_duration_since(Instant::now());
        stream = call_from_any(address, remaining.max(Duration::from_millis(1)));
        if stream.is_ok() {
            break;
        }
    }
    let mut stream = stream.map_err(again)?;
    stream.set_nodelay(true).map_err(again)?;
    let greeting = Greeting {
        purpose: Purpose::Rendezvous,
        key: options.secret.id(),
        group: GroupId::NONE,
    };
    let caller = Initiator::new(&options.secret, &greeting, &[]);
    let (mut caller, first) = caller.ok_or_else(|| CallError::Again("no random numbers".into()))?;
    stream.write_all(&first).map_err(again)?;
    let mut bytes = [0; 1024];
    loop {
        let got = read_some(&mut stream, &mut bytes, deadline).map_err(again)?;
        let peer = || rendezvous_text(options);
        match caller.read(&bytes[..got]) {
            Ok(None) => {}
            Ok(Some((cipher, rest))) => return Ok((stream, cipher, rest)),
            Err(HandshakeError::Refused(Verdict::OtherSecret)) => {
                return Err(CallError::Final(Error::SecretMismatch { peer: peer() }));
            }
            Err(HandshakeError::Refused(Verdict::Busy)) => {
                return Err(CallError::Again(cipher::explain(Verdict::Busy).into()));
            }
            Err(HandshakeError::Refused(verdict) | HandshakeError::Refuse(verdict)) => {
                let why = cipher::explain(verdict).into();
                return Err(CallError::Final(Error::Rejection { peer: peer(), why }));
            }
            Err(HandshakeError::Stranger(why)) => {
                let why = why.into();
                return Err(CallError::Final(Error::Rejection { peer: peer(), why }));
            }
        }
    }
}

fn read_some(stream: &mut TcpStream, bytes: &mut [u8], deadline: Instant) -> io::Result<usize> {
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(remaining))?;
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

pub(super) fn ask(stream: &mut TcpStream, cipher: &mut Cipher, question: &JoinQuestion) -> io::Result<()> {
    let mut record = Vec::new();
    cipher.seal(&hotlease_wire::encode(question), &mut record);
    stream.write_all(&record)
}

pub(super) fn read_answer(
    stream: &mut TcpStream,
    cipher: &mut Cipher,
    got: &mut Vec<u8>,
    pieces: &mut AnswerPieces,
    deadline: Instant,
) -> io::Result<JoinAnswer> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    let mut bytes = [0; 16 * 1024];
    loop {
        while let Some(piece) = cipher.open_next(got).map_err(|_| wrong())? {
            if let Some(answer) = pieces.take(&piece).map_err(|_| wrong())? {
                return Ok(answer);
            }
        }
        let some = read_some(stream, &mut bytes, deadline)?;
        got.extend_from_slice(&bytes[..some]);
    }
}
