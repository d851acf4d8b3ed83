//! The client's side of the agent's session socket, without the client library.

use crate::connection::RawConnection;
use crate::platform::LIMIT;
use hotlease_fabric::memory::sealed_copy;
use hotlease_fabric::socket::{Socket, SocketError};
use hotlease_wire::Rejection;
use hotlease_wire::code::functions;
use hotlease_wire::grpc::Grant;
use hotlease_wire::ids::{CodeHash, Epoch, FunctionIndex, WorkerIndex};
use hotlease_wire::limits::PROTOCOL_VERSION;
use hotlease_wire::session::{SessionReply, SessionRequest};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// One session; checks nothing that it sends.
pub struct RawSession {
    socket: Socket,
    /// Deaths of workers and ends of leases that arrived between answers.
    pub events: Vec<SessionReply>,
}

/// Reason why there is no answer.
#[derive(Debug)]
pub enum NoAnswer {
    /// The agent closed the session.
    Closed,
    /// The agent does not answer.
    Silent,
    /// The agent sent bytes that are not a message.
    Garbage(String),
}

impl NoAnswer {
    /// Whether there will never be an answer.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed)
    }
}

impl RawSession {
    /// Connects to an agent's session socket.
    pub fn connect(path: &Path) -> std::io::Result<Self> {
        Socket::connect(path).map(Self::over)
    }

    /// A session over a socket that leads to an agent.
    pub fn over(socket: Socket) -> Self {
        Self {
            socket,
            events: Vec::new(),
        }
    }

    /// A session that is attached to the lease of a grant.
    ///
    /// # Panics
    /// If the agent rejects the token.
    pub fn attached(grant: &Grant) -> Self {
        let mut session = Self::connect(Path::new(&grant.session_socket)).expect("the session socket");
        match session.attach(&grant.token) {
            Ok(SessionReply::Attached { .. }) => session,
            other => panic!("not attached: {other:?}"),
        }
    }

    /// Presents a token.
    pub fn attach(&mut self, token: &[u8]) -> Result<SessionReply, NoAnswer> {
        let request = SessionRequest::Attach {
            version: PROTOCOL_VERSION,
            token: token.to_vec(),
        };
        self.ask(&request, &[])
    }

    /// Sends a request and waits for its answer.
    pub fn ask(&mut self, request: &SessionRequest, fds: &[BorrowedFd<'_>]) -> Result<SessionReply, NoAnswer> {
        self.ask_for_fds(request, fds).map(|(reply, _)| reply)
    }

    fn ask_for_fds(
        &mut self,
        request: &SessionRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(SessionReply, Vec<OwnedFd>), NoAnswer> {
        if self.socket.send(request, fds).is_err() {
            return Err(NoAnswer::Closed);
        }
        let release = matches!(request, SessionRequest::Release);
        loop {
            let (reply, fds) = self.next(LIMIT)?;
            let event = match &reply {
                SessionReply::WorkerDied { .. } => true,
                SessionReply::LeaseEnded { .. } => !release,
                _ => false,
            };
            if !event {
                return Ok((reply, fds));
            }
            self.events.push(reply);
        }
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        self.socket.send_bytes(bytes, fds)
    }

    /// Waits for the next message of any kind, except notices that the lease is being ended (the end itself follows),
    /// and that other programs want cores.
    pub fn next(&self, limit: Duration) -> Result<(SessionReply, Vec<OwnedFd>), NoAnswer> {
        self.socket.set_receive_timeout(Some(limit)).expect("a time limit");
        match self.socket.receive() {
            Ok(Some((SessionReply::LeaseEnding { .. } | SessionReply::RoomWanted, _))) => self.next(limit),
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(NoAnswer::Closed),
            Err(error) if error.would_block() => Err(NoAnswer::Silent),
            Err(SocketError::Io(_)) => Err(NoAnswer::Closed),
            Err(error) => Err(NoAnswer::Garbage(error.to_string())),
        }
    }

    /// Waits for the next event, or takes an event that arrived before; returns the event and the time of the wait.
    ///
    /// # Panics
    /// If there is no event within `limit`.
    pub fn event(&mut self, limit: Duration) -> (SessionReply, Duration) {
        let start = Instant::now();
        let event = match self.events.pop() {
            Some(event) => event,
            None => self.next(limit).unwrap_or_else(|no| panic!("no event: {no:?}")).0,
        };
        (event, start.elapsed())
    }

    /// Loads a library, and sends its bytes.
    pub fn load(&mut self, bytes: &[u8]) -> Result<u16, Rejection> {
        self.load_as(CodeHash::of(bytes), bytes)
    }

    /// Loads bytes under an address, which may be wrong.
    ///
    /// # Panics
    /// If the answer is neither yes nor no.
    pub fn load_as(&mut self, hash: CodeHash, bytes: &[u8]) -> Result<u16, Rejection> {
        let sealed = sealed_copy("test-code", bytes).expect("a memfd");
        let request = SessionRequest::Load {
            hash,
            size_bytes: bytes.len() as u64,
        };
        match self.ask(&request, &[sealed.as_fd()]) {
            Ok(SessionReply::Loaded { base, .. }) => Ok(base),
            Ok(SessionReply::Refused(refusal)) => Err(refusal),
            other => panic!("to Load: {other:?}"),
        }
    }

    /// Loads a library from a file; [`Loaded::index`] returns the index of a function in it.
    ///
    /// # Panics
    /// If the library cannot be loaded.
    pub fn load_file(&mut self, path: &Path) -> Loaded {
        let bytes = std::fs::read(path).expect("the library is readable");
        let base = self
            .load(&bytes)
            .unwrap_or_else(|refusal| panic!("{}: {refusal}", path.display()));
        let names = functions(&bytes)
            .expect("a library")
            .into_iter()
            .map(|function| function.name);
        Loaded {
            base,
            names: names.collect(),
        }
    }

    /// Opens a connection to a worker; returns the connection and the worker's epoch.
    pub fn worker(&mut self, index: u16) -> Result<(RawConnection, Epoch), Rejection> {
        let request = SessionRequest::Connect {
            worker: WorkerIndex(index),
            over_fabric: false,
        };
        match self.ask_for_fds(&request, &[]) {
            Ok((SessionReply::Connected { epoch, .. }, mut fds)) if fds.len() == 1 => {
                Ok((RawConnection::new(fds.remove(0).into()), epoch))
            }
            Ok((SessionReply::Refused(refusal), _)) => Err(refusal),
            other => panic!("to Connect: {other:?}"),
        }
    }

    /// Releases the lease.
    ///
    /// # Panics
    /// If the answer is not that the lease has ended.
    pub fn release(mut self) {
        match self.ask(&SessionRequest::Release, &[]) {
            Ok(SessionReply::LeaseEnded { .. }) => {}
            other => panic!("to Release: {other:?}"),
        }
    }
}

/// A library that a lease has loaded.
#[derive(Debug, Clone)]
pub struct Loaded {
    base: u16,
    names: Vec<String>,
}

impl Loaded {
    /// Index that a request must have to run the function.
    ///
    /// # Panics
    /// If there is no function of that name.
    pub fn index(&self, name: &str) -> FunctionIndex {
        let position = self.names.iter().position(|known| known == name);
        FunctionIndex(self.base + position.unwrap_or_else(|| panic!("no function {name}")) as u16)
    }
}
