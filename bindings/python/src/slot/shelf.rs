//! Shelf: results that stay here until no task needs them, and their delivery to other workers.
//!
//! A peer that has a result's secret gets the result ([`hotlease_wire::task::left_results`]). The secret is in the
//! reply to the client, and the client passes it to the workers that need the result. Nothing here needs Python.
//! Separate threads serve the connections; their number and the time of each are limited. A peer without the secret
//! gets a nonce, and is cut off after [`PROVING`].

use crate::locks::locked;
use crate::slot::output::{KeptResults, ReplyDestination};
use crate::slot::request::RequestBytes;
use hotlease_wire::task::left_results::{
    CHALLENGE_BYTES, CLAIM_BYTES, Challenge, Claim, Exchange, LEFT_BYTES_MAX, LEFT_MAX, LeftResult, Nonce, ResultSecret,
};
use hotlease_wire::task::{TaskRequest, reply};
use hotlease_worker::address_for_clients;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// Limit of the simultaneous connections. Further connections are closed, and their peers get the result from the
/// client instead.
const CONNECTIONS_MAX: usize = 64;
/// Time in which a peer has to prove that it has a secret.
const PROVING: Duration = Duration::from_secs(2);
/// Time after which a connection ends if its peer accepts no bytes.
const STALLED: Duration = Duration::from_secs(10);
/// Pause before the next accept attempt, after an attempt failed for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Stack of each thread of a shelf, bytes.
const STACK_BYTES: usize = 128 << 10;

/// Shelf of this process, made when the first result is left; `None` if no peer could reach it.
static SHELF: OnceLock<Option<Arc<Shelf>>> = OnceLock::new();

/// A reply on the shelf.
pub struct ShelvedReply {
    secret: ResultSecret,
    /// Bytes of the reply.
    pub whole: Vec<u8>,
}

#[derive(Default)]
struct Results {
    standing: HashMap<u64, Arc<ShelvedReply>>,
    bytes: usize,
}

struct Shelf {
    address: SocketAddr,
    results: Mutex<Results>,
    connections: AtomicUsize,
}

/// Puts a reply on the shelf. Returns the reply as the error if there is no room, or peers cannot reach this host.
pub fn leave(ticket: u64, whole: Vec<u8>) -> Result<LeftResult, Vec<u8>> {
    let Some(shelf) = SHELF.get_or_init(|| open().ok()) else {
        return Err(whole);
    };
    let Ok(secret) = random() else { return Err(whole) };
    let mut results = shelf.results();
    if results.standing.len() >= LEFT_MAX || results.bytes + whole.len() > LEFT_BYTES_MAX {
        return Err(whole);
    }
    results.bytes += whole.len();
    let (bytes, secret) = (whole.len() as u64, ResultSecret(secret));
    let standing = ShelvedReply {
        secret: secret.clone(),
        whole,
    };
    results.standing.insert(ticket, Arc::new(standing));
    Ok(LeftResult {
        ticket,
        bytes,
        secret,
        address: shelf.address,
    })
}

/// Handles a release request: drops the results of the tickets in it.
pub fn release(input: &RequestBytes, task: &TaskRequest, output: &mut ReplyDestination<'_>) {
    let mut tickets = vec![0; task.arguments.pickle_bytes];
    input.copy(task.arguments.pickle, &mut tickets);
    for ticket in tickets.chunks_exact(8) {
        let ticket = ticket.first_chunk().copied().map(u64::from_le_bytes);
        // `take` returns `None` if the client has fetched the result meanwhile.
        drop(ticket.and_then(take));
    }
    // A plain reply with the value `None`.
    let told = [0; reply::HEAD_BYTES + 1];
    output.write(&mut KeptResults::default(), &told, &[]);
}

/// Removes a reply from the shelf, and returns it; `None` if it is not there.
pub fn take(ticket: u64) -> Option<Arc<ShelvedReply>> {
    let mut results = SHELF.get()?.as_ref()?.results();
    let standing = results.standing.remove(&ticket)?;
    results.bytes -= standing.whole.len();
    Some(standing)
}

/// The reply of this ticket, which stays on the shelf; `None` if it is not there.
pub fn look(ticket: u64) -> Option<Arc<ShelvedReply>> {
    let shelf = SHELF.get()?.as_ref()?;
    shelf.results().standing.get(&ticket).cloned()
}

/// Whether no reply is on the shelf.
pub fn is_empty() -> bool {
    let shelf = SHELF.get().and_then(Option::as_ref);
    shelf.is_none_or(|shelf| shelf.results().standing.is_empty())
}

/// The reply at this location, if it is on this shelf.
pub fn find(left: &LeftResult) -> Option<Arc<ShelvedReply>> {
    let shelf = SHELF.get()?.as_ref()?;
    let is_it = |standing: &Arc<ShelvedReply>| {
        let same = standing.whole.len() as u64 == left.bytes && standing.secret == left.secret;
        same && shelf.address == left.address
    };
    look(left.ticket).filter(is_it)
}

/// Random bytes for a nonce or secret.
pub fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    // SAFETY: the buffer has this many bytes; a request of at most 256 bytes is filled completely or not at all.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match got {
        32 => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Fills `bytes`. Fails if not all of them have arrived by `until`, even if some keep arriving.
pub fn read_until(stream: &mut TcpStream, mut bytes: &mut [u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => bytes = &mut bytes[read..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Shelf {
    fn results(&self) -> MutexGuard<'_, Results> {
        locked(&self.results)
    }
}

/// Opens the shelf at the address where clients reach this host; other workers use this address, too.
fn open() -> io::Result<Arc<Shelf>> {
    let host = address_for_clients().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let listener = TcpListener::bind((host, 0))?;
    let shelf = Arc::new(Shelf {
        address: listener.local_addr()?,
        results: Mutex::default(),
        connections: AtomicUsize::new(0),
    });
    let given = shelf.clone();
    thread("hotlease-shelf", move || accept(&given, &listener))?;
    Ok(shelf)
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.into());
    builder.stack_size(STACK_BYTES).spawn(body).map(drop)
}

fn accept(shelf: &Arc<Shelf>, listener: &TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let served = ConnectionSlot::begin(shelf);
        if let Some(served) = served {
            // If no thread starts, the connection is closed, and the peer asks the client.
            let _ = thread("hotlease-giving", move || {
                let _ = give(&served.0, stream);
            });
        }
    }
}

/// One of the limited number of connections.
struct ConnectionSlot(Arc<Shelf>);

impl ConnectionSlot {
    fn begin(shelf: &Arc<Shelf>) -> Option<Self> {
        let one_more = |now| (now < CONNECTIONS_MAX).then_some(now + 1);
        let counted = shelf
            .connections
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        counted.ok().map(|_| Self(shelf.clone()))
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Delivers one result. Errors are ignored: the peer notices, and gets the result from the client.
fn give(shelf: &Shelf, mut stream: TcpStream) -> io::Result<()> {
    let until = Instant::now() + PROVING;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PROVING))?;
    let challenge: Nonce = random()?;
    let said: [u8; CHALLENGE_BYTES] = Challenge(challenge).encode();
    stream.write_all(&said)?;
    let mut claim = [0; CLAIM_BYTES];
    read_until(&mut stream, &mut claim, until)?;
    let claim = Claim::decode(&claim);
    let standing = shelf.results().standing.get(&claim.ticket).cloned();
    let standing = standing.ok_or(io::ErrorKind::NotFound)?;
    let exchange = Exchange {
        secret: &standing.secret,
        ticket: claim.ticket,
        challenge,
        nonce: claim.nonce,
    };
    if !exchange.accepts(&claim) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_write_timeout(Some(STALLED))?;
    stream.write_all(&exchange.delivery(standing.whole.len() as u64))?;
    let mut content = exchange.content();
    for part in standing.whole.chunks(1 << 20) {
        content.update(part);
        stream.write_all(part)?;
    }
    stream.write_all(&content.code())
}
