//! Port of a member, on which it listens and from which it connects.
//!
//! All connections that a member sets up share one local port, including the connection to the rendezvous. So the
//! address that a NAT assigned to the connection with the rendezvous is valid for all of them. And if this member calls
//! a peer, NATs and firewalls let the peer's packets pass, as answers to the call.

use mio::net::TcpStream;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

/// Connections that may wait to be accepted; the system may allow fewer.
const BACKLOG: i32 = 4096;

/// Shared local port with its listener.
pub(crate) struct SharedPort {
    pub(crate) listener: TcpListener,
    /// Address of the listener.
    local: SocketAddr,
}

const fn any(of: &SocketAddr) -> IpAddr {
    match of {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// Opens a socket at an address that other sockets of this user may share.
fn socket_at(local: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(local), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&local.into())?;
    Ok(socket)
}

/// Connects from an unused port.
pub(crate) fn call_from_any(to: SocketAddr, at_most: Duration) -> io::Result<std::net::TcpStream> {
    let socket = socket_at(SocketAddr::new(any(&to), 0))?;
    socket.connect_timeout(&to.into(), at_most)?;
    Ok(socket.into())
}

/// Begins a connection from an unused port.
pub(crate) fn begin_from_any(to: SocketAddr) -> io::Result<TcpStream> {
    begin(socket_at(SocketAddr::new(any(&to), 0))?, to)
}

fn begin(socket: Socket, to: SocketAddr) -> io::Result<TcpStream> {
    socket.set_nonblocking(true)?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(TcpStream::from_std(socket.into())),
    }
}

impl SharedPort {
    /// Shares the local port of a connection. Listens only on the local address of that connection. But if other
    /// members are told another address (`is_told_other`), which may be a gateway's, listens on all addresses of this
    /// host.
    pub(crate) fn shared_with(stream: &std::net::TcpStream, is_told_other: bool) -> io::Result<Self> {
        let mut local = stream.local_addr()?;
        if is_told_other {
            local.set_ip(any(&local));
        }
        let socket = socket_at(local)?;
        socket.listen(BACKLOG)?;
        Ok(Self {
            listener: socket.into(),
            local,
        })
    }

    /// Local address of the listener.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Connects from this port and waits for the result.
    pub(crate) fn call_and_wait(&self, to: SocketAddr, at_most: Duration) -> io::Result<std::net::TcpStream> {
        let socket = self.socket_to(to)?;
        socket.connect_timeout(&to.into(), at_most)?;
        Ok(socket.into())
    }

    /// Begins a connection from this port.
    pub(crate) fn call(&self, to: SocketAddr) -> io::Result<TcpStream> {
        begin(self.socket_to(to)?, to)
    }

    fn socket_to(&self, to: SocketAddr) -> io::Result<Socket> {
        // The system chooses the local address: the rendezvous may be on this host's loopback, and other members on
        // other hosts.
        let port = match self.local.is_ipv4() == to.is_ipv4() {
            true => self.local.port(),
            // The port cannot be shared with the other address family, so any port is taken.
            false => 0,
        };
        socket_at(SocketAddr::new(any(&to), port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_port_both_connects_and_accepts() {
        let far = TcpListener::bind("127.0.0.1:0").expect("a port");
        let far = far.local_addr().map(|to| (far, to)).expect("an address");
        let first = call_from_any(far.1, Duration::from_secs(5)).expect("it listens");
        let port = SharedPort::shared_with(&first, false).expect("shared");
        assert_eq!(port.local(), first.local_addr().expect("an address"));
        let other = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = other.local_addr().expect("an address");
        let second = port.call_and_wait(to, Duration::from_secs(5));
        let second = second.expect("it listens").local_addr().expect("an address");
        assert_eq!(second, port.local(), "all from one port");
        let third = std::net::TcpStream::connect(port.local());
        let came = port.listener.accept().expect("a peer called");
        (&came.0).write_all(b"x").expect("open");
        let mut byte = [0];
        third.expect("it listens").read_exact(&mut byte).expect("it answers");
        assert_eq!(&byte, b"x");
    }
}
