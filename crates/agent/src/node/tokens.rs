//! Tokens: making and opening them, the rights of their bearers, and their keys.

use super::Node;
use hotlease_lease::agent::CoreLease;
use hotlease_wire::Rejection;
use hotlease_wire::ids::LeaseId;
use hotlease_wire::token::{CLAIMS_VERSION, Claims, Rights, TokenError};
use std::sync::PoisonError;
use std::time::Duration;
use tokio::time::{Instant, interval_at};

impl Node {
    /// Token for a lease, valid to attach until the lease expires.
    pub(super) fn token(&self, lease: &CoreLease, rights: Rights) -> Vec<u8> {
        self.mint_token(lease, lease.expires, rights, 0)
    }

    /// Makes a token with the present key, to attach to a lease, or to one of its delegations, until `until`.
    pub(super) fn mint_token(&self, lease: &CoreLease, until: Duration, rights: Rights, delegation: u32) -> Vec<u8> {
        let claims = Claims {
            version: CLAIMS_VERSION,
            lease: lease.id,
            tenant: lease.request.tenant.clone(),
            agent: self.identity.agent,
            boot: self.identity.boot,
            epoch: lease.epoch,
            attach_until_ms: u64::try_from(until.as_millis()).unwrap_or(u64::MAX),
            rights,
            delegation,
        };
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.mint(&claims)
    }

    /// Token for a lease that was renewed, valid to attach until it expires.
    pub fn renewed_token(&self, lease: LeaseId, rights: Rights) -> Result<Vec<u8>, Rejection> {
        Ok(self.token(self.tables().book.active(lease)?, rights))
    }

    /// Opens a token of this agent; returns its claims.
    pub(super) fn open_token(&self, token: &[u8]) -> Result<Claims, Rejection> {
        let opened = {
            let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
            keys.open(token)
        };
        let claims = opened.map_err(|error| match error {
            // A forger learns nothing from this answer: any client can write the number of a retired key into a token.
            TokenError::Retired => Rejection::Unavailable {
                what: error.to_string(),
            },
            // The answer does not say which check failed: only a forger could use this information.
            TokenError::Forged | TokenError::Malformed(_) => Rejection::BadToken,
        })?;
        if claims.agent != self.identity.agent || claims.boot != self.identity.boot {
            return Err(Rejection::BadToken);
        }
        Ok(claims)
    }

    /// Tenant and lease of a bearer token (peer without a certificate). Accepts only a token with which a session could
    /// attach now.
    pub fn bearer_of(&self, token: &[u8]) -> Result<(String, LeaseId), Rejection> {
        let claims = self.open_token(token)?;
        if claims.delegation != 0 {
            return Err(Rejection::NotPermitted {
                what: "opening a session with only the token of lent slots; authenticate as well".into(),
            });
        }
        let tables = self.tables();
        let lease = tables.book.active(claims.lease)?;
        if lease.epoch != claims.epoch {
            return Err(Rejection::StaleEpoch {
                token: claims.epoch,
                current: lease.epoch,
            });
        }
        if lease.request.tenant != claims.tenant {
            return Err(Rejection::WrongTenant);
        }
        if Duration::from_millis(claims.attach_until_ms) <= self.now() {
            return Err(Rejection::NotPermitted {
                what: "the token's time to attach is over; renewing its lease gets a new one".into(),
            });
        }
        Ok((claims.tenant, claims.lease))
    }

    /// Makes a new key for tokens; see [`hotlease_wire::token::TokenKeys::rotate`].
    pub fn rotate_token_key(&self) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        keys.rotate(rand::random());
        tracing::info!("the key of lease tokens was replaced");
    }

    /// Replaces the key of tokens at this interval.
    pub async fn keep_rotating(self: std::sync::Arc<Self>, every: Duration) {
        let mut turns = interval_at(Instant::now() + every, every);
        loop {
            turns.tick().await;
            self.rotate_token_key();
        }
    }
}
