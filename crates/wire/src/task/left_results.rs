//! Results that stay with the worker that made them, and the TCP protocol by which another worker fetches such a
//! result.
//!
//! ```text
//!   maker ── Challenge: a nonce ──────────────────────────────────▶ asker
//!         ◀── Claim: ticket, a nonce of its own, its code ─────────
//!         ── Delivery: bytes, its code ───────────────────────────▶
//!         ── the reply, byte for byte, and the code of these bytes ▶
//! ```
//!
//! Each result has its own secret. The maker sends the secret to its client in the reply ([`LeftResult`]), and the
//! client passes the secret to each worker that is to get the result. The secret is never sent over this connection.
//! All codes are computed with the secret, from both nonces and the ticket, each code for one purpose. So each end can
//! verify that the other end has the secret, and no message can be replayed. To a peer without the secret the maker
//! sends only its challenge.

use super::{FormatError, reply};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Smallest size of results that may stay. Smaller results are sent to the client and from there to the workers that
/// need them, which costs no more than a transfer between the workers.
pub const LEFT_BYTES_MIN: usize = 64 << 10;
/// Largest number of bytes of all results that stay with a worker.
pub const LEFT_BYTES_MAX: usize = 1 << 30;
/// Largest number of results that stay with a worker.
pub const LEFT_MAX: usize = 4096;

/// First bytes of a challenge.
const MAGIC: [u8; 8] = *b"hlleft01";
const CODE_BYTES: usize = 32;
const NONCE_BYTES: usize = 32;

/// Bytes of a reply that describes a left result.
pub const LEFT_REPLY_BYTES: usize = reply::HEAD_BYTES + 8 + 8 + 32 + 16 + 2;
/// Bytes of a [`Challenge`].
pub const CHALLENGE_BYTES: usize = MAGIC.len() + NONCE_BYTES;
/// Bytes of a [`Claim`].
pub const CLAIM_BYTES: usize = 8 + NONCE_BYTES + CODE_BYTES;
/// Bytes of a delivery.
pub const DELIVERY_BYTES: usize = 8 + CODE_BYTES;
/// Bytes of the code after the result.
pub const CONTENT_CODE_BYTES: usize = CODE_BYTES;

/// A random number that is never used twice.
pub type Nonce = [u8; NONCE_BYTES];

/// Secret of a result; only parties that may get the result have it.
#[derive(Clone, PartialEq, Eq)]
pub struct ResultSecret(pub [u8; 32]);

impl fmt::Debug for ResultSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

/// A result that stays with its maker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftResult {
    /// Number of the result among the results of its worker.
    pub ticket: u64,
    /// Size of the result, which is a whole reply.
    pub bytes: u64,
    /// Secret of the result: every party that has the secret may get the result.
    pub secret: ResultSecret,
    /// Address on which the result's worker listens.
    pub address: SocketAddr,
}

impl LeftResult {
    /// Encodes the description as a reply.
    pub fn encode(&self) -> [u8; LEFT_REPLY_BYTES] {
        let address = match self.address.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let mut bytes = [0; LEFT_REPLY_BYTES];
        bytes[0] = reply::LEFT;
        let mut rest = &mut bytes[reply::HEAD_BYTES..];
        let parts: [&[u8]; 5] = [
            &self.ticket.to_le_bytes(),
            &self.bytes.to_le_bytes(),
            &self.secret.0,
            &address.octets(),
            &self.address.port().to_le_bytes(),
        ];
        for part in parts {
            let (place, behind) = std::mem::take(&mut rest).split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = behind;
        }
        bytes
    }

    /// Decodes a whole reply.
    ///
    /// # Errors
    /// [`FormatError::Kind`] if the reply is of another kind, [`FormatError::Short`] if it has another length,
    /// [`FormatError::Left`] if its numbers are impossible.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.first() != Some(&reply::LEFT) {
            return Err(FormatError::Kind);
        }
        let bytes: &[u8; LEFT_REPLY_BYTES] = bytes.try_into().map_err(|_| FormatError::Short)?;
        if bytes[1..reply::HEAD_BYTES] != [0; reply::HEAD_BYTES - 1] {
            return Err(FormatError::Kind);
        }
        let mut fields = FieldReader(&bytes[reply::HEAD_BYTES..]);
        let (ticket, size) = (fields.word()?, fields.word()?);
        let secret = ResultSecret(fields.take()?);
        let address = Ipv6Addr::from(fields.take::<16>()?).to_canonical();
        let port = u16::from_le_bytes(fields.take()?);
        let fits = (LEFT_BYTES_MIN as u64..=LEFT_BYTES_MAX as u64).contains(&size);
        if !fits || port == 0 || address.is_unspecified() || address.is_multicast() {
            return Err(FormatError::Left);
        }
        Ok(Self {
            ticket,
            bytes: size,
            secret,
            address: SocketAddr::new(address, port),
        })
    }
}

/// Reader of fixed-size parts, one after the other.
struct FieldReader<'a>(&'a [u8]);

impl FieldReader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (part, rest) = self.0.split_first_chunk().ok_or(FormatError::Short)?;
        self.0 = rest;
        Ok(*part)
    }

    fn word(&mut self) -> Result<u64, FormatError> {
        self.take().map(u64::from_le_bytes)
    }
}

/// First message of a maker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge(pub Nonce);

impl Challenge {
    /// Encodes the challenge.
    pub fn encode(&self) -> [u8; CHALLENGE_BYTES] {
        let mut bytes = [0; CHALLENGE_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        bytes[MAGIC.len()..].copy_from_slice(&self.0);
        bytes
    }

    /// Decodes a challenge.
    ///
    /// # Errors
    /// If another program listens at the address.
    pub fn decode(bytes: &[u8; CHALLENGE_BYTES]) -> Result<Self, FormatError> {
        let mut fields = FieldReader(bytes);
        match fields.take()? {
            MAGIC => Ok(Self(fields.take()?)),
            _ => Err(FormatError::Kind),
        }
    }
}

/// Message of an asker: its claim to a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Ticket of the result.
    pub ticket: u64,
    /// Nonce of the asker.
    pub nonce: Nonce,
    code: [u8; CODE_BYTES],
}

impl Claim {
    /// Encodes the claim.
    pub fn encode(&self) -> [u8; CLAIM_BYTES] {
        let mut bytes = [0; CLAIM_BYTES];
        bytes[..8].copy_from_slice(&self.ticket.to_le_bytes());
        bytes[8..8 + NONCE_BYTES].copy_from_slice(&self.nonce);
        bytes[8 + NONCE_BYTES..].copy_from_slice(&self.code);
        bytes
    }

    /// Decodes a claim. Any bytes form a claim; [`Exchange::accepts`] checks whether it is valid.
    pub fn decode(bytes: &[u8; CLAIM_BYTES]) -> Self {
        let (mut ticket, mut nonce, mut code) = ([0; 8], [0; NONCE_BYTES], [0; CODE_BYTES]);
        ticket.copy_from_slice(&bytes[..8]);
        nonce.copy_from_slice(&bytes[8..8 + NONCE_BYTES]);
        code.copy_from_slice(&bytes[8 + NONCE_BYTES..]);
        Self {
            ticket: u64::from_le_bytes(ticket),
            nonce,
            code,
        }
    }
}

/// Secret, ticket and nonces of an exchange, from which all its codes are made.
pub struct Exchange<'a> {
    /// Secret of the result.
    pub secret: &'a ResultSecret,
    /// Ticket of the result.
    pub ticket: u64,
    /// The maker's nonce.
    pub challenge: Nonce,
    /// The asker's nonce.
    pub nonce: Nonce,
}

impl Exchange<'_> {
    fn code(&self, purpose: &[u8], more: &[u8]) -> Hmac<Sha256> {
        let mut code = Hmac::<Sha256>::new_from_slice(&self.secret.0).expect("HMAC takes any key length");
        code.update(purpose);
        code.update(&self.ticket.to_le_bytes());
        code.update(&self.challenge);
        code.update(&self.nonce);
        code.update(more);
        code
    }

    /// Makes the asker's claim.
    pub fn claim(&self) -> Claim {
        Claim {
            ticket: self.ticket,
            nonce: self.nonce,
            code: self.code(b"hotlease left claim 1", &[]).finalize().into_bytes().into(),
        }
    }

    /// Whether a claim was made with the secret, for this challenge; in constant time.
    pub fn accepts(&self, claim: &Claim) -> bool {
        let code = self.code(b"hotlease left claim 1", &[]);
        claim.ticket == self.ticket && claim.nonce == self.nonce && code.verify_slice(&claim.code).is_ok()
    }

    /// Makes the head that goes before a result of this size.
    pub fn delivery(&self, bytes: u64) -> [u8; DELIVERY_BYTES] {
        let bytes = bytes.to_le_bytes();
        let code = self.code(b"hotlease left delivery 1", &bytes);
        let mut delivery = [0; DELIVERY_BYTES];
        delivery[..8].copy_from_slice(&bytes);
        delivery[8..].copy_from_slice(&code.finalize().into_bytes());
        delivery
    }

    /// Size of the result, if the delivery was made with the secret; `None` otherwise.
    pub fn delivered(&self, delivery: &[u8; DELIVERY_BYTES]) -> Option<u64> {
        let (bytes, code) = delivery.split_first_chunk::<8>()?;
        let expected = self.code(b"hotlease left delivery 1", bytes);
        expected.verify_slice(code).ok()?;
        Some(u64::from_le_bytes(*bytes))
    }

    /// Code of the result: keyed BLAKE3, which is as fast as memory, with a key for this exchange alone.
    pub fn content(&self) -> ContentCode {
        let key = self.code(b"hotlease left content 1", &[]).finalize().into_bytes();
        ContentCode(blake3::Hasher::new_keyed(&key.into()))
    }
}

/// Code of a result's bytes, computed while they are transferred.
pub struct ContentCode(blake3::Hasher);

impl ContentCode {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The code of all bytes.
    pub fn code(&self) -> [u8; CONTENT_CODE_BYTES] {
        *self.0.finalize().as_bytes()
    }

    /// Whether this is the code of all bytes; in constant time.
    pub fn matches_code(&self, code: &[u8; CONTENT_CODE_BYTES]) -> bool {
        self.0.finalize() == *code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(secret: &ResultSecret) -> Exchange<'_> {
        Exchange {
            secret,
            ticket: 7,
            challenge: [1; 32],
            nonce: [2; 32],
        }
    }

    #[test]
    fn only_the_holder_of_the_secret_claims_and_delivers() {
        let (secret, other) = (ResultSecret([9; 32]), ResultSecret([8; 32]));
        let ours = exchange(&secret);
        assert!(ours.accepts(&ours.claim()));
        assert!(!ours.accepts(&exchange(&other).claim()), "another secret");
        assert_eq!(ours.delivered(&ours.delivery(5)), Some(5));
        assert_eq!(ours.delivered(&exchange(&other).delivery(5)), None, "another secret");
        let (mut one, mut two) = (ours.content(), exchange(&other).content());
        one.update(b"bytes");
        two.update(b"bytes");
        assert!(one.matches_code(&one.code()) && !one.matches_code(&two.code()));
    }

    #[test]
    fn a_proof_from_one_exchange_fails_in_another() {
        let secret = ResultSecret([9; 32]);
        let said = exchange(&secret);
        let others = [
            Exchange {
                challenge: [3; 32],
                ..exchange(&secret)
            },
            Exchange {
                ticket: 8,
                ..exchange(&secret)
            },
        ];
        for other in others {
            assert!(!other.accepts(&said.claim()));
            assert_eq!(other.delivered(&said.delivery(5)), None);
            assert_ne!(other.content().code(), said.content().code());
        }
        // Each code is for one purpose.
        let mut bent = said.delivery(0);
        bent[8..].copy_from_slice(&said.claim().encode()[8 + NONCE_BYTES..]);
        assert_eq!(said.delivered(&bent), None);
    }

    #[test]
    fn every_single_bit_flip_is_refused() {
        let secret = ResultSecret([9; 32]);
        let exchange = exchange(&secret);
        let claim = exchange.claim().encode();
        for bit in 0..claim.len() * 8 {
            let mut forged = claim;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(!exchange.accepts(&Claim::decode(&forged)), "bit {bit} of a claim");
        }
        let delivery = exchange.delivery(70_000);
        for bit in 0..delivery.len() * 8 {
            let mut forged = delivery;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(exchange.delivered(&forged), None, "bit {bit} of a delivery");
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", ResultSecret([9; 32])), "Secret(..)");
    }
}
