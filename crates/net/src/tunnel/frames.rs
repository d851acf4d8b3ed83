//! Sending and receiving of frames on a stream.

use crate::NetError;
use crate::dial::explain;
use hotlease_wire::tunnel::{PREFIX_BYTES, TunnelFrame};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::time::timeout;

/// Splits a stream into a receiving and a sending half.
pub(super) fn split_frames<S: AsyncRead + AsyncWrite>(
    stream: S,
    peer: &str,
    silence: Duration,
) -> (FrameReader<S>, FrameWriter<S>) {
    let (read, write) = split(stream);
    let peer: Arc<str> = peer.into();
    let incoming = FrameReader {
        stream: read,
        peer: Arc::clone(&peer),
        silence,
    };
    (incoming, FrameWriter { stream: write, peer })
}

/// Receiving half of a stream.
pub(super) struct FrameReader<S> {
    stream: ReadHalf<S>,
    peer: Arc<str>,
    /// Longest time without a byte.
    pub silence: Duration,
}

impl<S: AsyncRead> FrameReader<S> {
    /// Description of the peer, for messages.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Receives the next frame.
    pub async fn next(&mut self) -> Result<TunnelFrame, NetError> {
        self.next_within(usize::MAX).await
    }

    /// Receives the first frame of an unknown peer: at most `bytes_max` bytes, all of them within `within`.
    pub async fn first(&mut self, bytes_max: usize, within: Duration) -> Result<TunnelFrame, NetError> {
        let read = timeout(within, self.next_within(bytes_max)).await;
        read.map_err(|_| NetError::Silent {
            peer: self.peer.to_string(),
            after: within,
        })?
    }

    /// Receives a frame of at most `bytes_max` bytes.
    async fn next_within(&mut self, bytes_max: usize) -> Result<TunnelFrame, NetError> {
        let mut prefix = [0; PREFIX_BYTES];
        self.fill(&mut prefix).await?;
        let size = TunnelFrame::body_bytes(prefix).map_err(NetError::malformed(&self.peer))?;
        if size > bytes_max {
            return Err(NetError::Protocol {
                peer: self.peer.to_string(),
                why: format!("its first frame has {size} bytes, and may have {bytes_max} at most"),
            });
        }
        let mut body = vec![0; size];
        self.fill(&mut body).await?;
        TunnelFrame::decode(&body).map_err(NetError::malformed(&self.peer))
    }

    /// Fills `bytes` from the stream.
    pub async fn fill(&mut self, bytes: &mut [u8]) -> Result<(), NetError> {
        let mut filled = 0;
        while filled < bytes.len() {
            // The limit applies to each read: any bytes prove that the other host is alive.
            match timeout(self.silence, self.stream.read(&mut bytes[filled..])).await {
                Ok(Ok(0)) => return Err(self.closed_error(None)),
                Ok(Ok(read)) => filled += read,
                Ok(Err(error)) => return Err(self.closed_error(Some(error))),
                Err(_) => {
                    return Err(NetError::Silent {
                        peer: self.peer.to_string(),
                        after: self.silence,
                    });
                }
            }
        }
        Ok(())
    }

    /// Error for a stream that was closed, or whose reading failed with `error`.
    fn closed_error(&self, error: Option<io::Error>) -> NetError {
        // A peer that requires a certificate reports that only after its handshake.
        let error = match error {
            Some(error) if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
                return explain(&self.peer, error);
            }
            error => error,
        };
        // End of file without TLS's close message means that the process there was killed. The error then gives no
        // reason: the message of the library would not help.
        let error = error.filter(|error| error.kind() != io::ErrorKind::UnexpectedEof);
        NetError::Closed {
            peer: self.peer.to_string(),
            why: error.map(|error| error.to_string()),
        }
    }
}

/// Sending half of a stream.
pub(super) struct FrameWriter<S> {
    stream: WriteHalf<S>,
    peer: Arc<str>,
}

impl<S: AsyncWrite> FrameWriter<S> {
    /// Sends a frame.
    pub async fn send(&mut self, frame: &TunnelFrame) -> Result<(), NetError> {
        self.send_bytes(&frame.encode()).await?;
        self.stream.flush().await.map_err(|error| self.write_error(error))
    }

    /// Sends bytes that a frame has announced; [`send`](Self::send) flushes them.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), NetError> {
        self.stream
            .write_all(bytes)
            .await
            .map_err(|error| self.write_error(error))
    }

    /// Sends the remaining bytes, and TLS's close message.
    pub async fn close(&mut self) -> Result<(), NetError> {
        self.stream.shutdown().await.map_err(|error| self.write_error(error))
    }

    /// Error for a stream to which writing failed.
    fn write_error(&self, error: io::Error) -> NetError {
        NetError::Closed {
            peer: self.peer.to_string(),
            why: Some(error.to_string()),
        }
    }
}
