//! Connection of a gRPC server, with the identity of its peer and time limits.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

/// Limit for the first byte of a peer: a connection that stays silent would occupy a place for nothing.
const FIRST_BYTE_WITHIN: Duration = Duration::from_secs(5);

/// Admitted connection over `S`. `I`, the identity of the peer, is put into the extensions of its requests. `P`, its
/// place among the connections, is dropped with it. A read fails if nothing has arrived in the connection's first 5 s.
pub struct ServerConnection<S, I, P> {
    stream: S,
    info: I,
    /// Timer that runs until the first byte arrives.
    silent: Option<Pin<Box<Sleep>>>,
    /// Timer of the probation, and the check whether the connection may stay afterwards.
    probation: Option<(Pin<Box<Sleep>>, StayCheck)>,
    _place: P,
}

type StayCheck = Box<dyn Fn() -> bool + Send>;

impl<S, I, P> ServerConnection<S, I, P> {
    /// Wraps a connection that was admitted. Must be called inside a tokio runtime.
    pub fn new(stream: S, info: I, place: P) -> Self {
        Self::with_first_byte_limit(FIRST_BYTE_WITHIN, stream, info, place)
    }

    fn with_first_byte_limit(first_byte: Duration, stream: S, info: I, place: P) -> Self {
        Self {
            stream,
            info,
            silent: Some(Box::pin(sleep(first_byte))),
            probation: None,
            _place: place,
        }
    }

    /// Makes reads fail after this time, unless `may_stay` returns true by then.
    pub(crate) fn with_probation(mut self, within: Duration, may_stay: impl Fn() -> bool + Send + 'static) -> Self {
        self.probation = Some((Box::pin(sleep(within)), Box::new(may_stay)));
        self
    }
}

impl<S, I: Clone + Send + Sync + 'static, P> Connected for ServerConnection<S, I, P> {
    type ConnectInfo = I;

    fn connect_info(&self) -> I {
        self.info.clone()
    }
}

impl<S: AsyncRead + Unpin, I: Unpin, P: Unpin> AsyncRead for ServerConnection<S, I, P> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some((until, may_stay)) = &mut self.probation
            && until.as_mut().poll(context).is_ready()
        {
            if !may_stay() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.probation = None;
        }
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.silent = None;
        } else if let Some(silent) = &mut self.silent
            && silent.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin, I: Unpin, P: Unpin> AsyncWrite for ServerConnection<S, I, P> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const BRIEF: Duration = Duration::from_millis(10);

    #[tokio::test]
    async fn a_silent_connection_does_not_keep_its_place() {
        let (stream, _silent) = tokio::io::duplex(8);
        let mut served = ServerConnection::with_first_byte_limit(BRIEF, stream, (), ());
        let read = served.read(&mut [0]).await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_connection_that_does_not_sign_in_in_time_is_closed_however_much_it_sends() {
        let (stream, mut peer) = tokio::io::duplex(8);
        let mut served = ServerConnection::new(stream, (), ()).with_probation(BRIEF, || false);
        peer.write_all(&[1]).await.unwrap();
        assert_eq!(served.read_u8().await.unwrap(), 1);
        let read = served.read_u8().await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let (stream, mut peer) = tokio::io::duplex(8);
        let mut served = ServerConnection::new(stream, (), ()).with_probation(Duration::ZERO, || true);
        peer.write_all(&[1, 2]).await.unwrap();
        assert_eq!(served.read_u8().await.unwrap(), 1, "one that is known was closed");
        assert_eq!(served.read_u8().await.unwrap(), 2, "one that is known was closed");
    }

    #[tokio::test]
    async fn a_connection_that_has_sent_a_byte_may_be_silent() {
        let (stream, mut peer) = tokio::io::duplex(8);
        let mut served = ServerConnection::with_first_byte_limit(BRIEF, stream, (), ());
        peer.write_all(&[1]).await.unwrap();
        // The byte is there before the first read, so the limit applies only to a peer that has sent nothing.
        assert_eq!(served.read_u8().await.unwrap(), 1);
        let waited = tokio::time::timeout(BRIEF * 10, served.read_u8()).await;
        assert!(waited.is_err(), "a connection that has spoken was closed: {waited:?}");
    }
}
