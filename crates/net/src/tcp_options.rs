//! TCP options of connections between hosts: what happens when the other host does not answer.

use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// Keepalive, by which the kernel notices a vanished host (after about 11 s) on connections where no request waits.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 3;
/// Limit for requests that the other host does not acknowledge; then another connection is tried. The pauses between
/// TCP's own retries double, so the old connection would recover seconds after the network.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(3);

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TcpPurpose {
    /// Requests and responses, which can go over another connection just as well.
    Requests,
    /// A session, which lives as long as its lease; its own silence limit ends it.
    Session,
}

pub(crate) fn tune(stream: &TcpStream, purpose: TcpPurpose) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    match purpose {
        TcpPurpose::Requests => {
            let keepalive = TcpKeepalive::new()
                .with_time(KEEPALIVE_IDLE)
                .with_interval(KEEPALIVE_INTERVAL)
                .with_retries(KEEPALIVE_PROBES);
            socket.set_tcp_keepalive(&keepalive)?;
            socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))
        }
        // Sessions send something four times in their silence limit, so each retry carries little: the pauses between
        // retries need not double, and the session survives a longer gap in the network.
        TcpPurpose::Session => {
            socket.set_tcp_user_timeout(None)?;
            socket.set_tcp_thin_linear_timeouts(true)
        }
    }
}
