//! Connection to a daemon, with the check that it is a daemon of the site.

use crate::NetError;
use crate::address::Address;
use crate::identity::{ConnectionProtocol, Identity};
use crate::peer::{CertificateRole, Peer, parse_certificate};
use crate::tcp_options::{TcpPurpose, tune};
use rustls::{AlertDescription, CertificateError, ClientConfig};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncBufReadExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Limit for one of a host's addresses to answer.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Pause before unreachable hosts are tried again. A network that has just recovered still reports hosts as unreachable
/// for a moment: the kernel has begun to resolve their addresses (ARP, neighbour discovery) during the failure, and
/// reports that this has failed to new connections, too.
const RETRY_PAUSE: Duration = Duration::from_millis(300);
/// Limit for one step of connecting: for TCP and TLS together, and then for the first bytes.
const DIAL_WITHIN: Duration = Duration::from_secs(5);

/// Connection to a peer whose certificate was checked. If [`dial`] or [`dial_as`] made it, the peer has accepted our
/// certificate, too; after [`dial_client_first`] this is not known yet.
pub(crate) struct DialedConnection {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) peer: Peer,
}

/// Connects, and waits for the first bytes from the peer: a peer that refuses our certificate reports that only after
/// its handshake, and a peer that accepts the certificate sends the first bytes.
pub(crate) async fn dial(
    address: &Address,
    identity: &Identity,
    protocol: ConnectionProtocol,
    needed: CertificateRole,
) -> Result<DialedConnection, NetError> {
    let client = identity.credentials().client(protocol);
    dial_as(address, client, protocol, needed).await
}

/// Connects like [`dial`], with this TLS configuration.
pub(crate) async fn dial_as(
    address: &Address,
    client: Arc<ClientConfig>,
    protocol: ConnectionProtocol,
    needed: CertificateRole,
) -> Result<DialedConnection, NetError> {
    let peer = format!("the {needed} at {address}");
    let mut dialled = dial_client_first(address, client, protocol, needed).await?;
    let greeted = timeout(DIAL_WITHIN, dialled.stream.fill_buf()).await;
    match greeted {
        Err(_) => Err(NetError::Silent {
            peer,
            after: DIAL_WITHIN,
        }),
        Ok(Ok([])) => Err(NetError::Closed { peer, why: None }),
        Ok(Ok(_)) => Ok(dialled),
        Ok(Err(error)) => Err(explain(&peer, error)),
    }
}

/// Connects like [`dial_as`], but does not wait for the peer's first bytes: in this protocol the client sends first.
pub(crate) async fn dial_client_first(
    address: &Address,
    client: Arc<ClientConfig>,
    protocol: ConnectionProtocol,
    needed: CertificateRole,
) -> Result<DialedConnection, NetError> {
    let peer = format!("the {needed} at {address}");
    let dialled = timeout(DIAL_WITHIN, connect(&peer, address, client, protocol)).await;
    let dialled = dialled.map_err(|_| NetError::Silent {
        peer: peer.clone(),
        after: DIAL_WITHIN,
    })??;
    dialled
        .stream
        .get_ref()
        .0
        .set_nodelay(true)
        .map_err(NetError::local("set up a connection"))?;
    let found = dialled.peer.role;
    if found != needed {
        return Err(NetError::WrongRole { peer, found, needed });
    }
    Ok(dialled)
}

async fn connect(
    peer: &str,
    address: &Address,
    client: Arc<ClientConfig>,
    protocol: ConnectionProtocol,
) -> Result<DialedConnection, NetError> {
    let connector = TlsConnector::from(client);
    let name = address.server_name()?;
    let tcp = connect_tcp(peer, address.resolve().await?, protocol).await?;
    let stream = connector
        .connect(name, tcp)
        .await
        .map_err(|error| explain(peer, error))?;
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate = certificates.and_then(<[_]>::first);
    let described = parse_certificate(certificate.map(|der| der.as_ref()).unwrap_or_default());
    let described = described.map_err(|source| NetError::ForeignCertificate {
        peer: peer.to_owned(),
        source,
    })?;
    Ok(DialedConnection {
        stream,
        peer: described.peer,
    })
}

/// Connects to the first of the addresses that answers.
async fn connect_tcp(
    peer: &str,
    addresses: Vec<SocketAddr>,
    protocol: ConnectionProtocol,
) -> Result<TcpStream, NetError> {
    let mut why = String::new();
    let mut addresses: VecDeque<_> = addresses.into();
    let mut again = VecDeque::new();
    let mut retried = false;
    while let Some(address) = addresses.pop_front() {
        let connected = timeout(CONNECT_WITHIN, TcpStream::connect(address)).await;
        match connected {
            Ok(Ok(stream)) => {
                let purpose = match protocol {
                    ConnectionProtocol::Grpc | ConnectionProtocol::Http => TcpPurpose::Requests,
                    ConnectionProtocol::Session => TcpPurpose::Session,
                };
                tune(&stream, purpose).map_err(NetError::local("set up a connection"))?;
                return Ok(stream);
            }
            Ok(Err(error)) => {
                if error.kind() == io::ErrorKind::HostUnreachable {
                    again.push_back(address);
                }
                why = error.to_string();
            }
            Err(_) => why = format!("no answer within {CONNECT_WITHIN:?}"),
        }
        if addresses.is_empty() && !again.is_empty() && !std::mem::replace(&mut retried, true) {
            sleep(RETRY_PAUSE).await;
            addresses = std::mem::take(&mut again);
        }
    }
    Err(NetError::Unreachable {
        peer: peer.to_owned(),
        why,
    })
}

/// Translates a failed handshake into an error that tells the user what to do.
pub(crate) fn explain(peer: &str, error: io::Error) -> NetError {
    let peer = peer.to_owned();
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(certificate)) => NetError::NotTrusted {
            peer,
            why: certificate_error_text(certificate),
        },
        Some(rustls::Error::AlertReceived(alert)) => NetError::NotAdmitted {
            peer,
            why: alert_text(*alert),
        },
        Some(rustls::Error::InvalidMessage(_)) => NetError::Protocol {
            peer,
            why: "the server at this address does not speak TLS".into(),
        },
        Some(error) => NetError::Protocol {
            peer,
            why: error.to_string(),
        },
        None if error.kind() == io::ErrorKind::UnexpectedEof => NetError::Closed {
            peer,
            why: Some("during the handshake".into()),
        },
        None => NetError::Closed {
            peer,
            why: Some(error.to_string()),
        },
    }
}

fn certificate_error_text(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired; its operator issues a new one with `hotlease identity issue`".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet; compare the clocks".into()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is of another site's authority than ours".into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("{error}; its identity was issued with other --host names")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is not one of a daemon".into()
        }
        error => error.to_string(),
    }
}

fn alert_text(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => "it accepts no peer without a certificate".into(),
        AlertDescription::CertificateExpired => {
            "our certificate has expired; get a new one from `hotlease identity issue`".into()
        }
        AlertDescription::UnknownCA => "our certificate is from another site's authority".into(),
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::DecryptError => "it does not accept our certificate".into(),
        AlertDescription::NoApplicationProtocol => "it does not offer this protocol".into(),
        alert => format!("it answered with the TLS alert {alert:?}"),
    }
}
