//! Why two hosts do not talk to each other.

use crate::peer::{NotOurs, Role};
use hotlease_wire::{DecodeError, Refusal};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Why an identity folder cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum IdentityError {
    /// No folder was named, and there is none at the usual place.
    #[error(
        "no identity: there is no {path}; get one from `hotlease identity issue`, and set HOTLEASE_IDENTITY or --identity to its folder; or come without a certificate, see docs/identity.md"
    )]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {source}; an identity is the folder that `hotlease identity issue` makes")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: Arc<io::Error>,
    },
    /// The file of a key or a token cannot be read.
    #[error("cannot read {path}: {source}; it should hold a key of `hotlease admin key add`, or a token")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: Arc<io::Error>,
    },
    /// Nobody said whom to believe, and there is no authority at the usual place.
    #[error(
        "whom to believe? there is no {path}; get the site's ca.pem from its operator, and set HOTLEASE_CA_FILE or --ca-file to it"
    )]
    NoAuthority {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// More than one answer to who we are, or none that can be understood.
    #[error("who asks? the answer is {what}; say one thing only")]
    Ambiguous {
        /// What was said.
        what: String,
    },
    /// Others could read the key.
    #[error(
        "{path} is not safe: {why}; `chmod -R go= ` it, and issue a new identity if others may have read its key"
    )]
    Unsafe {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The files are not what they should be.
    #[error("{path} is not usable: {why}")]
    Malformed {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It is another's.
    #[error("{path} is the identity of {article} {found}; this needs one of role {needed}")]
    WrongRole {
        /// The folder.
        path: PathBuf,
        /// `a` or `an`.
        article: &'static str,
        /// What it is.
        found: Role,
        /// What it should be.
        needed: Role,
    },
}

/// Why two hosts do not talk to each other.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NetError {
    /// Not `https://HOST:PORT`.
    #[error("{text:?} is no address: {why}; write https://HOST:PORT")]
    Address {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Nobody knows the host.
    #[error("the host name {host} does not resolve: {why}")]
    Unresolved {
        /// Which.
        host: String,
        /// The resolver's words.
        why: String,
    },
    /// Nobody listens there, or nothing comes back.
    #[error("cannot reach {whom}: {why}")]
    Unreachable {
        /// Where.
        whom: String,
        /// The system's words.
        why: String,
    },
    /// Whoever is there is not who should be there.
    #[error("{whom} cannot prove who it is: {why}")]
    NotTrusted {
        /// Where.
        whom: String,
        /// What is wrong.
        why: String,
    },
    /// Who is there does not take our certificate.
    #[error("{whom} does not let us in: {why}")]
    NotLetIn {
        /// Where.
        whom: String,
        /// Its reason.
        why: String,
    },
    /// A peer of the site, but not the kind that was to be there.
    #[error("{whom} is of role {found}, not {needed}")]
    WrongRole {
        /// Where.
        whom: String,
        /// What it is.
        found: Role,
        /// What it should be.
        needed: Role,
    },
    /// The certificate of a peer is of the site and says nothing usable.
    #[error("{whom}: {source}")]
    NotOurs {
        /// Where.
        whom: String,
        /// What is wrong.
        source: NotOurs,
    },
    /// Nothing was heard for too long.
    #[error("{whom} was silent for {after:?}")]
    Silent {
        /// Who.
        whom: String,
        /// How long.
        after: Duration,
    },
    /// It closed the connection.
    #[error("{whom} closed the connection{}", because(.why))]
    Closed {
        /// Who.
        whom: String,
        /// What is known of the reason.
        why: Option<String>,
    },
    /// It speaks something else.
    #[error("{whom} does not speak our protocol: {why}")]
    Protocol {
        /// Who.
        whom: String,
        /// What was wrong.
        why: String,
    },
    /// The cluster's MUNGE made no credential.
    #[error("munge made no credential: {why}; see whether munged runs here")]
    Munge {
        /// Its words, or the system's.
        why: String,
    },
    /// It said no.
    #[error("{0}")]
    Refused(Refusal),
    /// Our own identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Our own system.
    #[error("cannot {what}: {source}")]
    Local {
        /// What was tried.
        what: &'static str,
        /// Why not.
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

    pub(crate) fn malformed(whom: &str) -> impl FnOnce(DecodeError) -> Self {
        move |error| Self::Protocol {
            whom: whom.to_owned(),
            why: error.to_string(),
        }
    }
}

impl From<NetError> for Refusal {
    fn from(error: NetError) -> Self {
        match error {
            NetError::Refused(refusal) => refusal,
            error => Self::Unavailable {
                what: error.to_string(),
            },
        }
    }
}
