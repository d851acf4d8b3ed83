//! Results that stay with the worker that made them, and how another worker gets one from there: what the two say to each other
//! over a TCP connection.
//!
//! ```text
//!   maker ── Challenge: a nonce ──────────────────────────────────▶ asker
//!         ◀── Claim: ticket, a nonce of its own, its code ─────────
//!         ── Delivery: bytes, its code ───────────────────────────▶
//!         ── the reply, byte for byte, and the code of these bytes ▶
//! ```
//!
//! Each result has a secret of its own, which the maker told its client in the reply ([`Left`]), and the client whoever is to get the
//! result; it never goes over this connection. All codes are made with it, of both nonces and the ticket, each for one purpose: so each
//! end knows that the other one has it, and nothing that was said once is of use again. The maker answers nothing but its challenge
//! to who does not have it.

use super::{FormatError, reply};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Results below this are sent to the client: another way costs as much as they do.
pub const LEFT_FROM: usize = 64 << 10;
/// Bytes of all results that stay with a worker.
pub const LEFT_BYTES_MAX: usize = 1 << 30;
/// Results that stay with a worker.
pub const LEFT_MAX: usize = 4096;

/// What the first bytes of a maker are.
const MAGIC: [u8; 8] = *b"hlleft01";
const CODE_BYTES: usize = 32;
const NONCE_BYTES: usize = 32;

/// Bytes of a reply that says where a result is.
pub const LEFT_REPLY_BYTES: usize = reply::HEAD_BYTES + 8 + 8 + 32 + 16 + 2;
/// Bytes of a [`Challenge`].
pub const CHALLENGE_BYTES: usize = MAGIC.len() + NONCE_BYTES;
/// Bytes of a [`Claim`].
pub const CLAIM_BYTES: usize = 8 + NONCE_BYTES + CODE_BYTES;
/// Bytes of a [`Delivery`].
pub const DELIVERY_BYTES: usize = 8 + CODE_BYTES;
/// Bytes behind the result.
pub const CONTENT_CODE_BYTES: usize = CODE_BYTES;

/// Random, and never used twice.
pub type Nonce = [u8; NONCE_BYTES];

/// What only those know who may have a result.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

/// A result that stayed where it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Its number, of its worker's.
    pub ticket: u64,
    /// Bytes of the whole reply that it is.
    pub bytes: u64,
    /// Who has this may have it.
    pub secret: Secret,
    /// Where its worker listens.
    pub address: SocketAddr,
}

impl Left {
    /// The reply that says so.
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

    /// Of a whole reply.
    ///
    /// # Errors
    /// [`FormatError::Kind`] if it is none of these, [`FormatError::Short`] if it has another length,
    /// [`FormatError::Left`] if its numbers make no sense.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.first() != Some(&reply::LEFT) {
            return Err(FormatError::Kind);
        }
        let bytes: &[u8; LEFT_REPLY_BYTES] = bytes.try_into().map_err(|_| FormatError::Short)?;
        if bytes[1..reply::HEAD_BYTES] != [0; reply::HEAD_BYTES - 1] {
            return Err(FormatError::Kind);
        }
        let mut fields = Fields(&bytes[reply::HEAD_BYTES..]);
        let (ticket, size) = (fields.word()?, fields.word()?);
        let secret = Secret(fields.take()?);
        let address = Ipv6Addr::from(fields.take::<16>()?).to_canonical();
        let port = u16::from_le_bytes(fields.take()?);
        let fits = (LEFT_FROM as u64..=LEFT_BYTES_MAX as u64).contains(&size);
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

/// Bytes that are taken one part after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (part, rest) = self.0.split_first_chunk().ok_or(FormatError::Short)?;
        self.0 = rest;
        Ok(*part)
    }

    fn word(&mut self) -> Result<u64, FormatError> {
        self.take().map(u64::from_le_bytes)
    }
}

/// What a maker says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge(pub Nonce);

impl Challenge {
    /// Its bytes.
    pub fn encode(&self) -> [u8; CHALLENGE_BYTES] {
        let mut bytes = [0; CHALLENGE_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        bytes[MAGIC.len()..].copy_from_slice(&self.0);
        bytes
    }

    /// Of these bytes.
    ///
    /// # Errors
    /// If it is somebody else who listens there.
    pub fn decode(bytes: &[u8; CHALLENGE_BYTES]) -> Result<Self, FormatError> {
        let mut fields = Fields(bytes);
        match fields.take()? {
            MAGIC => Ok(Self(fields.take()?)),
            _ => Err(FormatError::Kind),
        }
    }
}

/// What an asker says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Which result.
    pub ticket: u64,
    /// The asker's.
    pub nonce: Nonce,
    code: [u8; CODE_BYTES],
}

impl Claim {
    /// Its bytes.
    pub fn encode(&self) -> [u8; CLAIM_BYTES] {
        let mut bytes = [0; CLAIM_BYTES];
        bytes[..8].copy_from_slice(&self.ticket.to_le_bytes());
        bytes[8..8 + NONCE_BYTES].copy_from_slice(&self.nonce);
        bytes[8 + NONCE_BYTES..].copy_from_slice(&self.code);
        bytes
    }

    /// Of these bytes: all are a claim, and [`Exchange::accepts`] says whether it is a good one.
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

/// What was said so far, and by whom: all codes are of these.
pub struct Exchange<'a> {
    /// Of the result.
    pub secret: &'a Secret,
    /// Of the result.
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

    /// What the asker says.
    pub fn claim(&self) -> Claim {
        Claim {
            ticket: self.ticket,
            nonce: self.nonce,
            code: self
                .code(b"hotlease left claim 1", &[])
                .finalize()
                .into_bytes()
                .into(),
        }
    }

    /// Whether a claim was made with the secret, for this challenge; in constant time.
    pub fn accepts(&self, claim: &Claim) -> bool {
        let code = self.code(b"hotlease left claim 1", &[]);
        claim.ticket == self.ticket && claim.nonce == self.nonce && code.verify_slice(&claim.code).is_ok()
    }

    /// What goes before a result of so many bytes.
    pub fn delivery(&self, bytes: u64) -> [u8; DELIVERY_BYTES] {
        let bytes = bytes.to_le_bytes();
        let code = self.code(b"hotlease left delivery 1", &bytes);
        let mut delivery = [0; DELIVERY_BYTES];
        delivery[..8].copy_from_slice(&bytes);
        delivery[8..].copy_from_slice(&code.finalize().into_bytes());
        delivery
    }

    /// Bytes of the result, as who has the secret says them; `None`: somebody else did.
    pub fn delivered(&self, delivery: &[u8; DELIVERY_BYTES]) -> Option<u64> {
        let (bytes, code) = delivery.split_first_chunk::<8>()?;
        let expected = self.code(b"hotlease left delivery 1", bytes);
        expected.verify_slice(code).ok()?;
        Some(u64::from_le_bytes(*bytes))
    }

    /// Codes the result: keyed BLAKE3, which is as fast as memory, under a key of this exchange alone.
    pub fn content(&self) -> Content {
        let key = self.code(b"hotlease left content 1", &[]).finalize().into_bytes();
        Content(blake3::Hasher::new_keyed(&key.into()))
    }
}

/// The code of a result's bytes, while they pass.
pub struct Content(blake3::Hasher);

impl Content {
    /// The next ones.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The code of all.
    pub fn code(&self) -> [u8; CONTENT_CODE_BYTES] {
        *self.0.finalize().as_bytes()
    }

    /// Whether this is the code of all; in constant time.
    pub fn is(&self, code: &[u8; CONTENT_CODE_BYTES]) -> bool {
        self.0.finalize() == *code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(secret: &Secret) -> Exchange<'_> {
        Exchange {
            secret,
            ticket: 7,
            challenge: [1; 32],
            nonce: [2; 32],
        }
    }

    #[test]
    fn only_who_has_the_secret_claims_and_delivers() {
        let (secret, other) = (Secret([9; 32]), Secret([8; 32]));
        let ours = exchange(&secret);
        assert!(ours.accepts(&ours.claim()));
        assert!(!ours.accepts(&exchange(&other).claim()), "another secret");
        assert_eq!(ours.delivered(&ours.delivery(5)), Some(5));
        assert_eq!(
            ours.delivered(&exchange(&other).delivery(5)),
            None,
            "another secret"
        );
        let (mut one, mut two) = (ours.content(), exchange(&other).content());
        one.update(b"bytes");
        two.update(b"bytes");
        assert!(one.is(&one.code()) && !one.is(&two.code()));
    }

    #[test]
    fn what_was_said_once_is_of_no_use_in_another_exchange() {
        let secret = Secret([9; 32]);
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
        let secret = Secret([9; 32]);
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
        assert_eq!(format!("{:?}", Secret([9; 32])), "Secret(..)");
    }
}
