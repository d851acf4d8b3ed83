//! Connections whose peer is not known yet, from the accept queue to the end of their handshake.

mod table;

use super::Limits;
use socket2::SockRef;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Shutdown};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use table::{ConnectionNumber, Source, WaitingRoomSocket, WaitingRoomTable};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

pub(super) use table::NoRoom;

/// Pause between two looks for handshakes at a standstill while connections wait for a place.
const RELIEF_PAUSE: Duration = Duration::from_millis(100);
const REPLACED: &str = "another connection has its place";

/// Socket of a connection that the table can close.
enum HeldSocket {
    /// The connection waits for its first byte or for its turn. Its task, which waits for `turn`, closes it.
    Waiting {
        tcp: Arc<TcpStream>,
        turn: oneshot::Sender<()>,
    },
    /// Second descriptor of a connection in its handshake, which another task reads.
    Handle(std::net::TcpStream),
}

impl HeldSocket {
    fn begin(self) {
        if let Self::Waiting { tcp, turn } = self {
            // After this, the task has the only descriptor of the connection.
            drop(tcp);
            // Fails only if the task has ended.
            let _ = turn.send(());
        }
    }

    fn close(self) {
        match self {
            // The task ends when `turn` is dropped, and closes the socket.
            Self::Waiting { .. } => {}
            // Fails only if the peer has closed the connection already.
            Self::Handle(tcp) => drop(tcp.shutdown(Shutdown::Both)),
        }
    }
}

impl WaitingRoomSocket for HeldSocket {
    /// A connection that the peer has closed is quiet, too. The sockets do not block.
    fn is_quiet(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        let bytes = match self {
            Self::Waiting { tcp, .. } => SockRef::from(&**tcp).peek(&mut byte),
            Self::Handle(tcp) => SockRef::from(tcp).peek(&mut byte),
        };
        !matches!(bytes, Ok(1..))
    }
}

/// Connections of a listener whose peer is not known yet.
#[derive(Clone)]
pub(super) struct WaitingRoom(Arc<WaitingRoomState>);

struct WaitingRoomState {
    table: Mutex<WaitingRoomTable<HeldSocket>>,
    /// Notified when a connection waits for a place among the handshakes.
    is_crowded: Notify,
}

impl WaitingRoom {
    pub(super) fn new(limits: Limits) -> Self {
        Self(Arc::new(WaitingRoomState {
            table: Mutex::new(WaitingRoomTable::new(limits)),
            is_crowded: Notify::new(),
        }))
    }

    fn table(&self) -> MutexGuard<'_, WaitingRoomTable<HeldSocket>> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection in, and closes the connection that it replaces, if any.
    pub(super) fn enter(&self, address: IpAddr, tcp: &Arc<TcpStream>) -> Result<WaitingConnection, NoRoom> {
        let (source, now) = (Source::of(address), Instant::now());
        let (sender, turn) = oneshot::channel();
        let socket = HeldSocket::Waiting {
            tcp: Arc::clone(tcp),
            turn: sender,
        };
        let mut table = self.table();
        let replaced = table.make_room(source, now)?;
        let number = table.add(source, now, socket);
        drop(table);
        if let Some(replaced) = replaced {
            replaced.close();
        }
        Ok(WaitingConnection {
            place: WaitingRoomPlace {
                waiting_room: self.clone(),
                number,
            },
            tcp: Arc::clone(tcp),
            turn,
        })
    }

    /// Closes handshakes at a standstill while connections wait for their places; never ends.
    pub(super) async fn relieve(self) {
        loop {
            self.0.is_crowded.notified().await;
            loop {
                sleep(RELIEF_PAUSE).await;
                let mut table = self.table();
                let turns = table.relieve(Instant::now());
                let is_crowded = table.has_ready();
                drop(table);
                turns.closed.into_iter().for_each(HeldSocket::close);
                turns.begun.into_iter().for_each(HeldSocket::begin);
                if !is_crowded {
                    break;
                }
            }
        }
    }
}

/// Connection that waits for its peer's first byte, then for a place among the handshakes.
pub(super) struct WaitingConnection {
    place: WaitingRoomPlace,
    tcp: Arc<TcpStream>,
    turn: oneshot::Receiver<()>,
}

impl WaitingConnection {
    /// Waits until the handshake may begin: at most `limit` for the peer's first byte, and at most `limit` again for a
    /// place. Fails with the reason for which the connection is closed.
    pub(super) async fn wait_for_turn(self, limit: Duration) -> Result<(TcpStream, WaitingRoomPlace), &'static str> {
        let Self { place, tcp, mut turn } = self;
        tokio::select! {
            begun = &mut turn => begun.map_err(|_| REPLACED)?,
            spoken = timeout(limit, has_spoken(&tcp)) => {
                match spoken {
                    Ok(true) => place.note_first_byte(),
                    Ok(false) => return Err("its peer has closed it"),
                    Err(_) => return Err("its peer has sent nothing in time"),
                }
                let begun = timeout(limit, turn).await.map_err(|_| "too many are shaking hands")?;
                begun.map_err(|_| REPLACED)?;
            }
        }
        // The table drops its reference when it signals the turn, so this is the only reference.
        let tcp = Arc::into_inner(tcp).ok_or("it is still waiting")?;
        place.hold(&tcp).map_err(|_| "no descriptor is left for it")?;
        Ok((tcp, place))
    }
}

async fn has_spoken(tcp: &TcpStream) -> bool {
    matches!(tcp.peek(&mut [0]).await, Ok(1..))
}

/// Place of a connection whose peer is not known yet; dropped once the peer is known.
pub(crate) struct WaitingRoomPlace {
    waiting_room: WaitingRoom,
    number: ConnectionNumber,
}

impl WaitingRoomPlace {
    fn note_first_byte(&self) {
        let mut table = self.waiting_room.table();
        let begun = table.note_first_byte(self.number, Instant::now());
        let is_crowded = table.has_ready();
        drop(table);
        begun.into_iter().for_each(HeldSocket::begin);
        if is_crowded {
            self.waiting_room.0.is_crowded.notify_one();
        }
    }

    fn hold(&self, tcp: &TcpStream) -> io::Result<()> {
        let handle = tcp.as_fd().try_clone_to_owned()?;
        self.waiting_room
            .table()
            .hold(self.number, HeldSocket::Handle(handle.into()));
        Ok(())
    }
}

impl Drop for WaitingRoomPlace {
    fn drop(&mut self) {
        let begun = self.waiting_room.table().leave(self.number, Instant::now());
        begun.into_iter().for_each(HeldSocket::begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    const SOON: Duration = Duration::from_secs(10);

    struct Port {
        listener: TcpListener,
        waiting_room: WaitingRoom,
    }

    impl Port {
        async fn new(limits: Limits) -> Self {
            Self {
                listener: TcpListener::bind("127.0.0.1:0").await.expect("a port"),
                waiting_room: WaitingRoom::new(limits),
            }
        }

        /// Opens a connection. Returns the client's end, and the accepted end.
        async fn connect(&self) -> (TcpStream, Arc<TcpStream>) {
            let address = self.listener.local_addr().expect("an address");
            let (theirs, accepted) = tokio::join!(TcpStream::connect(address), self.listener.accept());
            (theirs.expect("it listens"), Arc::new(accepted.expect("a connection").0))
        }

        fn enter(&self, tcp: Arc<TcpStream>) -> Result<WaitingConnection, NoRoom> {
            self.waiting_room.enter("127.0.0.1".parse().expect("an address"), &tcp)
        }
    }

    fn limits(waiting: usize) -> Limits {
        Limits {
            waiting,
            handshakes_per_address: 1,
            silence: Duration::ZERO,
            standstill: Duration::ZERO,
            ..Limits::default()
        }
    }

    async fn send_byte(stream: TcpStream, accepted: &TcpStream) -> TcpStream {
        let mut stream = stream.into_std().expect("a socket");
        stream.write_all(&[1]).expect("sent");
        accepted.readable().await.expect("it arrives");
        TcpStream::from_std(stream).expect("a socket")
    }

    async fn is_closed(stream: &mut TcpStream) -> bool {
        matches!(timeout(SOON, stream.read(&mut [0])).await, Ok(Ok(0)))
    }

    #[tokio::test]
    async fn a_silent_connection_is_closed_for_a_new_one() {
        let port = Port::new(limits(2)).await;
        let (mut first_end, first) = port.connect().await;
        let (_second_end, second) = port.connect().await;
        let first = port.enter(first).expect("room");
        let _second = port.enter(second).expect("room");
        let waiting = tokio::spawn(first.wait_for_turn(SOON));
        let (_third_end, third) = port.connect().await;
        let _third = port.enter(third).expect("the first makes room");
        assert_eq!(waiting.await.expect("no panic").err(), Some(REPLACED));
        assert!(is_closed(&mut first_end).await);
    }

    #[tokio::test]
    async fn bytes_that_no_task_has_seen_yet_keep_a_connection() {
        let port = Port::new(limits(2)).await;
        let (known_end, known) = port.connect().await;
        let (_silent_end, silent) = port.connect().await;
        let _known_end = send_byte(known_end, &known).await;
        let known = port.enter(known).expect("room");
        let silent = port.enter(silent).expect("room");
        let (_new_end, new) = port.connect().await;
        let _new = port.enter(new).expect("the silent one makes room");
        assert_eq!(silent.wait_for_turn(SOON).await.err(), Some(REPLACED));
        known.wait_for_turn(SOON).await.expect("it stays");
    }

    #[tokio::test]
    async fn a_handshake_that_waits_for_its_peer_is_closed_for_another_one() {
        let port = Port::new(limits(8)).await;
        let relief = tokio::spawn(port.waiting_room.clone().relieve());
        let mut ends = Vec::new();
        let mut begun = Vec::new();
        for _ in 0..2 {
            let (end, accepted) = port.connect().await;
            ends.push(send_byte(end, &accepted).await);
            let connection = port.enter(accepted).expect("room");
            let (mut tcp, place) = connection.wait_for_turn(SOON).await.expect("a turn");
            assert_eq!(tcp.read_u8().await.expect("the byte"), 1);
            begun.push((tcp, place));
        }
        let (mut first, _place) = begun.remove(0);
        assert_eq!(first.read(&mut [0]).await.expect("closed in order"), 0);
        assert!(is_closed(&mut ends[0]).await);
        relief.abort();
    }

    #[tokio::test]
    async fn a_connection_that_sends_nothing_leaves_in_time() {
        let port = Port::new(limits(2)).await;
        let (mut end, accepted) = port.connect().await;
        let connection = port.enter(accepted).expect("room");
        let left = connection.wait_for_turn(Duration::from_millis(10)).await;
        assert_eq!(left.err(), Some("its peer has sent nothing in time"));
        assert!(is_closed(&mut end).await);
        let (end, accepted) = port.connect().await;
        drop(end);
        let left = port.enter(accepted).expect("room").wait_for_turn(SOON).await;
        assert_eq!(left.err(), Some("its peer has closed it"));
    }
}
