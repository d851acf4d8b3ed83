//! Session tokens. A caller gets a token in exchange for a credential that is valid once, and sends the token with each
//! request.
//!
//! A token is `hls_` and the base64 of claims and their MAC. It contains all that its check needs, so the manager
//! stores nothing for it. It is valid only on the connection that it was made for, for five minutes, and until this
//! process ends or the key has been rotated twice. A client whose token is invalid gets a new one.

use super::{Caller, CallerProof, ConnectionPeer, Role};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hotlease_wire::Rejection;
use serde::{Deserialize, Serialize};
use std::sync::{PoisonError, RwLock};

/// Prefix of session tokens.
pub(super) const PREFIX: &str = "hls_";
/// Lifetime of a token.
pub(crate) const LIFETIME_MS: u64 = 300_000;
const MAC_BYTES: usize = 32;
/// Longest token, characters.
const TOKEN_CHARS_MAX: usize = 1024;

#[derive(Serialize, Deserialize)]
struct Claims {
    name: String,
    tenant: String,
    role: u8,
    kind: u8,
    /// Identifier of the connection.
    channel: [u8; 32],
    expires_ms: u64,
}

struct SessionKeys {
    present: [u8; 32],
    /// Key before the present one, and the time until which its tokens are valid.
    former: Option<([u8; 32], u64)>,
}

/// Makes and checks session tokens.
pub(super) struct Sessions(RwLock<SessionKeys>);

const ROLES: [Role; 3] = [Role::User, Role::Operator, Role::Hook];
const KINDS: [CallerProof; 3] = [CallerProof::Munge, CallerProof::Token, CallerProof::Key];

impl Sessions {
    pub fn new() -> Self {
        Self(RwLock::new(SessionKeys {
            present: rand::random(),
            former: None,
        }))
    }

    /// Makes a new key. Tokens of the previous key stay valid until they expire.
    pub fn rotate(&self, now_ms: u64) {
        let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
        keys.former = Some((keys.present, now_ms + LIFETIME_MS));
        keys.present = rand::random();
    }

    /// Makes a token for a caller that was authenticated on this connection; returns it with the end of its validity.
    pub fn open(&self, caller: &Caller, connection: &ConnectionPeer, now_ms: u64) -> Result<(String, u64), Rejection> {
        let role = ROLES.iter().position(|role| *role == caller.role);
        let kind = KINDS.iter().position(|kind| *kind == caller.proof);
        let (Some(role), Some(kind), Some(tenant)) = (role, kind, &caller.tenant) else {
            return Err(Rejection::BadRequest {
                what: "a session is for a credential in the authorization header; this connection needs none".into(),
            });
        };
        let expires_ms = now_ms + LIFETIME_MS;
        let claims = Claims {
            name: caller.name.clone(),
            tenant: tenant.clone(),
            role: role as u8,
            kind: kind as u8,
            channel: connection.channel(),
            expires_ms,
        };
        let mut token = hotlease_wire::encode(&claims);
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mac = blake3::keyed_hash(&keys.present, &token);
        token.extend_from_slice(mac.as_bytes());
        Ok((format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(token)), expires_ms))
    }

    /// Checks a token, and returns its caller.
    pub fn check(&self, token: &str, connection: &ConnectionPeer, now_ms: u64) -> Result<Caller, Rejection> {
        let refused = |why: &str| Rejection::NotAuthenticated { why: why.into() };
        let bad = || refused("the session's token is not valid here");
        let encoded = token
            .strip_prefix(PREFIX)
            .filter(|encoded| encoded.len() <= TOKEN_CHARS_MAX);
        let bytes = URL_SAFE_NO_PAD.decode(encoded.ok_or_else(bad)?).map_err(|_| bad())?;
        let (body, mac) = bytes.split_last_chunk::<MAC_BYTES>().ok_or_else(bad)?;
        let mac = blake3::Hash::from_bytes(*mac);
        {
            let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let former = keys
                .former
                .filter(|(_, until_ms)| now_ms < *until_ms)
                .map(|(key, _)| key);
            // Compared in constant time.
            let opens = |key: [u8; 32]| blake3::keyed_hash(&key, body) == mac;
            if !opens(keys.present) && !former.is_some_and(opens) {
                return Err(bad());
            }
        }
        let claims: Claims = hotlease_wire::decode(body).map_err(|_| bad())?;
        if claims.channel != connection.channel() {
            return Err(refused("the session's token belongs to another connection"));
        }
        if claims.expires_ms <= now_ms {
            return Err(refused("the session has expired"));
        }
        let role = ROLES.get(usize::from(claims.role)).copied().ok_or_else(bad)?;
        let proof = KINDS.get(usize::from(claims.kind)).cloned().ok_or_else(bad)?;
        Ok(Caller {
            name: claims.name,
            tenant: Some(claims.tenant),
            role,
            proof,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(channel: u8) -> ConnectionPeer {
        ConnectionPeer::Stranger {
            channel: [channel; 32],
            server: [0; 32],
            payer: None,
        }
    }

    fn caller() -> Caller {
        Caller {
            name: "uid:7".into(),
            tenant: Some("alice".into()),
            role: Role::Hook,
            proof: CallerProof::Munge,
        }
    }

    #[test]
    fn a_token_opens_on_its_connection_until_it_expires() {
        let sessions = Sessions::new();
        let (token, until) = sessions.open(&caller(), &on(1), 1000).expect("made");
        assert_eq!(sessions.check(&token, &on(1), until - 1), Ok(caller()));
        assert!(sessions.check(&token, &on(1), until).is_err(), "expired and taken");
        assert!(
            sessions.check(&token, &on(2), 1000).is_err(),
            "taken on another connection"
        );
        assert!(
            Sessions::new().check(&token, &on(1), 1000).is_err(),
            "taken by another manager"
        );
    }

    #[test]
    fn a_former_keys_tokens_open_until_they_expire_and_a_key_before_that_opens_nothing() {
        let sessions = Sessions::new();
        let (token, until) = sessions.open(&caller(), &on(1), 1000).expect("made");
        sessions.rotate(2000);
        assert!(
            sessions.check(&token, &on(1), until - 1).is_ok(),
            "rotating ended a session"
        );
        sessions.rotate(2001);
        assert!(
            sessions.check(&token, &on(1), 2002).is_err(),
            "a key that was rotated twice still opens"
        );
    }

    #[test]
    fn every_changed_character_is_refused() {
        let sessions = Sessions::new();
        let (token, _) = sessions.open(&caller(), &on(1), 1000).expect("made");
        for at in 0..token.len() {
            assert!(
                sessions.check(&token[..at], &on(1), 1000).is_err(),
                "cut to {at} and taken"
            );
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("still ASCII");
            assert!(
                sessions.check(&changed, &on(1), 1000).is_err(),
                "character {at} changed and taken"
            );
        }
    }
}
