//! TLS of connections to a PostgreSQL server on another host. The server's certificate is always checked.

use super::parameters::unusable;
use crate::StoreError;
use postgres::Socket;
use postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;

/// Files of the client's side of TLS.
pub(super) struct ClientFiles {
    /// Authorities to trust; `None` for the authorities of the system.
    pub authority: Option<PathBuf>,
    /// Certificate of this client, with its chain.
    pub certificate: Option<PathBuf>,
    /// Key of the certificate.
    pub key: Option<PathBuf>,
}

/// Configuration by which a connection becomes a TLS connection.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let failed = |error: &dyn std::fmt::Display| unusable(format!("{}: {error}", path.display()));
    let found = CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|error| failed(&error))?;
    match found.is_empty() {
        true => Err(failed(&"it has no certificate in PEM")),
        false => Ok(found),
    }
}

impl Tls {
    pub(super) fn new(files: &ClientFiles) -> Result<Self, StoreError> {
        let trusted = match &files.authority {
            Some(path) => certificates(path)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(trusted);
        if added == 0 {
            return Err(unusable(
                "no authority to trust: name the file with that of the server by sslrootcert=FILE",
            ));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let failed = |error: rustls::Error| unusable(format!("TLS: {error}"));
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(failed)?.with_root_certificates(roots);
        let config = match (&files.certificate, &files.key) {
            (None, None) => config.with_no_client_auth(),
            (Some(certificate), Some(key)) => {
                let chain = certificates(certificate)?;
                let key = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| unusable(format!("{}: {error}", key.display())))?;
                config.with_client_auth_cert(chain, key).map_err(failed)?
            }
            _ => return Err(unusable("sslcert and sslkey go together")),
        };
        Ok(Self(Arc::new(config)))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = TlsSocket;
    type TlsConnect = Handshake;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, InvalidDnsNameError> {
        Ok(Handshake {
            connector: TlsConnector::from(Arc::clone(&self.0)),
            host: ServerName::try_from(host.to_owned())?,
        })
    }
}

/// A handshake with the server of this name.
pub(super) struct Handshake {
    connector: TlsConnector,
    host: ServerName<'static>,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = TlsSocket;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TlsSocket>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move { self.connector.connect(self.host, stream).await.map(TlsSocket) })
    }
}

/// A connection with TLS.
pub(super) struct TlsSocket(client::TlsStream<Socket>);

impl TlsStream for TlsSocket {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for TlsSocket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TlsSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
