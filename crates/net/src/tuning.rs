//! How connections between hosts behave when nothing comes back.

use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// A host that has vanished is noticed after about this time by the kernel, where nothing of ours waits.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 3;
/// Requests that nobody acknowledges for so long are not waited for: another connection is tried. With the
/// doubling pauses of TCP's own retries a connection would come back seconds after the network does.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(3);

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Requests and answers, which can go over another connection just as well.
    Requests,
    /// A session, which lives as long as its lease; its own silence limit says when it is over.
    Session,
}

pub(crate) fn tune(stream: &TcpStream, purpose: Purpose) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    match purpose {
        Purpose::Requests => {
            let keepalive = TcpKeepalive::new()
                .with_time(KEEPALIVE_IDLE)
                .with_interval(KEEPALIVE_INTERVAL)
                .with_retries(KEEPALIVE_PROBES);
            socket.set_tcp_keepalive(&keepalive)?;
            socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))
        }
        // Sessions say something four times in their silence limit, so each retry carries little: the pauses
        // between retries need not double, and the session survives a longer gap in the network.
        Purpose::Session => {
            socket.set_tcp_user_timeout(None)?;
            socket.set_tcp_thin_linear_timeouts(true)
        }
    }
}
