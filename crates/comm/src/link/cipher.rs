//! Handshakes and encrypted records of Noise, up to the first frame of a connection.
//!
//! ```text
//!   connects                                     listens
//!     │ ── greeting, first message ────────────────► │  proves that the caller has the secret
//!     │ ◄──────────────── verdict, second message ── │  proves that the listening side has the secret
//!     │ ── record ─────────────────────────────────► │  proves that this is no recording of an earlier handshake
//! ```
//!
//! Neither half does I/O: bytes in, bytes out. A stranger can make the listening half store no more bytes than the
//! longest part of a handshake has.

use crate::secret::Secret;
use hotlease_wire::comm::greeting::{Greeting, KeyId, PART_BYTES_MAX, PREFIX_BYTES, Purpose, VERSION, Verdict};
use hotlease_wire::comm::{RECORD_BYTES_MAX, SEAL_BYTES};
use snow::{Builder, HandshakeState, TransportState};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Longest record that ends a handshake, bytes: a request to the rendezvous.
pub(crate) const FIRST_RECORD_BYTES_MAX: usize = 1024;

/// Reason why a handshake failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HandshakeError {
    /// The other side refused.
    Refused(Verdict),
    /// This side refuses.
    Refuse(Verdict),
    /// The bytes are no handshake of a peer that has the secret.
    Stranger(&'static str),
}

/// Ciphers of both directions of a connection, after its handshake.
pub(crate) struct Cipher {
    state: TransportState,
}

impl Cipher {
    /// Appends a record with these bytes, of which there may be at most [`CONTENT_BYTES_MAX`].
    pub(crate) fn seal(&mut self, content: &[u8], into: &mut Vec<u8>) {
        let start = into.len();
        let sealed = content.len() + SEAL_BYTES;
        into.extend_from_slice(&(sealed as u16).to_le_bytes());
        into.resize(start + PREFIX_BYTES + sealed, 0);
        let written = self.state.write_message(content, &mut into[start + PREFIX_BYTES..]);
        // Fails for content that is too long, which no caller passes, and after 2^64 records.
        debug_assert_eq!(written.as_ref().ok(), Some(&sealed));
    }

    /// Decrypts a record, without its length, to the end of `into`. Returns `false` if the other side did not write the
    /// record.
    #[must_use]
    pub(crate) fn open(&mut self, record: &[u8], into: &mut Vec<u8>) -> bool {
        let start = into.len();
        into.resize(start + record.len(), 0);
        let opened = self.state.read_message(record, &mut into[start..]);
        into.truncate(start + opened.as_ref().copied().unwrap_or(0));
        opened.is_ok()
    }

    /// Takes a complete record with its length from the front of the received bytes and returns its content.
    pub(crate) fn open_next(&mut self, got: &mut Vec<u8>) -> Result<Option<Vec<u8>>, HandshakeError> {
        let Some(record) = take_part(got, RECORD_BYTES_MAX)? else {
            return Ok(None);
        };
        let mut content = Vec::new();
        match self.open(&record, &mut content) {
            true => Ok(Some(content)),
            false => Err(HandshakeError::Stranger("the bytes are not those that it wrote")),
        }
    }
}

fn builder<'a>(secret: &'a Secret, prologue: &'a [u8]) -> Option<Builder<'a>> {
    let builder = Builder::new(PATTERN.parse().ok()?);
    builder.psk(0, secret.key()).ok()?.prologue(prologue).ok()
}

fn part(content: &[u8]) -> Vec<u8> {
    let mut part = (content.len() as u16).to_le_bytes().to_vec();
    part.extend_from_slice(content);
    part
}

/// Takes a complete part with its length from the front of the received bytes.
fn take_part(got: &mut Vec<u8>, longest: usize) -> Result<Option<Vec<u8>>, HandshakeError> {
    let Some(prefix) = got.first_chunk::<PREFIX_BYTES>() else {
        return Ok(None);
    };
    let length = u16::from_le_bytes(*prefix) as usize;
    if length > longest {
        return Err(HandshakeError::Stranger("it sent more than a handshake has"));
    }
    let end = PREFIX_BYTES + length;
    if got.len() < end {
        return Ok(None);
    }
    let part = got[PREFIX_BYTES..end].to_vec();
    got.drain(..end);
    Ok(Some(part))
}

/// The side that connects.
pub(crate) struct Initiator {
    state: Option<HandshakeState>,
    got: Vec<u8>,
    /// Payload of the second message.
    payload: Vec<u8>,
}

impl Initiator {
    /// Begins a handshake; returns also the bytes to send first. The payload is encrypted, but may be a replay.
    pub(crate) fn new(secret: &Secret, greeting: &Greeting, payload: &[u8]) -> Option<(Self, Vec<u8>)> {
        let greeting = greeting.encode();
        let mut state = builder(secret, &greeting)?.build_initiator().ok()?;
        let mut message = [0; PART_BYTES_MAX];
        let length = state.write_message(payload, &mut message).ok()?;
        let mut first = greeting.to_vec();
        first.extend(part(&message[..length]));
        let caller = Self {
            state: Some(state),
            got: Vec::new(),
            payload: Vec::new(),
        };
        Some((caller, first))
    }

    /// Payload of the other side's answer, once the handshake is done.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Takes received bytes. When the handshake is done, returns the cipher and the bytes that followed the handshake.
    /// The caller must then send a record with this cipher.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<Option<(Cipher, Vec<u8>)>, HandshakeError> {
        self.got.extend_from_slice(bytes);
        let Some(verdict) = self.got.first() else {
            return Ok(None);
        };
        match Verdict::decode(*verdict) {
            Ok(Verdict::Welcome) => {}
            Ok(verdict) => return Err(HandshakeError::Refused(verdict)),
            Err(_) => return Err(HandshakeError::Stranger("it is no port of hotlease's")),
        }
        let mut rest = self.got.split_off(1);
        let Some(message) = take_part(&mut rest, PART_BYTES_MAX)? else {
            self.got.append(&mut rest);
            return Ok(None);
        };
        let Some(mut state) = self.state.take() else {
            return Err(HandshakeError::Stranger("it answered twice"));
        };
        let wrong = HandshakeError::Stranger("it does not have the secret");
        let mut payload = [0; PART_BYTES_MAX];
        let length = state.read_message(&message, &mut payload).map_err(|_| wrong.clone())?;
        self.payload = payload[..length].to_vec();
        let state = state.into_transport_mode().map_err(|_| wrong)?;
        Ok(Some((Cipher { state }, rest)))
    }
}

enum ResponderStage {
    Greeting,
    Message(Greeting),
    Record(Cipher),
    Done,
}

/// Conditions under which a listening side admits a peer.
pub(crate) struct AdmissionRules<'a> {
    pub(crate) secrets: &'a [Secret],
    pub(crate) purpose: Purpose,
    /// Group that the greeting must name.
    pub(crate) group: hotlease_wire::comm::GroupId,
}

/// Progress of a peer that has connected.
pub(crate) enum ResponderStep {
    /// More bytes are needed.
    More,
    /// These bytes are to be sent; then more bytes are needed. The payload of the first message may be a replay.
    Answer { bytes: Vec<u8>, payload: Vec<u8> },
    /// The peer has the secret, and this is no replay.
    Proved {
        cipher: Cipher,
        /// Content of the record.
        content: Vec<u8>,
        /// Bytes that followed the record.
        rest: Vec<u8>,
    },
}

/// The side that listens.
pub(crate) struct Responder {
    stage: ResponderStage,
    got: Vec<u8>,
    key: Option<KeyId>,
    /// Payload of the second message.
    payload: Vec<u8>,
}

impl Responder {
    pub(crate) const fn new() -> Self {
        Self {
            stage: ResponderStage::Greeting,
            got: Vec::new(),
            key: None,
            payload: Vec::new(),
        }
    }

    /// Makes a responder that sends this payload, encrypted, with the second message.
    pub(crate) fn with_payload(payload: &[u8]) -> Self {
        Self {
            payload: payload.to_vec(),
            ..Self::new()
        }
    }

    /// Secret that the peer claims to have; proved once [`ResponderStep::Proved`] was returned.
    pub(crate) fn key(&self) -> Option<KeyId> {
        self.key
    }

    /// Takes received bytes. After each [`ResponderStep::Answer`] the caller must call this again, without bytes.
    pub(crate) fn read(&mut self, bytes: &[u8], rules: &AdmissionRules<'_>) -> Result<ResponderStep, HandshakeError> {
        self.got.extend_from_slice(bytes);
        loop {
            match std::mem::replace(&mut self.stage, ResponderStage::Done) {
                ResponderStage::Greeting => {
                    let Some(greeting) = self.got.first_chunk::<{ Greeting::BYTES }>() else {
                        // Garbage is refused as soon as there is enough of it for a greeting.
                        self.stage = ResponderStage::Greeting;
                        return Ok(ResponderStep::More);
                    };
                    let greeting = check_greeting(greeting, rules)?;
                    self.key = Some(greeting.key);
                    self.got.drain(..Greeting::BYTES);
                    self.stage = ResponderStage::Message(greeting);
                }
                ResponderStage::Message(greeting) => {
                    let Some(message) = take_part(&mut self.got, PART_BYTES_MAX)? else {
                        self.stage = ResponderStage::Message(greeting);
                        return Ok(ResponderStep::More);
                    };
                    return self.answer(&greeting, &message, rules);
                }
                ResponderStage::Record(mut cipher) => {
                    let Some(record) = take_part(&mut self.got, FIRST_RECORD_BYTES_MAX)? else {
                        self.stage = ResponderStage::Record(cipher);
                        return Ok(ResponderStep::More);
                    };
                    let mut content = Vec::new();
                    if !cipher.open(&record, &mut content) {
                        return Err(HandshakeError::Stranger("it repeats bytes that another peer has sent"));
                    }
                    let rest = std::mem::take(&mut self.got);
                    return Ok(ResponderStep::Proved { cipher, content, rest });
                }
                ResponderStage::Done => return Err(HandshakeError::Stranger("it went on after the end")),
            }
        }
    }

    fn answer(
        &mut self,
        greeting: &Greeting,
        message: &[u8],
        rules: &AdmissionRules<'_>,
    ) -> Result<ResponderStep, HandshakeError> {
        let wrong = || HandshakeError::Stranger("it does not have the secret");
        let secret = rules.secrets.iter().find(|secret| secret.id() == greeting.key);
        let secret = secret.ok_or(HandshakeError::Refuse(Verdict::OtherSecret))?;
        let prologue = greeting.encode();
        let state = builder(secret, &prologue).and_then(|builder| builder.build_responder().ok());
        let mut state = state.ok_or_else(wrong)?;
        let mut payload = [0; PART_BYTES_MAX];
        let length = state.read_message(message, &mut payload).map_err(|_| wrong())?;
        let mut answer = [0; PART_BYTES_MAX];
        let answered = state.write_message(&self.payload, &mut answer).map_err(|_| wrong())?;
        let mut bytes = vec![Verdict::Welcome.encode()];
        bytes.extend(part(&answer[..answered]));
        let state = state.into_transport_mode().map_err(|_| wrong())?;
        self.stage = ResponderStage::Record(Cipher { state });
        Ok(ResponderStep::Answer {
            bytes,
            payload: payload[..length].to_vec(),
        })
    }
}

fn check_greeting(bytes: &[u8; Greeting::BYTES], rules: &AdmissionRules<'_>) -> Result<Greeting, HandshakeError> {
    let greeting = match (Greeting::decode(bytes), Greeting::version(bytes)) {
        (Ok(greeting), _) => greeting,
        (Err(_), Some(version)) if version != VERSION => {
            return Err(HandshakeError::Refuse(Verdict::OtherVersion));
        }
        _ => return Err(HandshakeError::Stranger("it sent no greeting")),
    };
    let verdict = if greeting.purpose != rules.purpose {
        Verdict::OtherPurpose
    } else if !rules.secrets.iter().any(|secret| secret.id() == greeting.key) {
        Verdict::OtherSecret
    } else if greeting.group != rules.group {
        Verdict::OtherGroup
    } else {
        return Ok(greeting);
    };
    Err(HandshakeError::Refuse(verdict))
}

/// Explains a verdict to the side that got it.
pub(crate) fn explain(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Welcome => "it accepted",
        Verdict::OtherSecret => "it has another secret",
        Verdict::OtherVersion => "it has another version of hotlease; install the same everywhere",
        Verdict::OtherGroup => "it belongs to another group of this name",
        Verdict::OtherPurpose => {
            "it is a member where a rendezvous was expected, or the other way round; correct the address"
        }
        Verdict::Busy => "too many are connecting to it",
        Verdict::OtherSealing => {
            "one side encrypts its frames and the other does not; set `is_sealed` to the same value everywhere"
        }
        Verdict::OtherLink => {
            "the two have chosen different providers of libfabric; name the same one everywhere: HOTLEASE_COMM_LINK=ofi:NAME"
        }
    }
}

/// Longest content of a record, bytes.
pub(crate) const CONTENT_BYTES_MAX: usize = RECORD_BYTES_MAX - SEAL_BYTES;

#[cfg(test)]
mod tests;
