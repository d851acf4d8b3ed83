//! The token: a MAC'd capability that names the lease that its bearer may use.
//!
//! The agent mints and checks tokens with a key that never leaves the agent. A token names the agent's boot and the
//! lease's epoch, so a token from before a restart or of an ended lease opens nothing.
//!
//! The agent replaces its key from time to time ([`TokenKeys`]). A token begins with the number of its key, so that
//! only this key is tried. The previous key still opens the tokens that it made; earlier keys open nothing any more.
//!
//! ```text
//! number of the key (32 bits, little endian) | claims | HMAC-SHA256 of both
//! ```

use crate::DecodeError;
use crate::ids::{AgentId, BootId, Epoch, LeaseId};
use crate::limits::TENANT_BYTES_MAX;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

const MAC_BYTES: usize = 32;
const NUMBER_BYTES: usize = 4;
/// Longest token, bytes.
pub const TOKEN_BYTES_MAX: usize = 256;

/// Content of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Layout of this struct.
    pub version: u8,
    /// The lease.
    pub lease: LeaseId,
    /// Tenant that may use the lease.
    pub tenant: String,
    /// Agent that granted the lease.
    pub agent: AgentId,
    /// Run of that agent.
    pub boot: BootId,
    /// The lease's epoch at the grant.
    pub epoch: Epoch,
    /// Time when the token itself stops opening sessions, milliseconds of the agent's own clock since its boot.
    /// (Attached sessions live as long as the lease is renewed.)
    pub attach_until_ms: u64,
    /// Rights of the bearer.
    pub rights: Rights,
    /// Delegation of the holder that the token is for; 0: it is the holder's own token.
    pub delegation: u32,
}

/// Rights of a token's bearer on the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights(u8);

impl Rights {
    /// Invoke functions.
    pub const INVOKE: Self = Self(1);
    /// Invoke, load code, renew and release.
    pub const HOLDER: Self = Self(3);
    /// Whether the rights include all of `other`.
    pub fn include(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Current [`Claims::version`].
pub const CLAIMS_VERSION: u8 = 2;

/// Reason why a token opens nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The bytes are no token.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// The token was not minted with this key, or was altered.
    #[error("the token's authentication code is wrong")]
    Forged,
    /// The token's key has been replaced twice since the token was made.
    #[error("the token's key was replaced twice since it was made; renewing its lease gets a new one")]
    Retired,
}

/// One key of an agent. Not `Debug`, not serialisable: it never leaves the process.
#[derive(Clone)]
pub struct TokenKey {
    number: u32,
    secret: [u8; 32],
}

impl TokenKey {
    /// The first key of an agent's run, from random bytes.
    pub fn new(secret: [u8; 32]) -> Self {
        Self { number: 0, secret }
    }

    /// The next key.
    fn followed_by(&self, secret: [u8; 32]) -> Self {
        Self {
            number: self.number.wrapping_add(1),
            secret,
        }
    }

    fn mac(&self, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes any key length");
        mac.update(b"hotlease token v2");
        mac.update(body);
        mac
    }

    /// Makes a token: claims and their authentication code. The client stores it unchanged.
    pub fn mint(&self, claims: &Claims) -> Vec<u8> {
        let mut token = self.number.to_le_bytes().to_vec();
        token.extend_from_slice(&crate::encode(claims));
        let code = self.mac(&token).finalize().into_bytes();
        token.extend_from_slice(&code);
        token
    }

    /// The claims of a token minted with this key; total on any bytes, constant time in the code.
    pub fn open(&self, token: &[u8]) -> Result<Claims, TokenError> {
        let malformed = DecodeError::Malformed { what: "token" };
        let number = number_of(token)?;
        let (body, code) = token.split_at(token.len() - MAC_BYTES);
        self.mac(body).verify_slice(code).map_err(|_| TokenError::Forged)?;
        if number != self.number {
            return Err(TokenError::Forged);
        }
        let claims: Claims = crate::decode(&body[NUMBER_BYTES..])?;
        if claims.version != CLAIMS_VERSION || claims.tenant.len() > TENANT_BYTES_MAX {
            return Err(malformed.into());
        }
        Ok(claims)
    }
}

/// Number of the key that made a token, if the bytes are a token.
fn number_of(token: &[u8]) -> Result<u32, DecodeError> {
    let fits = (NUMBER_BYTES + MAC_BYTES..=TOKEN_BYTES_MAX).contains(&token.len());
    match token.first_chunk() {
        Some(number) if fits => Ok(u32::from_le_bytes(*number)),
        _ => Err(DecodeError::Malformed { what: "token" }),
    }
}

/// The keys of one run of an agent: the current key, and the previous key.
#[derive(Clone)]
pub struct TokenKeys {
    present: TokenKey,
    former: Option<TokenKey>,
}

impl TokenKeys {
    /// The keys at the beginning of a run: one key, from random bytes.
    pub fn new(secret: [u8; 32]) -> Self {
        Self {
            present: TokenKey::new(secret),
            former: None,
        }
    }

    /// Makes a new key. The key that was current still opens its tokens until the next rotation; the key before it
    /// opens nothing any more.
    pub fn rotate(&mut self, secret: [u8; 32]) {
        let next = self.present.followed_by(secret);
        self.former = Some(std::mem::replace(&mut self.present, next));
    }

    /// Mints with the current key; see [`TokenKey::mint`].
    pub fn mint(&self, claims: &Claims) -> Vec<u8> {
        self.present.mint(claims)
    }

    /// Opens with the key that the token names; see [`TokenKey::open`].
    pub fn open(&self, token: &[u8]) -> Result<Claims, TokenError> {
        let number = number_of(token)?;
        if number == self.present.number {
            return self.present.open(token);
        }
        match &self.former {
            Some(former) if number == former.number => former.open(token),
            Some(former) if number < former.number => Err(TokenError::Retired),
            _ => Err(TokenError::Forged),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_opens_what_it_made_until_it_was_replaced_twice() {
        let mut keys = TokenKeys::new([1; 32]);
        let first = keys.mint(&claims());
        keys.rotate([2; 32]);
        let second = keys.mint(&claims());
        assert_eq!(keys.open(&first), Ok(claims()), "the former key opens nothing");
        keys.rotate([3; 32]);
        assert_eq!(keys.open(&first), Err(TokenError::Retired));
        assert_eq!(keys.open(&second), Ok(claims()));
        assert_eq!(keys.open(&keys.mint(&claims())), Ok(claims()));
        // The number only selects the key, and proves nothing.
        let mut renumbered = first.clone();
        renumbered[0] = 2;
        assert_eq!(keys.open(&renumbered), Err(TokenError::Forged));
        renumbered[0] = 9;
        assert_eq!(keys.open(&renumbered), Err(TokenError::Forged), "a key that is to come");
    }

    fn claims() -> Claims {
        Claims {
            version: CLAIMS_VERSION,
            lease: LeaseId([1; 8]),
            tenant: "uid:1000".into(),
            agent: AgentId([2; 8]),
            boot: BootId([3; 8]),
            epoch: Epoch(4),
            attach_until_ms: 5000,
            rights: Rights::HOLDER,
            delegation: 0,
        }
    }

    #[test]
    fn opens_only_with_its_key() {
        let key = TokenKey::new([7; 32]);
        let token = key.mint(&claims());
        assert_eq!(key.open(&token).unwrap(), claims());
        assert_eq!(TokenKey::new([8; 32]).open(&token), Err(TokenError::Forged));
    }

    #[test]
    fn every_single_bit_flip_is_refused() {
        let key = TokenKey::new([7; 32]);
        let token = key.mint(&claims());
        for bit in 0..token.len() * 8 {
            let mut forged = token.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(key.open(&forged).is_err(), "bit {bit} flipped and still accepted");
        }
        for length in 0..token.len() {
            assert!(
                key.open(&token[..length]).is_err(),
                "cut to {length} bytes and accepted"
            );
        }
    }
}
