//! Identity of this process: a folder with its certificate, its key, and the certificate of its site's authority.

use crate::error::IdentityError;
use crate::peer::{CertificateInfo, CertificateRole, parse_certificate};
use crate::{NetError, Peer};
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};
use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Environment variable that names the folder of an identity.
pub(crate) const IDENTITY_VARIABLE: &str = "HOTLEASE_IDENTITY";
/// File name of the authority's certificate.
pub const CA_FILE: &str = "ca.pem";
/// File name of the certificate.
pub const CERTIFICATE_FILE: &str = "cert.pem";
/// File name of the key.
pub const KEY_FILE: &str = "key.pem";

/// Protocol of a connection; named in the TLS handshake (ALPN).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionProtocol {
    /// gRPC.
    Grpc,
    /// A session with an agent, see [`crate::tunnel`].
    Session,
    /// HTTP/1.1: the REST interface of a manager, for clients that are not hotlease programs.
    Http,
}

impl ConnectionProtocol {
    fn alpn(self) -> Vec<u8> {
        match self {
            Self::Grpc => b"h2".to_vec(),
            Self::Session => b"hotlease-session/1".to_vec(),
            Self::Http => b"http/1.1".to_vec(),
        }
    }

    pub(crate) fn of_alpn(alpn: Option<&[u8]>) -> Option<Self> {
        let known = [Self::Grpc, Self::Session, Self::Http];
        known.into_iter().find(|known| Some(known.alpn().as_slice()) == alpn)
    }
}

/// TLS configurations made from an identity folder.
pub(crate) struct Credentials {
    pub(crate) described: CertificateInfo,
    /// Server that requires a client certificate.
    pub(crate) server: Arc<ServerConfig>,
    /// Server that accepts connections with and without a client certificate.
    pub(crate) open_server: Arc<ServerConfig>,
    /// Server that accepts connections with and without a client certificate, over HTTP/1.1.
    pub(crate) http_server: Arc<ServerConfig>,
    grpc: Arc<ClientConfig>,
    session: Arc<ClientConfig>,
    http: Arc<ClientConfig>,
}

impl Credentials {
    pub(crate) fn client(&self, protocol: ConnectionProtocol) -> Arc<ClientConfig> {
        match protocol {
            ConnectionProtocol::Grpc => Arc::clone(&self.grpc),
            ConnectionProtocol::Session => Arc::clone(&self.session),
            ConnectionProtocol::Http => Arc::clone(&self.http),
        }
    }
}

struct LoadedCredentials {
    written: Option<SystemTime>,
    credentials: Arc<Credentials>,
}

/// Identity folder in use. A certificate that is replaced in the folder is used from the next connection on. `Send +
/// Sync`.
pub struct Identity {
    dir: PathBuf,
    held: Mutex<LoadedCredentials>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", self.dir.display())
    }
}

impl Identity {
    /// Reads a folder that `hotlease identity issue` made; refuses a folder whose key other users could read.
    pub fn load(dir: &Path) -> Result<Self, IdentityError> {
        let written = modification_time(dir);
        Ok(Self {
            dir: dir.to_owned(),
            held: Mutex::new(LoadedCredentials {
                written,
                credentials: Arc::new(read(dir)?),
            }),
        })
    }

    /// Reads a folder as [`load`](Self::load) does; refuses an identity of another role than `needed`.
    pub fn load_as(dir: &Path, needed: CertificateRole) -> Result<Self, IdentityError> {
        let identity = Self::load(dir)?;
        let found = identity.peer().role;
        if found != needed {
            return Err(IdentityError::WrongRole {
                path: dir.to_owned(),
                article: if found == CertificateRole::Agent { "an" } else { "a" },
                found,
                needed,
            });
        }
        Ok(identity)
    }

    /// Default folder: `$HOTLEASE_IDENTITY`, else `$XDG_CONFIG_HOME/hotlease/identity`, else
    /// `~/.config/hotlease/identity`. Fails if none is named and the default does not exist.
    pub fn default_dir() -> Result<PathBuf, IdentityError> {
        if let Some(dir) = env::var_os(IDENTITY_VARIABLE).filter(|dir| !dir.is_empty()) {
            return Ok(dir.into());
        }
        let dir = Self::config_dir().join("identity");
        if dir.is_dir() {
            return Ok(dir);
        }
        Err(IdentityError::Missing { path: dir })
    }

    /// `hotlease` in the user's configuration directory.
    pub(crate) fn config_dir() -> PathBuf {
        let from = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let config = from("XDG_CONFIG_HOME").or_else(|| Some(from("HOME")?.join(".config")));
        config.unwrap_or_default().join("hotlease")
    }

    /// Role, name and tenant of this process.
    pub fn peer(&self) -> Peer {
        self.credentials().described.peer.clone()
    }

    /// Role, name and tenant of this process, its hosts, and the validity of its certificate.
    pub fn described(&self) -> CertificateInfo {
        self.credentials().described.clone()
    }

    /// Folder of the identity.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn credentials(&self) -> Arc<Credentials> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let now = modification_time(&self.dir);
        if now.is_some() && now != held.written {
            // Read once for each change: a folder that is half written now gets a newer time when it is complete.
            held.written = now;
            match read(&self.dir) {
                // Role, name and tenant do not change while this process runs.
                Ok(new) if is_same_holder(&new.described.peer, &held.credentials.described.peer) => {
                    tracing::info!(dir = %self.dir.display(), "the certificate was replaced");
                    held.credentials = Arc::new(new);
                }
                Ok(_) => {
                    tracing::warn!(dir = %self.dir.display(), "the new certificate has another holder: the old stays")
                }
                Err(error) => tracing::warn!(%error, "the old certificate stays"),
            }
        }
        Arc::clone(&held.credentials)
    }
}

fn is_same_holder(a: &Peer, b: &Peer) -> bool {
    (a.role, &a.name, &a.tenant) == (b.role, &b.name, &b.tenant)
}

fn modification_time(dir: &Path) -> Option<SystemTime> {
    let modified = |file: &str| fs::metadata(dir.join(file)).and_then(|file| file.modified()).ok();
    // The newer of both times: certificate and key are written one after the other.
    modified(CERTIFICATE_FILE).max(modified(KEY_FILE))
}

fn read(dir: &Path) -> Result<Credentials, IdentityError> {
    check_private(dir)?;
    check_private(&dir.join(KEY_FILE))?;
    let file = |name: &str| {
        let path = dir.join(name);
        let read = fs::read(&path).map_err(|source| IdentityError::File {
            path: path.clone(),
            source: Arc::new(source),
        });
        read.map(|bytes| (path, bytes))
    };
    let malformed = |path: &Path, why: String| IdentityError::Malformed {
        path: path.to_owned(),
        why,
    };
    let (path, pem) = file(CA_FILE)?;
    let authority = CertificateDer::from_pem_slice(&pem).map_err(|error| malformed(&path, error.to_string()))?;
    let mut roots = RootCertStore::empty();
    roots
        .add(authority)
        .map_err(|error| malformed(&path, error.to_string()))?;
    let roots = Arc::new(roots);

    let (path, pem) = file(CERTIFICATE_FILE)?;
    let certificate = CertificateDer::from_pem_slice(&pem).map_err(|error| malformed(&path, error.to_string()))?;
    let described = parse_certificate(&certificate).map_err(|error| malformed(&path, error.to_string()))?;

    let (path, pem) = file(KEY_FILE)?;
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| malformed(&path, error.to_string()))?;
    let unusable = |error: rustls::Error| malformed(&path, error.to_string());

    let provider = Arc::new(ring::default_provider());
    let server = |is_open: bool, protocols: &[ConnectionProtocol]| {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let verifier = match is_open {
            true => verifier.allow_unauthenticated().build(),
            false => verifier.build(),
        };
        let verifier = verifier.map_err(|error| malformed(&dir.join(CA_FILE), error.to_string()))?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate.clone()], key.clone_key())
            .map_err(unusable)?;
        // No resumption: a resumed connection could outlive the certificate that its first connection was made with.
        server.send_tls13_tickets = 0;
        server.alpn_protocols = protocols.iter().map(|protocol| protocol.alpn()).collect();
        Ok::<_, IdentityError>(Arc::new(server))
    };
    let own: &[ConnectionProtocol] = match described.peer.role {
        CertificateRole::Agent => &[ConnectionProtocol::Grpc, ConnectionProtocol::Session],
        CertificateRole::Manager | CertificateRole::Client => &[ConnectionProtocol::Grpc],
    };
    let http_server = server(true, &[ConnectionProtocol::Http])?;
    let (server, open_server) = (server(false, own)?, server(true, own)?);
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])
        .map_err(unusable)?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key)
        .map_err(unusable)?;
    client.resumption = Resumption::disabled();
    let with = |protocol: ConnectionProtocol| {
        let mut client = client.clone();
        client.alpn_protocols = vec![protocol.alpn()];
        Arc::new(client)
    };
    Ok(Credentials {
        described,
        server,
        open_server,
        http_server,
        grpc: with(ConnectionProtocol::Grpc),
        session: with(ConnectionProtocol::Session),
        http: with(ConnectionProtocol::Http),
    })
}

/// TLS configuration of a client without a certificate; it trusts the authority in this file.
pub(crate) fn client_without_certificate(
    path: &Path,
    protocol: ConnectionProtocol,
) -> Result<Arc<ClientConfig>, IdentityError> {
    let malformed = |why: String| IdentityError::Malformed {
        path: path.to_owned(),
        why,
    };
    let pem = fs::read(path).map_err(|source| IdentityError::File {
        path: path.to_owned(),
        source: Arc::new(source),
    })?;
    let authority = CertificateDer::from_pem_slice(&pem).map_err(|error| malformed(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    roots.add(authority).map_err(|error| malformed(error.to_string()))?;
    let mut client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|error| malformed(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.resumption = Resumption::disabled();
    client.alpn_protocols = vec![protocol.alpn()];
    Ok(Arc::new(client))
}

/// Refuses a file or folder that others can access, or that belongs to another user (root is allowed).
fn check_private(path: &Path) -> Result<(), IdentityError> {
    let metadata = fs::metadata(path).map_err(|source| IdentityError::File {
        path: path.to_owned(),
        source: Arc::new(source),
    })?;
    check_private_metadata(path, &metadata)
}

/// Refuses, like [`check_private`], by the metadata of a file that may be open already.
pub(crate) fn check_private_metadata(path: &Path, metadata: &fs::Metadata) -> Result<(), IdentityError> {
    match exposure(metadata) {
        None => Ok(()),
        Some(why) => Err(IdentityError::Unsafe {
            path: path.to_owned(),
            why,
        }),
    }
}

/// Reason why other users may know or have written a file's secrets; `None` if the file is safe.
pub fn exposure(metadata: &fs::Metadata) -> Option<&'static str> {
    let own = nix::unistd::geteuid().as_raw();
    if metadata.uid() != own && metadata.uid() != 0 {
        Some("it belongs to another user")
    } else if metadata.mode() & 0o077 != 0 {
        Some("others can access it")
    } else {
        None
    }
}

impl From<IdentityError> for hotlease_wire::Rejection {
    fn from(error: IdentityError) -> Self {
        NetError::from(error).into()
    }
}
