//! A network that misbehaves: a proxy that delays, splits, reorders and repeats the bytes that pass.
//!
//! A connection is a stream, and TLS protects it: reordering or repeating its bytes breaks it. The endpoints must then
//! notice, end the connection, and continue over a new connection.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

/// Treatment of the bytes of both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mischief {
    /// The bytes are passed on.
    None,
    /// Each piece is passed on after this delay.
    Delay(Duration),
    /// The bytes are passed on in pieces of this size.
    Split(usize),
    /// After this many bytes of a connection, two pieces change places.
    Reorder(usize),
    /// After this many bytes of a connection, one piece is repeated.
    Repeat(usize),
    /// After this many bytes of a connection, one bit is flipped.
    Flip(usize),
    /// After this many bytes of a connection in one direction, nothing passes any more in either direction, not even
    /// the end of the stream.
    Swallow(usize),
    /// After this many bytes of a connection, it is closed.
    Cut(usize),
}

/// A running proxy; it ends when dropped.
pub struct Proxy {
    address: SocketAddr,
    mischief: Arc<Mutex<Mischief>>,
    _runtime: Runtime,
}

impl Proxy {
    /// Starts a proxy from a free port of this machine to `to`.
    ///
    /// # Panics
    /// If there is no free port.
    pub fn to(to: SocketAddr, mischief: Mischief) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("its address");
        let mischief = Arc::new(Mutex::new(mischief));
        runtime.spawn(accept(listener, to, Arc::clone(&mischief)));
        Self {
            address,
            mischief,
            _runtime: runtime,
        }
    }

    /// Address at which the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the treatment of later connections.
    pub fn set(&self, mischief: Mischief) {
        *self.mischief.lock().unwrap_or_else(PoisonError::into_inner) = mischief;
    }
}

async fn accept(listener: TcpListener, to: SocketAddr, mischief: Arc<Mutex<Mischief>>) {
    while let Ok((client, _)) = listener.accept().await {
        let mischief = *mischief.lock().unwrap_or_else(PoisonError::into_inner);
        tokio::spawn(async move {
            let Ok(server) = TcpStream::connect(to).await else {
                return;
            };
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let dead = AtomicBool::new(false);
            tokio::select! {
                _ = pass(from_client, to_server, mischief, &dead) => {}
                _ = pass(from_server, to_client, mischief, &dead) => {}
            }
        });
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mischief: Mischief,
    dead: &AtomicBool,
) -> io::Result<()> {
    let mut piece = vec![0; 16 << 10];
    let mut passed = 0;
    let mut done = false;
    loop {
        let length = match mischief {
            Mischief::Split(bytes) => bytes.min(piece.len()),
            _ => piece.len(),
        };
        let read = from.read(&mut piece[..length]).await;
        if let Mischief::Swallow(after) = mischief {
            passed += read.as_ref().map_or(0, |read| *read);
            if passed > after || dead.load(Ordering::Relaxed) {
                // Neither end gets anything any more.
                dead.store(true, Ordering::Relaxed);
                return std::future::pending().await;
            }
        }
        let read = read?;
        if read == 0 {
            return to.shutdown().await;
        }
        if !matches!(mischief, Mischief::Swallow(_)) {
            passed += read;
        }
        let due = |after: usize| !done && passed > after;
        match mischief {
            Mischief::Delay(time) => sleep(time).await,
            Mischief::Reorder(after) if due(after) && read > 1 => {
                done = true;
                piece[..read].rotate_left(read / 2);
            }
            Mischief::Repeat(after) if due(after) => {
                done = true;
                to.write_all(&piece[..read]).await?;
            }
            Mischief::Flip(after) if due(after) => {
                done = true;
                piece[read / 2] ^= 1;
            }
            Mischief::Cut(after) if due(after) => return Ok(()),
            _ => {}
        }
        to.write_all(&piece[..read]).await?;
        if matches!(mischief, Mischief::Split(_)) {
            to.flush().await?;
            tokio::task::yield_now().await;
        }
    }
}
