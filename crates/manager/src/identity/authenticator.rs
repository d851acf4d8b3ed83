//! Authentication: finds the caller from a connection and the header of a request.

use super::caller::KEY_NAME;
use super::challenges::Challenges;
use super::munge::{Munge, MungeConfig};
use super::sessions::Sessions;
use super::{Caller, CallerProof, Issuers, Role, Subject, TenantDirectory, keys, not_authenticated, sessions};
use hotlease_net::{CertificateRole, Peer};
use hotlease_wire::Rejection;
use hotlease_wire::munge::payload as munge_payload;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest authorization header, bytes: room for an issuer's token that names many groups.
pub const AUTHORIZATION_BYTES_MAX: usize = 8 << 10;

/// Identity of the peer of a connection, before it has sent anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionPeer {
    /// A process of this node.
    Local {
        /// User of the process, from the kernel.
        uid: u32,
    },
    /// Holder of a certificate of the site, over TLS.
    Certified(Arc<Peer>),
    /// A peer over TLS without a certificate; nothing is proved about it.
    Stranger {
        /// Identifier of the connection: made by the manager, random, and never sent.
        channel: [u8; 32],
        /// BLAKE3 hash of the certificate that the manager showed.
        server: [u8; 32],
        /// Payer of an earlier request on this connection ([`Caller::payer`]). It is no proof of who asks now.
        payer: Option<String>,
    },
}

impl ConnectionPeer {
    /// Identifier that a session is bound to.
    pub(super) fn channel(&self) -> [u8; 32] {
        match self {
            Self::Local { uid } => blake3::derive_key("hotlease 2026 session of a uid", &uid.to_le_bytes()),
            Self::Certified(peer) => peer.fingerprint,
            Self::Stranger { channel, .. } => *channel,
        }
    }
}

/// Finds the caller of a request: checks certificates, keys, tokens, MUNGE credentials and sessions.
pub struct Authenticator {
    /// User of the manager.
    own_uid: u32,
    directory: Arc<TenantDirectory>,
    sessions: Sessions,
    challenges: Challenges,
    issuers: Option<Issuers>,
    munge: Option<Munge>,
}

pub(super) fn milliseconds(now: SystemTime) -> u64 {
    let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}

impl Authenticator {
    pub(crate) fn new(directory: Arc<TenantDirectory>, issuers: Option<Issuers>, munge: Option<MungeConfig>) -> Self {
        let own_uid = nix::unistd::geteuid().as_raw();
        Self {
            own_uid,
            issuers,
            munge: munge.map(|config| Munge::new(config, own_uid)),
            directory,
            sessions: Sessions::new(),
            challenges: Challenges::default(),
        }
    }

    /// Finds the caller. A wrong credential in the header is refused, even if the connection alone would identify the
    /// caller. No error contains text of the header.
    pub async fn authenticate(
        &self,
        connection: &ConnectionPeer,
        authorization: Option<&str>,
        now: SystemTime,
    ) -> Result<Caller, Rejection> {
        let Some(authorization) = authorization else {
            return self.of_connection(connection);
        };
        if authorization.len() > AUTHORIZATION_BYTES_MAX {
            return Err(not_authenticated("the authorization header is too long"));
        }
        let now_ms = milliseconds(now);
        let (scheme, credential) = authorization.split_once(' ').unwrap_or((authorization, ""));
        let credential = credential.trim();
        if scheme.eq_ignore_ascii_case("munge") {
            return self.of_munge(connection, credential, now_ms).await;
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(not_authenticated("credentials of this kind are not taken here"));
        }
        if credential.starts_with(sessions::PREFIX) {
            let caller = self.sessions.check(credential, connection, now_ms)?;
            self.directory.check_enabled(caller.tenant()?)?;
            if let Some(id) = caller.key() {
                let record = self.directory.key(id);
                let record = record.ok_or_else(|| not_authenticated("the key is not known here"))?;
                keys::check_valid(&record, now_ms)?;
            }
            return Ok(caller);
        }
        if credential.starts_with(keys::PREFIX) {
            return self.of_key(credential, now_ms);
        }
        match &self.issuers {
            Some(issuers) => {
                let subject = issuers.check(credential)?;
                let caller = self.of_subject(subject.clone(), CallerProof::Token)?;
                issuers.check_tenant(&subject, caller.tenant()?)?;
                Ok(caller)
            }
            None => Err(not_authenticated("credentials of this kind are not taken here")),
        }
    }

    /// Refuses the name of a new member, a subject of tokens, if the name contains an issuer that the site does not
    /// have, or contains no issuer although the site has several.
    pub(crate) fn check_member(&self, member: &str) -> Result<(), Rejection> {
        self.issuers
            .as_ref()
            .map_or(Ok(()), |issuers| issuers.check_member(member))
    }

    /// Warns of members whose names contain no issuer although the site has several: these names admit no caller.
    pub(crate) fn warn_of_members_without_issuer(&self) {
        if self.issuers.as_ref().is_none_or(|issuers| issuers.count() < 2) {
            return;
        }
        for member in self.directory.members_without_issuer() {
            tracing::warn!(
                member,
                "a member without an issuer is admitted no longer: the site has several issuers"
            );
        }
    }

    fn of_subject(&self, subject: Subject, proof: CallerProof) -> Result<Caller, Rejection> {
        let (tenant, role) = self.directory.find_member(&subject)?;
        Ok(Caller {
            name: subject.member(),
            tenant: Some(tenant),
            role,
            proof,
        })
    }

    /// Checks a MUNGE credential. It is valid once, on the connection for which its nonce was made, and should be
    /// exchanged for a session at once. The nonce is checked first, so that a connection without a nonce starts no
    /// process.
    async fn of_munge(&self, connection: &ConnectionPeer, credential: &str, now_ms: u64) -> Result<Caller, Rejection> {
        let Some(munge) = &self.munge else {
            return Err(not_authenticated("this manager takes no MUNGE credentials"));
        };
        let ConnectionPeer::Stranger { channel, server, .. } = connection else {
            return Err(not_authenticated(
                "MUNGE is for connections without a certificate, from other hosts",
            ));
        };
        let answer = self.challenges.take(*channel, now_ms).map_err(not_authenticated)?;
        let uid = munge.check(credential, &munge_payload(&answer.nonce, server)).await?;
        self.of_subject(Subject::Munge { uid }, CallerProof::Munge)
    }

    fn of_connection(&self, connection: &ConnectionPeer) -> Result<Caller, Rejection> {
        match connection {
            ConnectionPeer::Local { uid } => self.of_local(*uid),
            ConnectionPeer::Certified(peer) => self.of_certificate(peer),
            ConnectionPeer::Stranger { .. } => Err(not_authenticated(
                "this connection has no certificate and the request no credential; see docs/identity.md",
            )),
        }
    }

    fn of_local(&self, uid: u32) -> Result<Caller, Rejection> {
        let belongs = self.directory.find_member(&Subject::Local { uid });
        let caller = |tenant, role| Caller {
            name: format!("uid:{uid}"),
            tenant,
            role,
            proof: CallerProof::PeerCredentials,
        };
        // A user that could stop the manager and read its files is an operator, even if the directory says otherwise. A
        // disabled tenant still leases nothing.
        if uid == self.own_uid || uid == 0 {
            let tenant = match belongs {
                Ok((tenant, _)) => Some(tenant),
                Err(_) => {
                    let own = format!("uid:{uid}");
                    self.directory.tenant(&own).is_none_or(|own| own.enabled).then_some(own)
                }
            };
            return Ok(caller(tenant, Role::Operator));
        }
        let (tenant, role) = belongs?;
        Ok(caller(Some(tenant), role))
    }

    fn of_certificate(&self, peer: &Arc<Peer>) -> Result<Caller, Rejection> {
        let (tenant, role) = match (peer.role, &peer.tenant) {
            (CertificateRole::Client, Some(tenant)) => {
                let subject = Subject::Certified { tenant: tenant.clone() };
                let (tenant, role) = self.directory.find_member(&subject)?;
                (Some(tenant), role)
            }
            (CertificateRole::Client, None) => {
                return Err(not_authenticated("the certificate names no tenant"));
            }
            (CertificateRole::Agent, _) => (None, Role::Agent),
            (CertificateRole::Manager, _) => (None, Role::Manager),
        };
        Ok(Caller {
            name: peer.name.clone(),
            tenant,
            role,
            proof: CallerProof::Certificate(Arc::clone(peer)),
        })
    }

    fn of_key(&self, key: &str, now_ms: u64) -> Result<Caller, Rejection> {
        let record = keys::check(key, now_ms, |id| self.directory.key(id))?;
        self.directory.check_enabled(&record.tenant)?;
        self.directory.note_key_use(&record.id, now_ms);
        Ok(Caller {
            name: format!("{KEY_NAME}{}", record.id),
            tenant: Some(record.tenant),
            role: record.position.into(),
            proof: CallerProof::Key,
        })
    }

    /// Nonce for this connection, and the end of its validity (milliseconds since 1970).
    pub fn challenge(&self, connection: &ConnectionPeer, now: SystemTime) -> ([u8; 32], u64) {
        self.challenges.make(connection.channel(), milliseconds(now))
    }

    /// Session token for a caller that was just authenticated on this connection, and the end of its validity.
    pub fn session(
        &self,
        caller: &Caller,
        connection: &ConnectionPeer,
        now: SystemTime,
    ) -> Result<(String, u64), Rejection> {
        self.sessions.open(caller, connection, milliseconds(now))
    }

    /// Replaces the key of session tokens; tokens of the former key stay valid until they expire.
    pub(crate) fn rotate(&self, now: SystemTime) {
        self.sessions.rotate(milliseconds(now));
    }
}
