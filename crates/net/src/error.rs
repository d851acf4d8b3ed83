//! Errors of identities and of connections between hosts.

use crate::peer::{CertificateRole, ForeignCertificate};
use hotlease_wire::{DecodeError, Rejection};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Error of an identity folder, a credential's file, or the site's authority.
#[derive(Debug, Clone, thiserror::Error)]
pub enum IdentityError {
    /// No folder was named, and there is no folder at the default place.
    #[error(
        "no identity: there is no {path}; get one from `hotlease identity issue`, and set HOTLEASE_IDENTITY or --identity to its folder; or come without a certificate, see docs/identity.md"
    )]
    Missing {
        /// Folder that was looked for.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {source}; an identity is the folder that `hotlease identity issue` makes")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// The file of a key or token cannot be read.
    #[error("cannot read {path}: {source}; it should hold a key of `hotlease admin key add`, or a token")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// No authority was named, and there is no file at the default place.
    #[error(
        "cannot tell which authority to trust: there is no {path}; get the site's ca.pem from its operator, and set HOTLEASE_CA_FILE or --ca-file to it"
    )]
    NoAuthority {
        /// File that was looked for.
        path: PathBuf,
    },
    /// More than one identity or credential was named, or a setting cannot be understood.
    #[error("conflicting identity settings: {what}; set exactly one")]
    Ambiguous {
        /// The conflicting settings, or the setting that cannot be understood.
        what: String,
    },
    /// Other users could read the secret.
    #[error("{path} is not safe: {why}; `chmod -R go= ` it, and issue a new identity if others may have read its key")]
    Unsafe {
        /// Path of the file or folder.
        path: PathBuf,
        /// Description of the fault in its owner or permissions.
        why: &'static str,
    },
    /// The contents of a file are not usable.
    #[error("{path} is not usable: {why}")]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Description of the fault.
        why: String,
    },
    /// The identity does not have the role that is needed.
    #[error("{path} is the identity of {article} {found}; this needs one of role {needed}")]
    WrongRole {
        /// Folder of the identity.
        path: PathBuf,
        /// Article of the role found: `a` or `an`.
        article: &'static str,
        /// Role of the identity.
        found: CertificateRole,
        /// Role that is needed.
        needed: CertificateRole,
    },
}

/// Error of a connection between two hosts.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NetError {
    /// The text is not of the form `https://HOST:PORT`.
    #[error("{text:?} is no address: {why}; write https://HOST:PORT")]
    Address {
        /// The text.
        text: String,
        /// Description of the fault.
        why: &'static str,
    },
    /// The host name does not resolve.
    #[error("the host name {host} does not resolve: {why}")]
    Unresolved {
        /// The host name.
        host: String,
        /// Error message of the resolver.
        why: String,
    },
    /// Nothing listens at the address, or no answer arrives.
    #[error("cannot reach {peer}: {why}")]
    Unreachable {
        /// Description of the peer.
        peer: String,
        /// Error message of the system.
        why: String,
    },
    /// The peer's certificate is not valid, or not of our site's authority.
    #[error("{peer} cannot prove who it is: {why}")]
    NotTrusted {
        /// Description of the peer.
        peer: String,
        /// Description of the fault in the certificate.
        why: String,
    },
    /// The peer does not accept our certificate.
    #[error("{peer} refuses our connection: {why}")]
    NotAdmitted {
        /// Description of the peer.
        peer: String,
        /// Reason that the peer gave.
        why: String,
    },
    /// The peer belongs to the site, but does not have the role that is needed.
    #[error("{peer} is of role {found}, not {needed}")]
    WrongRole {
        /// Description of the peer.
        peer: String,
        /// Role in its certificate.
        found: CertificateRole,
        /// Role that is needed.
        needed: CertificateRole,
    },
    /// The peer's certificate is of the site, but its contents are unusable.
    #[error("{peer}: {source}")]
    ForeignCertificate {
        /// Description of the peer.
        peer: String,
        /// Description of the fault in the certificate.
        source: ForeignCertificate,
    },
    /// The peer sent nothing for too long.
    #[error("{peer} was silent for {after:?}")]
    Silent {
        /// Description of the peer.
        peer: String,
        /// Limit that passed.
        after: Duration,
    },
    /// The peer closed the connection.
    #[error("{peer} closed the connection{}", because(.why))]
    Closed {
        /// Description of the peer.
        peer: String,
        /// Reason, if it is known.
        why: Option<String>,
    },
    /// The peer does not speak our protocol.
    #[error("{peer} does not speak our protocol: {why}")]
    Protocol {
        /// Description of the peer.
        peer: String,
        /// Description of the fault.
        why: String,
    },
    /// The cluster's MUNGE made no credential.
    #[error("munge made no credential: {why}; see whether munged runs here")]
    Munge {
        /// Error message of MUNGE or of the system.
        why: String,
    },
    /// The peer refused the request.
    #[error("{0}")]
    Refused(Rejection),
    /// Our own identity or credential is not usable.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// An operation of our own system failed.
    #[error("cannot {what}: {source}")]
    Local {
        /// Operation that failed.
        what: &'static str,
        /// Error of the system.
        source: Arc<io::Error>,
    },
}

fn because(why: &Option<String>) -> String {
    why.as_ref().map(|why| format!(": {why}")).unwrap_or_default()
}

impl NetError {
    pub(crate) fn local(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Local {
            what,
            source: Arc::new(source),
        }
    }

    pub(crate) fn malformed(peer: &str) -> impl FnOnce(DecodeError) -> Self {
        move |error| Self::Protocol {
            peer: peer.to_owned(),
            why: error.to_string(),
        }
    }
}

impl From<NetError> for Rejection {
    fn from(error: NetError) -> Self {
        match error {
            NetError::Refused(refusal) => refusal,
            error => Self::Unavailable {
                what: error.to_string(),
            },
        }
    }
}
